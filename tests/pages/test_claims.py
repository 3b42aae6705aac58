"""Claims of papers are whole, say what is not known of them, and are found beside the uploads they speak of."""

import json
from importlib import resources

import pytest

from fedpriv.methods import METHODS
from fedpriv.pages.claims import _claim, claims, matching
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import KINDS

FILES = sorted(claims())


def raw(name):
    return json.loads((resources.files("fedpriv.pages.claims") / f"{name}.json").read_text("utf-8"))


@pytest.mark.parametrize("name", FILES)
def test_every_claim_is_whole(name):
    claim = claims()[name]
    assert claim.paper
    assert claim.where
    assert claim.known
    assert claim.unknown
    assert all(len(row.values) == len(claim.columns) for row in claim.rows)
    assert any(value is not None for row in claim.rows for value in row.values)
    # A method that this package has no name for could never stand beside a result.
    assert {row.method for row in claim.rows} <= {None, *METHODS}
    assert {row.target for row in claim.rows} <= {None, *KINDS, "representation", "prototype", "entangled"}
    if claim.quantity == "leakage":
        assert claim.floors, "a PSNR without floors cannot be read"
        assert claim.reading


def test_published_inversions():
    found = {
        target: matching([(method, target)], "leakage")
        for method, target in (("fedre", "entangled"), ("fedgh", "prototype"), ("fedallrep", "representation"))
    }
    values = {target: rows[0].values for target, ((_, rows),) in found.items()}
    assert values == {
        "entangled": (9.66, 7781.87),
        "prototype": (10.25, 6992.04),
        "representation": (12.89, 4514.91),
    }
    (claim, rows), *more = matching([("fedral", "angle-matrix"), ("fedproto", "prototype")], "leakage")
    assert [claim.where, [row.name for row in rows]] == ["table 5", ["FedProto", "FedRAL"]]
    assert [row.values[0] for row in rows] == [6.76, 6.28]
    assert [other.title for other, _ in more] == ["Inversion of prototypes"]


def test_what_a_claim_does_not_speak_of_stays_away():
    assert matching([("fedavg", "model")], "leakage") == []
    assert matching([], "accuracy") == []
    assert [claim.where for claim, _ in matching([("fedavg", "model")], "accuracy")] == ["table 12"]


def test_readings_follow_from_the_floors():
    flat = {guess.name: guess.psnr_db for guess in claims()["fedre-inversion-prototype"].floors[0].guesses}
    assert claims()["fedre-inversion-representation"].rows[0].values[0] - flat["mean colour"] == pytest.approx(
        1.3, abs=0.05
    )
    for name in ("prototype", "entangled"):
        assert claims()[f"fedre-inversion-{name}"].rows[0].values[0] < flat["mean colour"]
    noise = {guess.name: guess.psnr_db for guess in claims()["fedral-dlg"].floors[0].guesses}["uniform noise"]
    assert all(row.values[0] < noise for row in claims()["fedral-dlg"].rows)


def test_communication_is_what_the_sizes_give():
    """Thousand scalars a round of ten clients, from the widths and numbers of classes alone."""
    rows = {row.method: row.values for row in claims()["fedre-communication-heterogeneous"].rows}
    sizes = ((512, 10), (512, 100), (2048, 200))
    heads = [10 * (width * n + n) / 1000 for width, n in sizes]
    assert list(rows["lg-fedavg"]) == pytest.approx([head for head in heads for _ in (0, 1)])
    assert list(rows["fedre"][0::2]) == pytest.approx([10 * width / 1000 for width, _ in sizes])
    assert list(rows["fedre"][1::2]) == pytest.approx(heads)
    pairs = [width * n / 1000 for (width, _), n in zip(sizes, (61, 502, 937), strict=True)]
    for method in ("fedgh", "fedproto", "fedtgp", "fpl"):
        assert list(rows[method][0::2]) == pytest.approx(pairs, abs=0.005)
    kilobytes = {row.method: row.values[0::2] for row in claims()["fedral-communication"].rows}
    assert list(kilobytes["fedtgp"]) == pytest.approx([500 * 4 * n / 1024 for n in (2, 10, 10, 100)], abs=0.005)


def test_a_damaged_claim_is_named():
    broken = raw("fedral-dlg")
    broken["rows"][0]["values"] = [7.83, 1.0]
    with pytest.raises(UserError, match=r"x\.json: row 'LG-FedAvg' has 2 values for 1 columns"):
        _claim(broken, "x.json")
    with pytest.raises(UserError, match="unknown key 'tabel'"):
        _claim({**raw("fedral-dlg"), "tabel": 5}, "x.json")
