"""Claims of papers are whole, say what is not known of them, and are found beside results on the same data alone."""

import copy
import tomllib
from importlib import resources

import pytest

from fedpriv.api.federations import CostSettings
from fedpriv.claims import claims, find_claim, parsed
from fedpriv.datasets import DATASETS
from fedpriv.methods import METHODS
from fedpriv.study.claim_plan import measure_of, places, setting_at, sizes_of
from fedpriv.study.settings import FLAG_NAMES
from fedpriv.uploads import PAYLOADS
from fedpriv.util.errors import UserError

FILES = sorted(claims())


def raw(name):
    return tomllib.loads((resources.files("fedpriv.claims") / f"{name}.toml").read_text("utf-8"))


@pytest.mark.parametrize("name", FILES)
def test_every_claim_is_whole(name):
    claim = claims()[name]
    assert claim.paper
    assert claim.where
    assert claim.known
    assert claim.unknown
    assert any(value is not None for row in claim.rows for value in row.values)
    for place in places(claim):
        # A method that this package has no name for could neither be run nor stand beside a result.
        assert place.method in (None, *METHODS)
        assert place.target in (None, *PAYLOADS)
        if claim.counted:
            assert set(sizes_of(claim, place)) <= CostSettings.__optional_keys__
        else:
            told = setting_at(claim, place)
            assert set(told) <= {*FLAG_NAMES, "option"}
            assert told["dataset"] in DATASETS
            assert set(setting_at(claim, place, "cpu")) <= {*FLAG_NAMES, "option"}
        assert (measure_of(claim, place).what == "rounds") == (measure_of(claim, place).reach is not None)
    if claim.quantity == "accuracy":
        assert claim.tolerance > 0
        assert claim.tolerance_because


@pytest.mark.parametrize("name", FILES)
def test_what_a_paper_concludes_is_what_its_own_values_say(name):
    claim = claims()[name]
    rows, columns = [row.name for row in claim.rows], [column.name for column in claim.columns]
    values = {(row.name, columns[n]): value for row in claim.rows for n, value in enumerate(row.values)}
    for statement in claim.statements:
        along, across = (rows, columns) if statement.along == "rows" else (columns, rows)
        compared = 0
        for where in statement.within or across:
            for other in statement.than or [one for one in along if one != statement.better]:
                pair = [
                    (one, where) if statement.along == "rows" else (where, one) for one in (statement.better, other)
                ]
                ahead, behind = (values[place] for place in pair)
                if ahead is None or behind is None:
                    compared += claim.dash == "not printed"
                    continue
                compared += 1
                assert (ahead > behind) if statement.order == "above" else (ahead < behind), (
                    statement.text,
                    where,
                    other,
                )
        assert compared


AVERAGES = {
    "fedre-table-1": (53.98, 53.35, 53.15, 53.80, 50.28, 50.49, 50.26, 53.48, 54.04, 57.79),
    "fedre-table-12": (60.63, 58.54, 60.03, 59.98, 58.40, 57.99, 60.40, 60.37, 63.21),
    "fedre-table-12-global": (31.14, 31.16, 44.09, 31.12),
}
"""Averages of rows over six columns that the paper prints beside them."""


def test_averages_of_rows_are_those_of_the_papers():
    for name, averages in AVERAGES.items():
        for row, average in zip(claims()[name].rows, averages, strict=True):
            assert sum(row.values) / 6 == pytest.approx(average, abs=0.0051)


def test_a_damaged_claim_is_named():
    whole = raw("fedre-table-5")

    def but(change):
        values = copy.deepcopy(whole)
        change(values)
        return values

    def refused(change, match):
        with pytest.raises(UserError, match=match):
            parsed(but(change), "x.toml")

    assert parsed(whole, "x.toml")
    refused(lambda v: v["rows"][0].update(values=[7.83]), r"x\.toml: row 'AP': 1 values for 2 columns")
    refused(lambda v: v.update(tabel=5), "unknown key 'tabel'")
    refused(lambda v: v["rows"].append(v["rows"][0]), r"x\.toml: rows: 'AP' is there twice")
    refused(lambda v: v["statements"][0].update(better="XX"), "unknown name .*XX")
    refused(lambda v: v.update(remarks={"AP": "odd"}), "'AP' is no 'ROW | COLUMN'")
    refused(lambda v: v.update(scales={"huge": {}}), "unknown scale .*huge")
    with pytest.raises(UserError, match="unknown claim 'fedre-table-55'; did you mean 'fedre-table-5'"):
        find_claim("fedre-table-55")


def test_every_printed_value_is_here():
    values = [value for name in FILES for row in claims()[name].rows for value in row.values if value is not None]
    assert (len(FILES), len(values), round(sum(values), 2)) == (36, 705, 2970034.71)
