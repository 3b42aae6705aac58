"""The page over a folder of results: an entry each, found by kind, upload, method, data set and finding."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from fedpriv.pages.index_entries import Entry, Indexed, entries
from fedpriv.pages.left_out import LeftOut
from fedpriv.pages.page import with_scripts
from fedpriv.pages.upload_card import LEGEND, SIGNS, short_name
from fedpriv.scoring.redaction import NONE
from fedpriv.scoring.verdict import BADGES, TOGETHER
from fedpriv.util.files import write_text

PAGE = "index.html"


def write_index(
    found: Sequence[Indexed], left_out: Sequence[LeftOut], out: Path, *, title: str, redact: str = NONE
) -> None:
    """Write ``index.html`` into the folder ``out``.

    Args:
        found: what the index has.
        left_out: what it names without showing it.
        out: folder of the page, from which its links lead.
        title: what is indexed.
        redact: rule by which pictures are kept out of the page.
    """
    shown = entries(found, redact)
    values = {
        "title": title,
        "entries": [(entry, made(entry.of.made), _link(entry, out)) for entry in shown],
        "left_out": left_out,
        "short_name": short_name,
        "signs": [(SIGNS[state], state, words) for state, words in LEGEND.items()],
        "badges": BADGES,
        "together": TOGETHER,
    }
    write_text(out / PAGE, with_scripts("index.html.j2", "report.js", "index.js", values=values))


def made(seconds: float) -> str:
    """Return a time as the page shows it, the same wherever it is made.

    >>> made(0)
    '1970-01-01 00:00 UTC'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _link(entry: Entry, out: Path) -> str | None:
    """Return the address of an entry's own page, from the index: both may be moved together."""
    if entry.of.page is None:
        return None
    return quote(Path(os.path.relpath(entry.of.page.resolve(), out.resolve())).as_posix())
