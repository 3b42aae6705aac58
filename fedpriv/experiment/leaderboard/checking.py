"""Entries of a leaderboard as files: where each lies, reading, and checking that its findings follow from its figures."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.attacks import ATTACKS, default_suite, target_names
from fedpriv.attacks.observation import Needs
from fedpriv.experiment.reaching import NOT_FAR
from fedpriv.methods import METHODS
from fedpriv.scoring.judgement import FALSE_CLAIMS, MAKES
from fedpriv.scoring.left_open import left_open
from fedpriv.scoring.reasons import FEW_CLIENTS
from fedpriv.scoring.records import SCORING_VERSION, JudgedComparison, LeaderboardEntry, Measure, Verdict
from fedpriv.scoring.records.leaderboard import EnteredAttack
from fedpriv.scoring.records.made import Reach
from fedpriv.scoring.storage import read_record
from fedpriv.util.errors import UserError
from fedpriv.util.foreign import reason
from fedpriv.util.registry import is_reference

_OF_ANY_SIZE: tuple[Measure, ...] = ("images", "vectors")
"""Measures whose values are no shares: decibels, and errors over a norm."""

EMBEDDED = "fashion"
"""The data set that the package carries; entries on others name theirs in the file's name."""

_ROOT = r"(?:~|[A-Za-z]:)?[/\\]"
_PRINTS = re.compile(r" --(?:quiet|force|open)(?= |$)")
_OF_A_MACHINE = re.compile(rf"""(?<=['"]){_ROOT}[^'"]*|(?<![\w.~:/\\'"]){_ROOT}[\w.\\/~@+-]*""")


@dataclass(frozen=True)
class Checked:
    """An entry with what is wrong with it.

    Attributes:
        path: its file.
        entry: None where it could not be read.
        faults: for which it is not shown, a line each.
        remarks: what a reader should know, a line each.
    """

    path: Path
    entry: LeaderboardEntry | None
    faults: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def place_of(entry: LeaderboardEntry) -> Path:
    """Return the place of an entry in its folder: ``PAYLOAD/METHOD[-DEFENSE][-reach-SETTING][-DATASET].json``."""
    work = "" if entry.reach is None else f"reach-{entry.reach.setting}"
    data = "" if entry.dataset == EMBEDDED else entry.dataset
    parts = [entry.method, entry.defense if entry.defenses else "", work, data]
    return Path(slug(entry.target)) / f"{'-'.join(slug(part) for part in parts if part)}.json"


def slug(name: str) -> str:
    """Return a name as file names have it.

    >>> slug("my_package.methods:Mine"), slug("noise:scale=0.1")
    ('my_package.methods-Mine', 'noise-scale-0.1')
    """
    return re.sub(r"[^\w.]+", "-", name).strip("-.") or "unnamed"


def without_folders(command: str) -> str:
    """Return a command with every absolute path as ``DIR/`` and its last part: nothing of the machine goes into an entry.

    >>> without_folders("fedpriv attack --data-dir /home/me/data/cifar --out results/mine")
    'fedpriv attack --data-dir DIR/cifar --out results/mine'
    >>> without_folders("fedpriv.attack('/home/me/my runs/one', target='entangled')")
    "fedpriv.attack('DIR/one', target='entangled')"
    """
    return _OF_A_MACHINE.sub(lambda found: "DIR/" + re.split(r"[\\/]", found[0].rstrip("\\/"))[-1], command)


def without_print(command: str) -> str:
    """Return a command without the flags that change what it prints and replaces, and nothing that it finds.

    >>> without_print("fedpriv attack --target model --out results/model --force --quiet")
    'fedpriv attack --target model --out results/model'
    """
    return _PRINTS.sub("", command)


