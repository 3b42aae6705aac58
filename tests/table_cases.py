"""Tables as a reader takes them: by their header and the types that ``columns.csv`` tells."""

import csv
from pathlib import Path

import fedpriv.reports

PARSE = {"integer": int, "number": float, "boolean": {"True": True, "False": False}.__getitem__, "string": str}
COLUMNS = Path(fedpriv.reports.__file__).with_name("columns.csv")


def told(path):
    """The rows of a table as text, once each cell is what is told of its column."""
    with COLUMNS.open(newline="") as file:
        fields = [row for row in csv.DictReader(file) if row["table"] == Path(path).name]
    assert all(field["description"] for field in fields)
    with Path(path).open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert list(row) == [field["name"] for field in fields]
        for field in fields:
            cell = row[field["name"]]
            if cell != "":
                PARSE[field["type"]](cell)
    return rows
