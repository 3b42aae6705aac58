"""Everything that fedpriv made in a folder, at any depth up to a limit: found, read and checked for an index."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fedpriv.experiment.result_folders import holds, result_directories, unfinished
from fedpriv.experiment.results_folder import REQUEST
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.pages import claim_card, runs_report
from fedpriv.pages.index_entries import EntryKind, Indexed, without_tensors
from fedpriv.pages.left_out import LeftOut, readable
from fedpriv.pages.report import called_by, load_scored
from fedpriv.pages.study_files import CELLS, STUDY
from fedpriv.pages.study_report import read_results
from fedpriv.scoring.records import ClaimCard
from fedpriv.scoring.storage import (
    ABOUT,
    CLAIM,
    MEMBERSHIP,
    METRICS,
    PRIVACY_AUDIT,
    PROPERTY,
    AttackRecord,
    load_privacy_audit,
    load_scores,
    read_record,
)
from fedpriv.util import files
from fedpriv.util.errors import UserError
from fedpriv.util.escape import shell_word

DEPTH = 6
"""Levels below the given folder that are searched."""

MOST = 1000
"""Results that one page shows; a browser is slow with more."""

_BESIDE = ("report", "index", "comparison", "data", "trial", "shard")
"""Kinds of folders of ours that hold no result of their own."""

_RECORDS = (ABOUT, METRICS, MEMBERSHIP, PROPERTY, CLAIM, PRIVACY_AUDIT, STUDY, CELLS, "summary.json", REQUEST)


@dataclass(frozen=True)
class _Found:
    """The outcome of a search: folders by kind, and a line for each that holds nothing."""

    places: Mapping[Path, EntryKind]
    strangers: tuple[LeftOut, ...] = ()


def read_folders(roots: Iterable[Path]) -> tuple[list[Indexed], list[LeftOut]]:
    """Return everything that fedpriv made in folders, and a line for everything else, by its place in the folder.

    Raises:
        UserError: for a folder that is missing, or holds nothing that fedpriv made.
    """
    found: list[Indexed] = []
    left_out: list[LeftOut] = []
    seen: set[Path] = set()
    several = list(roots)
    for root in several:
        if not root.is_dir():
            raise UserError(f"{root}: no such folder; expected one that holds results")
        search = _search(root, DEPTH)
        own = [place for place in search.places if place.resolve() not in seen]
        seen |= {place.resolve() for place in own}
        lost = list(search.strangers)
        for place in own[: max(0, MOST - len(found))]:
            one, damaged = _read(place, search.places[place], _name(place, root, several))
            found += [] if one is None else [one]
            lost += damaged
        if len(own) > MOST:
            lost.append(LeftOut(str(root), f"holds {len(own)} results; an index shows {MOST}: index its folders apart"))
        left_out += [replace(line, folder=_name(Path(line.folder), root, several)) for line in lost]
    if not found:
        raise UserError(f"{several[0]}: {left_out[0].why if left_out else _NOTHING}")
    return found, left_out


def _name(place: Path, root: Path, roots: list[Path]) -> str:
    """Return the place of a folder in the one that is indexed; of several, with that one's name."""
    inside = place.relative_to(root)
    return str(inside) if inside.parts and len(roots) == 1 else str(Path(root.resolve().name) / inside)


def _search(folder: Path, depth: int) -> _Found:
    """Return the contents of a folder; where it holds nothing of ours at all, one line for the whole of it."""
    try:
        kind = _kind(folder)
        if kind is not None:
            return _Found({folder: kind})
        if files.kind(folder) in _BESIDE:
            return _Found({})
        below = sorted(Path(one.path) for one in os.scandir(folder) if one.is_dir() and not one.name.startswith("."))
    except (OSError, UserError) as error:
        why = f"not readable ({error.strerror})" if isinstance(error, OSError) else str(error)
        return _Found({}, (LeftOut(str(folder), why),))
    if files.kind(folder) == "recorded":
        return _Found({}, (LeftOut(str(folder), "a recorded run, not attacked: fedpriv attack --run takes it"),))
    if below and depth == 0:
        return _Found({}, (LeftOut(str(folder), f"not searched: it lies {DEPTH} levels down; index it by itself"),))
    places: dict[Path, EntryKind] = {}
    strangers: list[LeftOut] = []
    ours = False
    for one in below:
        if one.is_symlink():
            strangers.append(LeftOut(str(one), "a link, not followed"))
            continue
        inner = _search(one, depth - 1)
        places |= inner.places
        strangers += inner.strangers
        ours = ours or bool(inner.places) or not inner.strangers
    nothing = all(line.why == _NOTHING for line in strangers)
    if not ours and nothing:
        return _Found({}, (LeftOut(str(folder), _NOTHING),))
    return _Found(places, tuple(strangers))