def check_folder(folder: Path) -> tuple[Checked, ...]:
    """Return every entry of a leaderboard, checked, by their files.

    Raises:
        UserError: where there is no such folder, or no entry in it.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected one with PAYLOAD/METHOD.json in it")
    found: list[Checked] = []
    for place in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        try:
            names = sorted(os.listdir(place))
        except OSError as error:
            found.append(Checked(place, None, (f"cannot be read ({reason(error)})",)))
            continue
        found += [check_file(place / name) for name in names if name.endswith(".json")]
    if not found:
        raise UserError(f"{folder}: holds no entry; expected PAYLOAD/METHOD.json in it")
    return tuple(found)


def check_file(path: Path) -> Checked:
    """Return one entry, checked."""
    try:
        entry = read_record(path)
    except UserError as error:
        return Checked(path, None, (str(error).removeprefix(f"{path}: "),))
    if not isinstance(entry, LeaderboardEntry):
        return Checked(path, None, (f"a record of kind {entry.kind!r}, not 'leaderboard-entry'",))
    return Checked(path, entry, tuple(_faults(entry, path)), tuple(_remarks(entry)))


def _faults(entry: LeaderboardEntry, path: Path) -> Iterator[str]:
    yield from _misplaced(entry, path)
    if entry.scoring_version != SCORING_VERSION:
        yield f"scored by version {entry.scoring_version} of the rules, here is {SCORING_VERSION}; run its command again"
    if entry.target not in target_names() and ":" not in entry.target:
        yield f"field 'target': unknown kind of upload {entry.target!r}; there are: {', '.join(target_names())}"
    if (is_reference(entry.method) or entry.method not in METHODS) and not entry.source:
        yield f"field 'source': say where {entry.method!r} is described, as this package has no such method"
    for moment, share in entry.accuracy.items():
        if not 0 <= share <= 1:
            yield f"field 'accuracy.{moment}': {share:g} is not between 0 and 1"
    if entry.upload_bytes is not None and entry.upload_bytes < 0:
        yield f"field 'upload_bytes': {entry.upload_bytes:g} is below 0"
    if not entry.attacks:
        yield "field 'attacks': none"
    if not entry.commands:
        yield "field 'commands': none; a result that nobody can make again is no entry"
    for command in entry.commands:
        if without_folders(command) != command and "DIR/" not in command:
            yield f"field 'commands': names a folder of a machine; write {without_folders(command)!r}"
    names = [(one.name, one.verdict.attack, str(one.knowledge)) for one in entry.attacks]
    for name, _, _ in {one for one in names if names.count(one) > 1}:
        yield f"attack {name!r}: twice under one card"
    for one in entry.attacks:
        yield from (f"attack {one.name!r}: {fault}" for fault in _attack_faults(one, entry))


def _misplaced(entry: LeaderboardEntry, path: Path) -> Iterator[str]:
    if path.parent.name != slug(entry.target):
        yield f"lies under {path.parent.name!r}, but is of {entry.target!r} uploads"
    if path.stem != slug(entry.method) and not path.stem.startswith(f"{slug(entry.method)}-"):
        yield f"is called {path.stem!r}, but is of the method {entry.method!r}; expected {place_of(entry).name}"


def _attack_faults(one: EnteredAttack, entry: LeaderboardEntry) -> Iterator[str]:
    verdict = one.verdict
    if _known(one.name) and entry.target in target_names() and entry.target not in ATTACKS.load(one.name).targets:
        yield f"is not on {entry.target} uploads"
    if verdict.target != entry.target:
        yield f"its verdict is on {verdict.target} uploads"
    if entry.run is not None:
        if one.knowledge.rounds_seen > entry.run.rounds:
            yield f"saw {one.knowledge.rounds_seen} rounds of {entry.run.rounds}"
        if verdict.n_clients > entry.run.clients:
            yield f"{verdict.n_clients} clients of {entry.run.clients}"
    for compared in verdict.compared:
        yield from _comparison_faults(compared)
    right = _kind(verdict)
    missing = {reason.name for reason in left_open(verdict.compared)} - {reason.name for reason in verdict.reasons}
    if missing and verdict.n_seeds == 1 and not (verdict.clear and verdict.question):
        yield f"gives no reason {sorted(missing)[0]!r}, which follows from its comparisons"
    if verdict.kind != right:
        yield f"its finding is {verdict.kind!r}, but from its comparisons and reasons follows {right!r}"


def _known(attack: str) -> bool:
    """True for an attack that is registered here; what a file refers to by module is not imported for a check."""
    return not is_reference(attack) and attack in ATTACKS


def _comparison_faults(one: JudgedComparison) -> Iterator[str]:
    where = f"{one.measure}, {one.stratum}"
    if one.ci95 is not None and one.mean is not None and not one.ci95[0] - 1e-9 <= one.mean <= one.ci95[1] + 1e-9:
        yield f"{where}: mean {one.mean:g} lies outside its interval {one.ci95[0]:g} to {one.ci95[1]:g}"
    for name, value in (("p-value", one.p_value), ("adjusted p-value", one.adjusted)):
        if value is not None and not 0 <= value <= 1:
            yield f"{where}: {name} {value:g} is not between 0 and 1"
    if one.adjusted is not None and one.p_value is not None and one.adjusted < one.p_value - 1e-12:
        yield f"{where}: adjusted p-value {one.adjusted:g} is below the p-value {one.p_value:g}"
    if one.value is not None and one.measure not in _OF_ANY_SIZE and not 0 <= one.value <= 1:
        yield f"{where}: value {one.value:g} is not between 0 and 1"
    claimed = one.adjusted is not None and one.adjusted <= FALSE_CLAIMS and one.n_clients >= FEW_CLIENTS
    if one.stands != claimed:
        yield f"{where}: 'stands' is {str(one.stands).lower()}, but by its p-value and clients it is {str(claimed).lower()}"


def _kind(verdict: Verdict) -> str:
    """Return the kind that follows from what a verdict lists."""
    if verdict.clear and verdict.question:
        return "property"
    standing = {one.measure for one in verdict.claims}
    return next(
        (kind for measure, kind in MAKES.items() if measure in standing), "untested" if verdict.reasons else "none"
    )


def _is_missed(attack: Any, entry: LeaderboardEntry) -> bool:
    """True for an attack of a default suite that the entry's knowledge leaves a use for."""
    if _is_left_out(attack, entry.reach):
        return False
    needs: Needs = attack.needs
    return not any(needs.without_what_is_granted(one.knowledge) for one in entry.attacks)


def _is_left_out(attack: Any, reach: Reach | None) -> bool:
    """True where a suite that asks how far a leak reaches leaves an attack out at a setting."""
    if reach is None:
        return False
    if (
        attack.result != "images"
    ):  # who was trained on is asked at both ends, a client as a whole is asked about at the last
        last = reach.place == len(reach.series) - 1
        return not last and (reach.place != 0 or attack.asks != "images")
    steps, images = NOT_FAR.get(attack.name, (reach.steps, reach.images))
    return reach.place != 0 and (reach.steps > steps or reach.images > steps * images)


def _remarks(entry: LeaderboardEntry) -> Iterator[str]:
    run = {one.name for one in entry.attacks}
    usual = default_suite(entry.target) if entry.target in target_names() else ()
    missing = [one for one in usual if one not in run and _is_missed(ATTACKS.load(one), entry)]
    if missing:
        yield f"not attacked by {', '.join(missing)}, which the default suite on {entry.target} uploads holds"
    for one in entry.attacks:
        now = getattr(ATTACKS.load(one.name), "version", 1) if _known(one.name) else one.version
        if now != one.version:
            yield f"made by version {one.version} of {one.name}, which is now {now}"
