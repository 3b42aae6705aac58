"""Which folders hold what: attacks, inferences, runs and studies among and below those that are named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from fedpriv.experiment.results_folder import REQUEST
from fedpriv.pages.study_report import is_study
from fedpriv.scoring.storage import ABOUT, PRIVACY_AUDIT, RECONSTRUCTION, holds_scores, is_attack_directory
from fedpriv.util.errors import UserError
from fedpriv.util.files import read_json
from fedpriv.util.folders import busy
from fedpriv.util.foreign import json_value

T = TypeVar("T")

Kind = Literal["attack", "membership", "privacy", "run", "study"]


def result_directories(paths: Sequence[Path]) -> tuple[dict[Kind, list[Path]], list[str]]:
    """Return the directories of results, runs and studies among and below the given folders, in order, by kind."""
    auxiliary: list[str] = []
    results: dict[Kind, list[Path]] = {"attack": [], "membership": [], "privacy": [], "run": [], "study": []}
    seen: set[Path] = set()
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path}: no such folder; expected one that attack, train or audit made")
        kinds = [(position, kind) for position in _inside(path) if (kind := holds(position)) is not None]
        if not kinds:
            auxiliary.append(
                f"{path}: holds neither an attack result (about.json) nor a run (config.json), nor a study"
            )
        for index, kind in kinds:
            if index.resolve() not in seen:
                results[kind].append(index)
                seen.add(index.resolve())
    if len(auxiliary) == len(paths):
        raise UserError(auxiliary[0])
    return results, auxiliary


def each_once(results: Iterable[tuple[Path, T]]) -> dict[Path, T]:
    """Return results by their folders, of several at one place the first."""
    paths: dict[Path, tuple[Path, T]] = {}
    for path, result in results:
        paths.setdefault(path.resolve(), (path, result))
    return dict(paths.values())


def _inside(path: Path, depth: int = 2) -> list[Path]:
    """Return a result folder itself, or the result folders at most ``depth`` levels below it."""
    if holds(path) is not None:
        return [path]
    if depth == 0 or not path.is_dir():
        return []
    return [result for position in sorted(path.iterdir()) for result in _inside(position, depth - 1)]


def unfinished(paths: Sequence[Path]) -> list[str]:
    """Return a line for every suite of attacks among or below the folders that lacks results it was asked for."""
    suites = {file.parent for path in paths for file in (*path.glob(REQUEST), *path.glob(f"*/{REQUEST}"))}
    lines = []
    for suite in sorted(suites):
        try:
            wanted = _wanted(suite)
        except UserError as error:
            lines.append(f"{error}; which results there should be is not known")
            continue
        done = (suite / "report.html").is_file()  # written last
        # Of a suite that is done, a damaged result is told of where it is read.
        missing = [name for name in wanted if not (holds(suite / name) if done else _is_result(suite / name))]
        if missing and done:
            lines.append(f"{suite}: {', '.join(missing)} missing, though it was made; restore it, or attack again")
        elif missing and busy(suite):
            lines.append(f"{suite}: still at work, {', '.join(missing)} to come")
        elif missing:
            lines.append(f"{suite}: unfinished, {', '.join(missing)} missing; repeat its command with resume")
    return lines


def _wanted(suite: Path) -> list[str]:
    """Return the names of the results that a suite was asked for.

    At a further setting of a sweep an attack may refuse the upload; in a suite that is done it is then not missed.
    """
    json = read_json(suite / REQUEST)
    names = json.get("results", []) if isinstance(json, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{suite / REQUEST}: expected the names of results under 'results'")
    done = (suite / "report.html").is_file()
    if done and json.get("reach"):
        return [name for name in names if "-reach-" not in name or (suite / name / ABOUT).exists()]
    return names


def holds(path: Path) -> Kind | None:
    """Return the kind of thing that a folder holds, or held before it was damaged."""
    if is_study(path):
        return "study"
    if is_or_was_attack(path):
        return "attack"
    if holds_scores(path):
        return "membership"
    if (path / PRIVACY_AUDIT).is_file():
        return "privacy"
    run = ("config.json", "summary.json", "ledger.jsonl")
    return "run" if (path / run[0]).is_file() or all((path / name).is_file() for name in run[1:]) else None


def _is_result(path: Path) -> bool:
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
