"""The catalogue of this package's own members as a file, so that listing them imports no torch.

``python docs/make_catalogue.py`` writes it from the members, an entry each; a test holds both equal. It is read only where
torch is not loaded yet and no other package has members: their rows are their own words, for which they must be imported.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata, resources

from fedpriv.util.arguments import argument

FILE = "catalogued.json"

NEEDS = "needs from the knowledge card"
"""Column of attacks; where it differs by target, the entry ``needs on`` of the file has it by target."""

Rows = list[dict[str, str]]


def shipped(kind: str, target: str | None) -> Rows | None:
    """Return the rows of a kind from the file, or None where they have to be made from the members.

    Args:
        kind: as of :func:`fedpriv.catalogue`.
        target: with ``attacks``: only those on this kind of upload.
    """
    if "torch" in sys.modules or any(group.startswith("fedpriv.") for group in metadata.entry_points().groups):
        return None
    stored = json.loads(resources.files("fedpriv.experiment").joinpath(FILE).read_text(encoding="utf-8"))
    if kind not in stored:
        return None
    rows = []
    for row in stored[kind]:
        differing = row.pop("needs on", {})
        if target is not None:
            if target not in row.pop("targets").split(", "):
                continue
            row[NEEDS] = differing.get(target, row[NEEDS])
        for name in ("data_dir", "download") if kind == "datasets" else ():
            row["where"] = row["where"].replace(f"{{{name}}}", argument(name))
        rows.append(row)
    return rows or None
