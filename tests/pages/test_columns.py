"""Every number in a table says its unit, in the schema beside it and on the page of columns."""

import json
from pathlib import Path

import pytest
from looped import each

from fedpriv.pages.page import columns, page, table_files

PAGE = Path(__file__).parents[2] / "docs" / "columns.md"
OF_NO_UNIT = {"seed", "run_seed", "frontier"}


@each("name", columns())
def test_every_number_has_a_unit_and_every_column_a_meaning(name):
    fields = columns()[name]
    names = [field["name"] for field in fields]
    assert len(set(names)) == len(names)
    for field in fields:
        measured = field["type"] in ("integer", "number") and field["name"] not in OF_NO_UNIT
        assert bool(field["unit"]) is measured, field["name"]
        assert field["description"]
        assert "|" not in field["description"]


def test_a_column_that_is_not_told_cannot_be_written():
    with pytest.raises(ValueError, match="dict contains fields not in fieldnames: 'colour'"):
        table_files("runs.csv", [{"colour": "red"}])


def test_units_are_a_second_header_in_pandas(tmp_path):
    pandas = pytest.importorskip("pandas")
    for file, text in table_files("runs.csv", [{"run": "a", "seconds": 2.0, "rounds": 3}]).items():
        (tmp_path / file).write_text(text)
    known = {"pandas": pandas, "json": json, "folder": tmp_path}
    block = page().partition("```\n")[2].partition("```")[0].replace("results", "runs")
    exec(block, known)
    assert known["table"]["seconds", "s"].tolist() == [2.0]
    assert known["table"]["rounds", "rounds"].tolist() == [3]


def test_the_page_of_columns_is_up_to_date():
    assert PAGE.read_text() == page(), "run: python -m fedpriv.pages.columns docs/columns.md"
