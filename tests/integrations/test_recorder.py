"""The recorder's core: what it writes is what crossed, and nothing that it meets harms who calls it."""

import json

import numpy as np
import pytest
import torch
from federations import forged

from fedpriv.integrations.recorder import Recorder
from fedpriv.integrations.run import RecordedRun
from fedpriv.util.errors import UserError


def weights(value=1.0, shape=(2, 3)):
    return {"arrays": {"w": np.full(shape, value, np.float32), "b": np.arange(3, dtype=np.float32)}}


def recorded(path, said=None, rounds=(1, 2), clients=("7", "9")):
    heard = [] if said is None else said
    recorder = Recorder(path, "test 1.0", say=heard.append)
    for number in rounds:
        recorder.broadcast(number, clients, weights(number), facts={"lr": 0.1})
        for place, client in enumerate(clients):
            recorder.upload(number, client, weights(number + place / 8), facts={"num-examples": 10 + place})
        recorder.settled(number)
    return recorder


def test_everything_comes_back_as_it_crossed(tmp_path):
    said = []
    recorded(tmp_path / "run", said).close()
    run = RecordedRun.open(tmp_path / "run")
    assert (run.rounds(), run.framework, run.notes(), said) == ((1, 2), "test 1.0", (), [])
    down, first, second = run.messages(2)
    assert (down.direction, down.clients, down.facts) == ("down", ("7", "9"), {"lr": 0.1})
    assert (second.direction, second.clients, second.facts, second.sets) == (
        "up",
        ("9",),
        {"num-examples": 11},
        {"arrays": 2},
    )
    assert torch.equal(run.arrays(down)["arrays"]["w"], torch.full((2, 3), 2.0))
    assert torch.equal(run.arrays(second)["arrays"]["w"], torch.full((2, 3), 2.125))
    assert list(run.arrays(first)["arrays"]) == ["w", "b"]  # in their own order


def test_what_is_odd_is_said_once_and_kept(tmp_path):
    said = []
    recorder = Recorder(tmp_path / "run", "test", say=said.append)
    recorder.broadcast(1, ["1", "2"], weights())
    odd = {
        "half": torch.ones(2, dtype=torch.bfloat16),
        "count": np.array(3),
        "nan": np.array([np.nan, 1.0], np.float32),
    }
    recorder.upload(1, "1", {"arrays": odd | {"words": np.array(["a"]), "list": [1.0]}})
    recorder.upload(1, "2", {"arrays": odd})
    recorder.settled(1)
    recorder.close()
    run = RecordedRun.open(tmp_path / "run")
    arrays = run.arrays(run.messages(1)[1])["arrays"]
    assert arrays["half"].dtype == torch.bfloat16
    assert arrays["count"].dtype == torch.int64
    assert bool(arrays["nan"][0].isnan())
    assert sorted(arrays) == ["count", "half", "nan"]
    codes = [note.code for note in run.notes()]
    assert codes == ["unreadable"] * 2  # an array of words, and a list
    assert len(said) == 1
    assert "\n" not in said[0]


def test_a_fault_inside_stops_the_recording_and_raises_nothing(tmp_path, monkeypatch):
    said = []
    recorder = recorded(tmp_path / "run", said, rounds=(1,))
    monkeypatch.setattr(
        RecordedRun, "store", lambda *given: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    recorder.broadcast(2, ["7"], weights(2))
    assert recorder.stopped
    assert "No space left" in said[-1]
    monkeypatch.undo()
    recorder.upload(2, "7", weights(2))  # hears nothing any more
    recorder.settled(2)
    run = RecordedRun.open(tmp_path / "run")
    assert run.rounds() == (1,)
    assert run.notes()[-1].code == "stopped"
    with recorder.guarded():
        raise RuntimeError("an adapter's own")


@pytest.mark.parametrize(
    "call",
    [
        lambda r: r.upload(1, "a", {"s": {"x" * 400: np.ones(1, np.float32)}}),
        lambda r: r.upload(1, "", weights()),
        lambda r: r.upload(-1, "a", weights()),
        lambda r: r.broadcast(1, ["a"], {str(n): {} for n in range(2000)}),
        lambda r: r.upload(1, "a", None),
    ],
)
def test_what_is_beyond_bounds_stops_it_in_one_line(tmp_path, call):
    said = []
    recorder = Recorder(tmp_path / "run", "test", say=said.append)
    call(recorder)
    assert recorder.stopped
    assert len(said) == 1
    assert "recording stops" in said[0]


def test_a_recorded_run_is_not_written_to_again(tmp_path):
    recorded(tmp_path / "run", rounds=(1, 2)).close()
    said = []
    other = Recorder(tmp_path / "run", "test 1.0", say=said.append)
    other.broadcast(1, ["12", "13"], weights(99))
    assert other.stopped
    assert "already exists" in said[-1]
    assert len(RecordedRun.open(tmp_path / "run").messages(1)) == 3


def test_a_damaged_recording_is_named(tmp_path):
    recorded(tmp_path / "run").close()
    run = RecordedRun.open(tmp_path / "run")
    seen = run.messages(1)[1]
    place = run.path / seen.file
    place.write_bytes(place.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"0002\.safetensors: altered"):
        run.arrays(seen)
    forged(run.path)
    with pytest.raises(UserError, match=r"0002\.safetensors: not a message that a recorder wrote"):
        run.arrays(seen)
    place.unlink()
    with pytest.raises(UserError, match="missing"):
        run.arrays(seen)
    for out in ("../run/recorded.json", str(place)):
        lines = run.path / "rounds" / "round-0002.jsonl"
        lines.write_text(json.dumps(seen.model_dump() | {"file": out}) + "\n")
        with pytest.raises(
            UserError, match=r"round-0002\.jsonl:1: field 'file': .*a path that leads out of the folder"
        ):
            run.messages(2)
    lines.write_text(json.dumps({"round": 2}) + "\n")
    with pytest.raises(UserError, match="is missing"):
        run.messages(2)
    with pytest.raises(UserError, match="not a recorded run"):
        RecordedRun.open(tmp_path)
