"""``fedpriv leaderboard``: entries checked, added to and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click

import fedpriv
from fedpriv.cli import common
from fedpriv.util.errors import UserError


@click.command()
@click.argument("folder", default="leaderboard", type=click.Path(path_type=Path))
@click.option(
    "--add",
    multiple=True,
    metavar="RESULT",
    type=click.Path(path_type=Path),
    help="A folder that attack or audit made: its uploads become entries (repeat for more).",
)
@click.option("--entered-by", default="", metavar="NAME", help="With --add: whose measurement it is.")
@click.option("--source", default="", metavar="TEXT", help="With --add: where a method of your own is described.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to make for leaderboard.html and leaderboard.md.")
@click.option("--force", is_flag=True, help="Replace entries that are there, and --out.")
@common.common_options
def leaderboard(folder: Path, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Check the entries PAYLOAD/METHOD.json of a folder, add results to it, and draw it.

    Exit code 2 where something is wrong with an entry; the others are shown.
    """
    found = fedpriv.leaderboard(folder, listener=common.Terminal(quiet=quiet, as_json=as_json), **flags)
    if as_json:
        shown = {"added": found.added, "pages": found.pages}
        common.print_json(
            {
                "folder": str(found.path),
                **{name: [str(path) for path in paths] for name, paths in shown.items()},
                "entries": [dict(row) for row in found.table()],
                "faults": list(found.faults),
                "remarks": list(found.remarks),
            }
        )
    else:
        for path in found.added:
            common.say(f"added: {path}", quiet=quiet, as_json=False)
        if not quiet:
            common.print_table(str(found.path), [dict(row) for row in found.table()], as_json=False)
            common.tell(*(f"note: {line}" for line in found.remarks))
        for page in found.pages[:1]:
            common.say(f"leaderboard: {page}", quiet=quiet, as_json=False)
    wrong = sum(bool(one.faults) for one in found.checked)
    if wrong:
        raise UserError(f"{folder}: {wrong} of {len(found.checked)} entries at fault; each is told in a line above")
