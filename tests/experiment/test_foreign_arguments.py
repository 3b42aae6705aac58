"""Arguments of the verbs that are nothing of the kind: one line that names the argument, before anything is done."""

import pytest

import fedpriv


def nested(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


CALLS = {
    "data_dir": lambda value: fedpriv.train("fedavg", dataset="folder", data_dir=value),
    "out": lambda value: fedpriv.train("fedproto", out=value),
    "keep": lambda value: fedpriv.train("fedproto", keep=value),
    "study": lambda value: fedpriv.audit(value, seeds=["x"]),
    "score": lambda value: fedpriv.score(value),
    "report": lambda value: fedpriv.report(value),
    "report several": lambda value: fedpriv.report([value]),
    "run": lambda value: fedpriv.attack(value, target="prototype"),
    "target": lambda value: fedpriv.attack(target=value),
    "upload's target": lambda value: fedpriv.attack_uploads([], target=value, images=1, auxiliary=1),
    "device": lambda value: fedpriv.attack_uploads([], target="prototype", images=1, auxiliary=1, device=value),
}
VALUES = {
    **{"number": 5.5, "list": [None], "nul": "a\0b", "long": "x" * 10_000, "bytes": b"\xff", "object": object()},
    **{"nested": nested(3000), "large": 1 << 9999},
}


@pytest.mark.parametrize("value", VALUES.values(), ids=list(VALUES))
@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_what_is_no_path_and_no_name_is_refused_in_one_line(call, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fedpriv.UserError) as caught:
        call(value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2100
    assert list(tmp_path.iterdir()) == []
