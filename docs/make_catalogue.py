"""Write the catalogue of this package's own members, which lists read without torch: ``python docs/make_catalogue.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedpriv.experiment import catalogued
from fedpriv.experiment.catalogued import NEEDS
from fedpriv.experiment.verbs.cataloguing import KINDS, rows_of
from fedpriv.util.arguments import Spelling, spelled

PLACE = Path(catalogued.__file__).with_name(catalogued.FILE)


class _InBraces(Spelling):
    """Leaves open how an argument is spelled."""

    def argument(self, name: str, *value: Any) -> str:
        return f"{{{name}}}"


def text() -> str:
    """Return the file's text: the members of each kind, a line each."""
    with spelled(_InBraces()):
        found: dict[str, list[dict[str, Any]]] = {kind: [*rows_of(kind)] for kind in KINDS if kind != "claims"}
    for row in found["attacks"]:
        on = {target: _needs(row["name"], target) for target in row["targets"].split(", ")}
        if differing := {target: needs for target, needs in on.items() if needs != row[NEEDS]}:
            row["needs on"] = differing
    lists = {kind: ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) for kind, rows in found.items()}
    return "{\n" + ",\n".join(f'"{kind}": [\n{rows}\n]' for kind, rows in lists.items()) + "\n}\n"


def _needs(attack: str, target: str) -> str:
    return next(row[NEEDS] for row in rows_of("attacks", target) if row["name"] == attack)


if __name__ == "__main__":
    PLACE.write_text(text(), encoding="utf-8")
