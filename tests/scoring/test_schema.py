"""The JSON Schema of records: the committed files are what the command makes, and records fit them."""

import json
import subprocess
import sys
from pathlib import Path

import pydantic
import pytest
from eval_cases import ABOUT, asked, scored_once
from fedpriv.scoring.schema import schemas

FOLDER = Path(__file__).parents[2] / "docs" / "schema"
MADE_WITH = (2, 14)
"""Versions of pydantic word a schema differently; the files are of this one."""


def resolved(part, whole):
    while "$ref" in part:
        part = whole["$defs"][part["$ref"].rpartition("/")[2]]
    return part


def refuse_auxiliary(value, part, whole, where=""):
    """Check that an object has the fields of its schema, no more and no fewer, at every depth that is not a choice."""
    part = resolved(part, whole)
    if not isinstance(value, dict) or "properties" not in part:
        return
    assert set(value) == set(part["properties"]), where
    assert part["additionalProperties"] is False, where
    for name, entry in value.items():
        refuse_auxiliary(entry, part["properties"][name], whole, f"{where}.{name}")


@pytest.mark.parametrize(
    ("file", "record"),
    [
        ("about", ABOUT),
        ("metrics", None),
        ("membership", asked("membership")),
        ("property", asked("property", control=0.5)),
    ],
)
def test_a_record_has_the_fields_of_its_schema(file, record):
    whole = json.loads((FOLDER / f"{file}.schema.json").read_text())
    refuse_auxiliary((record or scored_once()).model_dump(mode="json"), whole, whole)


@pytest.mark.skipif(
    tuple(map(int, pydantic.VERSION.split(".")[:2])) < MADE_WITH,
    reason="older versions of pydantic word schemas otherwise",
)
def test_the_committed_schemas_are_what_the_command_makes(tmp_path):
    subprocess.run([sys.executable, "-m", "fedpriv.scoring.schema", str(tmp_path)], check=True)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made == schemas()
    assert {path.name: path.read_text() for path in FOLDER.glob("*.json")} == made, (
        "make them again: python -m fedpriv.scoring.schema docs/schema"
    )
