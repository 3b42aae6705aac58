"""Folders of results: that of ``fedpriv attack``, and which folders hold what among and below those that are named."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fedpriv.eval.storage import ABOUT, PRIVACY_AUDIT, RECONSTRUCTION, holds_scores, is_attack_directory
from fedpriv.federation.run_directory import RunConfig
from fedpriv.reports.study_report import is_study
from fedpriv.util import files, folders
from fedpriv.util.config import plain
from fedpriv.util.errors import UserError
from fedpriv.util.foreign import json_value

if TYPE_CHECKING:
    from fedpriv.pipeline.plan import AttackPlan

T = TypeVar("T")

Kind = Literal["attack", "membership", "privacy", "run", "study"]

REQUEST = "request.json"
"""What is asked for, by which an interrupted suite knows its own continuation."""

_REQUESTED = (*("target", "attacks", "inferences", "n_targets", "round", "rounds_seen", "control", "seed", "redact"),)
"""Fields of a plan that make a request another."""


def request_of(plans: Sequence[AttackPlan], run: Path | None, config: RunConfig | None) -> dict[str, Any]:
    """Return the request that plans are, on a run, or on runs that are trained first (``config``: the first of them)."""
    known = None
    if run is not None:  # wherever the run stands; a summary holds the time it took
        summary = run / "summary.json"
        known = files.identity(run) or (files.digest(summary) if summary.is_file() else None)
    request = {name: getattr(plans[0], name) for name in _REQUESTED} | {
        "run": None if run is None else os.fspath(run.resolve()),
        "identity": known,
        "config": config,
        "knowledge": plans[0].card,
        "results": tuple(name for entry in plans for name in entry.results()),
        "reach": {item.reach.name: item.attacks for item in plans if item.reach is not None},
    }
    return {name: plain(value) for name, value in request.items()}


@contextlib.contextmanager
def results_folder(
    folder: Path, request: Mapping[str, Any], *, run: Path | None, resume: bool, force: bool
) -> Iterator[None]:
    """Take the folder of results and hold it: a new one that holds the request, or that of an interrupted attack.

    A folder that was made for a request that turns out to be refused is removed again, unless a run was trained in it.
    """
    data_dir = (request["config"] or {}).get("data_dir")
    folders.refuse_overlap(folder, {"run": run}, around={"data_dir": None if data_dir is None else Path(data_dir)})
    # A folder that is marked and empty is one where an interrupt came before the request: nothing was begun.
    resume = resume and (folders.occupied(folder) or files.identity(folder) is None)
    if resume:
        _refuse_other(folder, request)
    refused: UserError | None = None
    with folders.output(folder, "attacks", force=force, resume=resume):
        if not resume:
            files.write_json(folder / REQUEST, request)
        try:
            yield
        except UserError as error:
            if resume or any(is_result(path) for path in folder.iterdir()):
                raise
            refused = error
    if refused is not None:
        if (folder / "run" / "summary.json").is_file():
            hint = f"the run is trained: go on with run {folder / 'run'} and another out"
            raise UserError(f"{refused} ({hint})") from refused
        files.remove(folder)
        raise refused


def _refuse_other(folder: Path, request: Mapping[str, Any]) -> None:
    """Check that an interrupted suite is gone on with as it was asked for, on the very run that it began with."""
    before = files.read_json(folder / REQUEST)
    if not isinstance(before, dict):
        raise UserError(f"{folder / REQUEST}: expected an object, got {type(before).__name__}")
    if before.get("identity") != request["identity"]:
        raise UserError(f"{folder}: attacks a run that is not the one at {request['run']} now; choose another out")
    alike: dict[str, Any] = dict.fromkeys(("run", "results", "reach"))  # a run that was moved is still the same
    for name in ("attacks", "inferences"):  # more of them go on from what is there
        alike[name] = {key: value for key, value in request[name].items() if key in (before.get(name) or {})}
    changed = differences({**before, **dict.fromkeys(("run", "results", "reach"))}, {**request, **alike})
    if changed:
        flags = f"made with other flags ({', '.join(changed)} differ)"
        raise UserError(f"{folder}: was {flags}; resume with the same flags")


def differences(before: Any, now: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the differences of two nested mappings: dotted name -> both values."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return {prefix: (before, now)} if before != now else {}
    result: dict[str, tuple[Any, Any]] = {}
    for key in {**before, **now}:
        name = f"{prefix}.{key}" if prefix else str(key)
        result |= differences(before.get(key, "not set"), now.get(key, "not set"), name)
    return result


# ---------------------------------------------------------------- what is there


def result_directories(paths: Sequence[Path]) -> tuple[dict[Kind, list[Path]], list[str]]:
    """Return the directories of results, runs and studies among and below the given folders, in order, by kind."""
    empty: list[str] = []
    results: dict[Kind, list[Path]] = {"attack": [], "membership": [], "privacy": [], "run": [], "study": []}
    seen: set[Path] = set()
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path}: no such folder; expected one that attack, train or audit made")
        inside = _inside(path)
        if not inside:
            empty.append(f"{path}: holds neither an attack result (about.json) nor a run (config.json), nor a study")
        for position, kind in inside:
            if position.resolve() not in seen:
                results[kind].append(position)
                seen.add(position.resolve())
    if len(empty) == len(paths):
        raise UserError(empty[0])
    return results, empty


def each_once(results: Iterable[tuple[Path, T]]) -> dict[Path, T]:
    """Return results by their folders, of several at one place the first."""
    paths: dict[Path, tuple[Path, T]] = {}
    for path, result in results:
        paths.setdefault(path.resolve(), (path, result))
    return dict(paths.values())


def _inside(path: Path, depth: int = 2) -> list[tuple[Path, Kind]]:
    """Return a result folder itself with its kind, or the result folders at most ``depth`` levels below it."""
    kind = _kind(path)
    if kind is not None:
        return [(path, kind)]
    below = sorted(path.iterdir()) if depth and path.is_dir() else []
    return [result for position in below for result in _inside(position, depth - 1)]


def unfinished(paths: Sequence[Path]) -> list[str]:
    """Return a line for every suite of attacks among or below the folders that lacks results it was asked for."""
    suites = {file.parent for path in paths for file in (*path.glob(REQUEST), *path.glob(f"*/{REQUEST}"))}
    lines = []
    for suite in sorted(suites):
        done = (suite / "report.html").is_file()  # written last
        try:
            request = files.read_json(suite / REQUEST)
            names = request.get("results", []) if isinstance(request, dict) else None
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise UserError(f"{suite / REQUEST}: expected the names of results under 'results'")
        except UserError as error:
            lines.append(f"{error}; which results there should be is not known")
            continue
        if done:  # at a further setting of a sweep an attack may refuse the upload
            names = [name for name in names if "-reach-" not in name or (suite / name / ABOUT).exists()]
        # Of a suite that is done, a damaged result is told of where it is read.
        missing = [name for name in names if not (_kind(suite / name) if done else is_result(suite / name))]
        if missing:
            why = "restore it, or attack again" if done else "at work, or to go on with by resume"
            lines.append(f"{suite}: {', '.join(missing)} missing; {why}")
    return lines


def _kind(path: Path) -> Kind | None:
    """Return the kind of thing that a folder holds, or held before it was damaged."""
    if is_study(path):
        return "study"
    if is_or_was_attack(path):
        return "attack"
    if holds_scores(path):
        return "membership"
    if (path / PRIVACY_AUDIT).is_file():
        return "privacy"
    left = all((path / name).is_file() for name in ("summary.json", "ledger.jsonl"))
    return "run" if left or (path / "config.json").is_file() else None


def is_result(path: Path) -> bool:
    """True for a folder that holds a result that came to its end."""
    return is_attack_directory(path) or holds_scores(path)


def is_or_was_attack(path: Path) -> bool:
    """True for an attack's folder, also where the record of how it was made is missing beside results, or not readable."""
    if is_attack_directory(path) or (path / RECONSTRUCTION).is_file():
        return True
    if not (path / ABOUT).is_file():
        return False
    try:
        json_value((path / ABOUT).read_bytes())
    except (OSError, ValueError):
        return True
    return False
