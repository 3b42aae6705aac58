"""JSON Schema of the records: ``python -m fedpriv.scoring.schema FOLDER`` writes one file a kind of record."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from fedpriv.scoring.storage import FILES
from fedpriv.util.files import write_text


class _Untitled(GenerateJsonSchema):
    """Without a title for every field, which says no more than its name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schemas() -> dict[str, str]:
    """Return the text of every schema by file name: ``metrics.schema.json`` is that of ``metrics.json``."""
    results = {}
    for kind, file in FILES.items():
        schema = kind.model_json_schema(mode="serialization", schema_generator=_Untitled)
        schema = {"$schema": _Untitled.schema_dialect, **schema}
        results[f"{Path(file).stem}.schema.json"] = json.dumps(schema, indent=2) + "\n"
    return results


def write_schemas(folder: Path) -> None:
    """Write every schema into a folder."""
    for name, text in schemas().items():
        write_text(folder / name, text)


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))
