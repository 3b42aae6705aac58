"""Every number in a table says its unit, in the schema beside it and on the page of columns."""

import json
from pathlib import Path

import pytest
from looped import each

from fedpriv.pages.columns import TABLES, page, table_files

PAGE = Path(__file__).parents[2] / "docs" / "columns.md"
OF_NO_UNIT = {"seed", "run_seed", "frontier"}


@each("name", TABLES)
def test_every_number_has_a_unit_and_every_column_a_meaning(name):
    columns = TABLES[name]
    names = [column.name for column in columns]
    assert len(set(names)) == len(names)
    for column in columns:
        measured = column.type in ("integer", "number") and column.name not in OF_NO_UNIT
        assert bool(column.unit) is measured, column.name
        assert column.description
        assert "|" not in column.description


def test_the_schema_names_the_columns_in_order_with_type_and_unit():
    files = table_files("results.csv", [{"attack": "dip", "psnr_db": 12.5, "control_passes": None}])
    header, line = files["results.csv"].splitlines()
    fields = {field["name"]: field for field in json.loads(files["results.schema.json"])["fields"]}
    assert list(fields) == header.split(",")
    assert (fields["psnr_db"]["type"], fields["psnr_db"]["unit"]) == ("number", "dB")
    cells = dict(zip(fields, line.split(","), strict=True))
    assert {name: cell for name, cell in cells.items() if cell} == {"attack": "dip", "psnr_db": "12.5"}


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
