"""Tables as CSV. Their columns, with type, unit and meaning, stand in ``columns.csv``.

Beside every table lies a Table Schema (https://specs.frictionlessdata.io/table-schema/): ``results.csv`` is described by
``results.schema.json``, whose fields have a ``unit`` too. ``python -m fedpriv.pages.columns FILE`` writes all as a page.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from fedpriv.util.escape import csv_cell
from fedpriv.util.files import write_text

TEXTS = (
    "text is one line, its control characters spelled out; one that begins with = + - @ or an apostrophe has an "
    "apostrophe before it"
)
"""Rule of texts in tables."""

_HEAD = """# Columns of the tables

Tables are UTF-8 with a header line; an empty cell was not measured or does not apply. A text is one line, its control
characters spelled out; one that begins with `=`, `+`, `-`, `@` or an apostrophe has an apostrophe before it, so that no
spreadsheet computes it (numbers, negative ones too, stay as they are). Beside each lies its schema, for
`results.csv` the file `results.schema.json`: a [Table Schema](https://specs.frictionlessdata.io/table-schema/) whose fields
have a `unit` too. Units as a second header line in pandas:

```
table = pandas.read_csv(folder / "results.csv")
fields = json.loads((folder / "results.schema.json").read_text())["fields"]
table.columns = pandas.MultiIndex.from_tuples([(field["name"], field["unit"]) for field in fields])
```

Made by `python -m fedpriv.pages.columns docs/columns.md`.
"""


@cache
def columns() -> dict[str, list[dict[str, str]]]:
    """Return the columns of each table by its file: ``name``, ``type``, ``unit`` (empty for none), ``description``."""
    tables: dict[str, list[dict[str, str]]] = {}
    text = (resources.files("fedpriv.pages") / "columns.csv").read_text("utf-8")
    for row in csv.DictReader(io.StringIO(text)):
        tables.setdefault(row.pop("table"), []).append(row)
    return tables


def ordered(name: str, row: Mapping[str, object]) -> dict[str, object]:
    """Return a row in the order of a table's columns."""
    return {column["name"]: row[column["name"]] for column in columns()[name] if column["name"] in row}


def table_files(name: str, rows: Sequence[Mapping[str, object]]) -> dict[str, str]:
    """Return a table and its schema as text by file name; what is missing of a row, or None, is left empty.

    Raises:
        ValueError: for a row with a column that the table does not have.
    """
    buffer = io.StringIO()
    table = csv.DictWriter(buffer, [column["name"] for column in columns()[name]], lineterminator="\n")
    table.writeheader()
    table.writerows({column: csv_cell(value) for column, value in row.items()} for row in rows)
    schema = {"fields": columns()[name], "missingValues": [""], "description": TEXTS}
    return {name: buffer.getvalue(), f"{Path(name).stem}.schema.json": json.dumps(schema, indent=2) + "\n"}


def page() -> str:
    """Return the columns of all tables as Markdown."""
    lines = [_HEAD]
    for name, fields in columns().items():
        rows = [
            f"| `{field['name']}` | {field['type']} | {field['unit']} | {field['description']} |" for field in fields
        ]
        lines += [f"## {name}\n", "| column | type | unit | meaning |", "| --- | --- | --- | --- |", *rows, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), page())
