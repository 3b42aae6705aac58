"""The verb ``leaderboard``: entries that others can add to, checked, and ranked within one knowledge card each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpriv.experiment.leaderboard.checking import Checked, check_file, check_folder, place_of
from fedpriv.experiment.leaderboard.entering import entries_of
from fedpriv.experiment.named_code import imports_what_is_named
from fedpriv.experiment.saving import Tabular
from fedpriv.experiment.scratch import Scratch, place
from fedpriv.experiment.study.run import StudyResult
from fedpriv.experiment.verbs.result import AttackResult, given_folders
from fedpriv.pages.leaderboard_page import overview, write_page
from fedpriv.pages.standings import Ranking, rankings
from fedpriv.scoring.records import LeaderboardEntry
from fedpriv.util import folders
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.files import write_text
from fedpriv.util.foreign import given_path
from fedpriv.util.listener import SILENT, Listener

Enterable = AttackResult | StudyResult | str | Path


@dataclass(frozen=True)
class Leaderboard(Tabular):
    """A folder of entries, checked.

    Attributes:
        path: the folder.
        checked: every file in it, with what is wrong with it.
        added: files that were written now.
        pages: ``leaderboard.html`` and ``leaderboard.md``, where a folder for them was given.
    """

    path: Path
    checked: tuple[Checked, ...]
    added: tuple[Path, ...] = ()
    pages: tuple[Path, ...] = ()
    _scratch: Scratch | None = field(default=None, repr=False, compare=False)

    @property
    def entries(self) -> tuple[LeaderboardEntry, ...]:
        """The entries that nothing is wrong with."""
        return tuple(one.entry for one in self.checked if one.entry is not None and not one.faults)

    @property
    def faults(self) -> tuple[str, ...]:
        """All that is wrong, a line each, with the file's name."""
        return tuple(f"{one.path}: {fault}" for one in self.checked for fault in one.faults)

    @property
    def remarks(self) -> tuple[str, ...]:
        """All that a reader should know beside, a line each, with the file's name."""
        return tuple(f"{one.path}: {remark}" for one in self.checked for remark in one.remarks)

    @property
    def rankings(self) -> tuple[Ranking, ...]:
        """Entries of one kind of upload on one data set, attacked under one card, by one measure."""
        return rankings(self.entries)

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return one row an entry: the upload, its four marks, accuracy and size."""
        return overview(self.entries)


@imports_what_is_named
def leaderboard(
    folder: str | Path = "leaderboard",
    *,
    add: Enterable | Sequence[Enterable] = (),
    entered_by: str = "",
    source: str = "",
    out: str | Path | None = None,
    force: bool = False,
    allow_code: str | Sequence[str] = (),
    listener: Listener = SILENT,
) -> Leaderboard:
    """Check the entries of a leaderboard, add results to it, and draw it.

    An entry is a file ``PAYLOAD/METHOD.json``: an upload, every attack on it with its knowledge card, figures, intervals and
    verdict, the commands that make it again, and versions. What an entry finds must follow from its own figures.

    Args:
        folder: of the entries; made where results are added and it is missing.
        add: results or studies whose uploads become entries.
        entered_by: whose measurement they are.
        source: where a method is described that this package lacks.
        out: folder to make for ``leaderboard.html`` and ``leaderboard.md``; None draws nothing.
        force: replace entries that are there, and ``out``.
        allow_code: modules that may be imported although only a file names them (docs/reliability.md); one or several.
        listener: hears of entries that are left out.

    Raises:
        UserError: where there is no entry, or one would be replaced; nothing is written then.
    """
    home = given_path("folder", folder)
    given = [add] if isinstance(add, (str, Path, AttackResult, StudyResult)) else list(add)
    if not given and (entered_by or source):
        told = argument("entered_by" if entered_by else "source")
        raise UserError(f"{told}: says something of results that are added; it goes with {argument('add')}")
    added = _add(home, given, entered_by, source, force=force) if given else ()
    checked = check_folder(home)
    found = Leaderboard(home, checked, added)
    for one in checked:
        if one.faults:
            more = f" (and {len(one.faults) - 1} more faults)" if len(one.faults) > 1 else ""
            listener.warn(f"{one.path}: {one.faults[0]}{more}; left out")
    if out is None:
        return found
    if not found.entries:
        raise UserError(f"{home}: no entry without a fault; there is nothing to draw")
    folders.refuse_overlap(Path(out), {"folder": home})
    made, scratch = place(out)
    with folders.output(made, "leaderboard", force=force):
        pages = write_page(found.entries, made, remarks=[*found.remarks, *found.faults])
    return Leaderboard(home, checked, added, pages, scratch)


def _add(home: Path, given: Sequence[Enterable], entered_by: str, source: str, *, force: bool) -> tuple[Path, ...]:
    """Write an entry for each upload of the given results.

    Raises:
        UserError: where two are of one upload, or a file is there already.
    """
    results = given_folders(given, (AttackResult, StudyResult))
    made = entries_of(results, entered_by=entered_by, source=source)
    places = [home / place_of(entry) for entry in made]
    for path, entry in zip(places, made, strict=True):
        if places.count(path) > 1:
            raise UserError(f"{path}: several of the given uploads would be this entry; add them one by one, renamed")
        if path.exists() and not force:
            raise UserError(f"{path}: exists; {argument('force')} replaces it")
        if path.exists():
            _refuse_loss(path, entry)
    for path, entry in zip(places, made, strict=True):
        write_text(path, entry.model_dump_json(indent=1) + "\n")
    return tuple(places)


def _refuse_loss(path: Path, entry: LeaderboardEntry) -> None:
    """Refuse to put less in the place of more.

    Raises:
        UserError: where the file is no entry, or of attacks that the new one lacks.
    """
    there = check_file(path).entry
    if there is None:
        raise UserError(f"{path}: exists, and is no entry that could be read; it is not replaced")
    lost = sorted({one.name for one in there.attacks} - {one.name for one in entry.attacks})
    if lost:
        raise UserError(f"{path}: has attacks that the new entry lacks ({', '.join(lost)}); it is not replaced")
