"""The catalogue of this package's own members as a file, so that listing them imports no torch.

``python docs/make_catalogue.py`` writes it from the members; a test holds both equal. It is read only where torch is
not loaded yet and no other package has members: their rows are their own words, for which they must be imported.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata, resources

from fedpriv.util.arguments import argument

FILE = "catalogued.json"

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
    rows: Rows | None = stored.get(voice(), {}).get(key(kind, target))
    return rows


def key(kind: str, target: str | None) -> str:
    """Return the name of a list in the file."""
    return kind if target is None else f"{kind} on {target}"


def voice() -> str:
    """Return an argument as it is spelled here, which tells Python's spelling from the command line's."""
    return argument("data_dir")