_NOTHING = "holds nothing that fedpriv made"


def _kind(folder: Path) -> EntryKind | None:
    if (folder / CLAIM).is_file():
        return "claim of a paper"
    if (folder / REQUEST).is_file() or files.kind(folder) == "attacks":
        return "attacks"
    kinds: dict[str | None, EntryKind] = {
        "study": "study",
        "attack": "attacks",
        "membership": "attacks",
        "privacy": "audit of epsilon",
        "run": "run",
    }
    return kinds.get(holds(folder))


def _read(folder: Path, kind: EntryKind, name: str) -> tuple[Indexed | None, list[LeftOut]]:
    """Return a folder's contents, None where they cannot be read, and what of it is damaged."""
    damaged: list[LeftOut] = []

    def whole(place: Path) -> Indexed:
        blank = Indexed(place, name, kind, _made(place), command=f"fedpriv report {shell_word(str(place))}")
        try:
            one, lost = _READERS[kind](blank)
        except OSError as error:
            raise UserError(f"{place}: not readable ({error.strerror})") from error
        damaged.extend(lost)
        return one

    read, unread = readable([folder], whole)
    return read.get(folder), [*unread, *damaged]


def _attacks(blank: Indexed) -> tuple[Indexed, list[LeftOut]]:
    notes = [line.removeprefix(f"{blank.folder}: ") for line in unfinished([blank.folder])]
    try:
        found, _ = result_directories([blank.folder])
    except UserError as error:
        raise UserError(notes[0] if notes else str(error)) from error
    attacks, lost = readable(found["attack"], _bare)
    scores, lost_scores = readable(found["membership"], load_scores)
    damaged = [*lost, *lost_scores]
    if not attacks and not scores:
        raise UserError((notes or [str(one) for one in damaged] or ["holds no result of an attack yet"])[0])
    one = replace(
        blank, attacks=attacks, scores=scores, page=_page(blank.folder), notes=(*notes, *map(_unread, damaged))
    )
    return one, damaged


def _unread(lost: LeftOut) -> str:
    return f"{Path(lost.folder).name} could not be read"


def _bare(folder: Path) -> AttackRecord:
    return without_tensors(load_scored(folder))


def _study(blank: Indexed) -> tuple[Indexed, list[LeftOut]]:
    found = read_results(blank.folder)
    attacks = {folder: without_tensors(called_by(one, found.facts.labels)) for folder, one in found.attacks.items()}
    scores = {
        folder: one.model_copy(update={"labels": found.facts.labels.get(folder.resolve())})
        for folder, one in found.scores.items()
    }
    notes = tuple(f"cell {cell.cell} {cell.status}: {cell.why}" for cell in found.facts.failed)
    page = _page(blank.folder)
    return replace(blank, attacks=attacks, scores=scores, study=found.facts, page=page, notes=notes), list(
        found.left_out
    )


def _claim(blank: Indexed) -> tuple[Indexed, list[LeftOut]]:
    card = read_record(blank.folder / CLAIM)
    if not isinstance(card, ClaimCard):
        raise UserError(f"{blank.folder / CLAIM}: holds a record of kind {card.kind!r}")
    return replace(blank, claim=card, page=_page(blank.folder, claim_card.PAGE), command=card.command), []


def _audit(blank: Indexed) -> tuple[Indexed, list[LeftOut]]:
    return replace(blank, audit=load_privacy_audit(blank.folder)), []


def _run(blank: Indexed) -> tuple[Indexed, list[LeftOut]]:
    run = RunDirectory.open(blank.folder)
    run.require_complete()
    return replace(blank, run=(run.config, run.summary), page=_page(blank.folder, runs_report.PAGE)), []


_READERS: Mapping[EntryKind, Callable[[Indexed], tuple[Indexed, list[LeftOut]]]] = {
    "attacks": _attacks,
    "study": _study,
    "claim of a paper": _claim,
    "audit of epsilon": _audit,
    "run": _run,
}


def _page(folder: Path, name: str = "report.html") -> Path | None:
    page = folder / name
    return page if page.is_file() else None


def _made(folder: Path) -> float:
    """Return the time at which the newest record in a folder, or one level below it, was written; seconds since 1970."""
    files = (path for name in _RECORDS for path in (folder / name, *folder.glob(f"*/{name}")) if path.is_file())
    return max((path.stat().st_mtime for path in files), default=folder.stat().st_mtime)
