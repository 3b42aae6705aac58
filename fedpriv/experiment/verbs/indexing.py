"""The option ``index`` of the verb ``report``: one page over a folder of results, an entry each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpriv.experiment.index_folders import read_folders
from fedpriv.experiment.scratch import Scratch, place
from fedpriv.pages.index_page import PAGE, write_index
from fedpriv.scoring.redaction import NONE, read_rule
from fedpriv.util import folders
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.listener import Listener

KIND = "index"


def refuse_others(given: Mapping[str, Any]) -> None:
    """Check that nothing is asked for that an index does not have.

    Raises:
        UserError: naming what is.
    """
    asked = next((name for name, value in given.items() if value is not None), None)
    if asked is not None:
        raise UserError(f"{argument(asked, given[asked])}: does not go with {argument('index')}")


def index(
    roots: Sequence[Path],
    *,
    out: str | Path | None,
    strict: bool,
    redact: str | None,
    force: bool,
    listener: Listener,
) -> tuple[Path, tuple[Path, ...], tuple[str, ...], Scratch | None]:
    """Write the index of folders; return its folder, those of the results, what was left out, and what keeps the folder.

    Args:
        roots: folders of results.
        out: as of :func:`fedpriv.report`, like the others.
        strict: likewise.
        redact: likewise.
        force: likewise.
        listener: likewise.

    Raises:
        UserError: as :func:`fedpriv.report`.
    """
    rule = read_rule(redact)
    found, left_out = read_folders(roots)
    notices = tuple(f"{line}; not in the index" for line in left_out)
    if notices and strict:
        raise UserError(f"{argument('strict')}: {notices[0]}")
    for line in notices:
        listener.warn(line)
    folder, scratch = place(out)
    for one in found:
        folders.refuse_overlap(folder, {"results": one.folder})
    for root in roots:
        folders.refuse_overlap(folder, {}, around={"folder": root})
    title = ", ".join(root.resolve().name for root in roots)
    with folders.output(folder, KIND, force=force, public=rule != NONE):
        write_index(found, left_out, folder, title=title, redact=rule)
    return folder, tuple(one.folder for one in found), notices, scratch


__all__ = ["PAGE", "index", "refuse_others"]
