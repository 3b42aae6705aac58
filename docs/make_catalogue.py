"""Write the catalogue of this package's own members, which lists read without torch: ``python docs/make_catalogue.py``."""

from __future__ import annotations

import json
from pathlib import Path

from fedpriv.attacks import target_names
from fedpriv.cli.common import Flags
from fedpriv.experiment import catalogued
from fedpriv.experiment.verbs.cataloguing import KINDS, rows_of
from fedpriv.util.arguments import Spelling, spelled

PLACE = Path(catalogued.__file__).with_name(catalogued.FILE)


def text() -> str:
    """Return the file's text: rows by how arguments are spelled, and by kind and target."""
    asked: list[tuple[str, str | None]] = [(kind, None) for kind in KINDS if kind != "claims"]
    asked += [("attacks", target) for target in target_names()]
    found = {}
    for spelling in (Spelling(), Flags()):
        with spelled(spelling):
            found[catalogued.voice()] = {catalogued.key(kind, target): rows_of(kind, target) for kind, target in asked}
    return json.dumps(found, indent=0, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    PLACE.write_text(text(), encoding="utf-8")
