"""Which folders hold what: attacks, inferences, runs and studies among and below those that are named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from fedpriv.federation.run_directory import RunDirectory
from fedpriv.pages.study_report import is_study
from fedpriv.scoring.storage import holds_scores, is_attack_directory
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.files import read_json

Kind = Literal["attack", "membership", "run", "study"]


def result_directories(paths: Sequence[Path]) -> tuple[dict[Kind, list[Path]], list[str]]:
    """Return the attack, membership and run directories and the studies among and below the given folders, in order.

    Returns:
        The directories by kind, and a line for each given folder that holds none.

    Raises:
        UserError: for a folder that is missing, or where none of them holds any.
    """
    strangers: list[str] = []
    found: dict[Kind, list[Path]] = {"attack": [], "membership": [], "run": [], "study": []}
    seen: set[Path] = set()
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path}: no such folder; expected one that attack, train or audit made")
        kinds = [(place, kind) for place in _inside(path) if (kind := _kind(place)) is not None]
        if not kinds:
            strangers.append(
                f"{path}: holds neither an attack result (about.json) nor a run (config.json), nor a study"
            )
        for place, kind in kinds:
            if place.resolve() not in seen:
                found[kind].append(place)
                seen.add(place.resolve())
    if len(strangers) == len(paths):
        raise UserError(strangers[0])
    return found, strangers


def each_once(paths: Sequence[Path]) -> list[Path]:
    """Return paths, of several to one place the first."""
    found: dict[Path, Path] = {}
    for path in paths:
        found.setdefault(path.resolve(), path)
    return list(found.values())


def _inside(path: Path, depth: int = 2) -> list[Path]:
    """Return a result folder itself, or the result folders at most ``depth`` levels below it."""
    if _kind(path) is not None:
        return [path]
    if depth == 0 or not path.is_dir():
        return []
    return [found for place in sorted(path.iterdir()) for found in _inside(place, depth - 1)]


def finished_runs(runs: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the runs that came to their end, and a line for each that did not."""
    done: list[Path] = []
    lines: list[str] = []
    for path in runs:
        try:
            RunDirectory(path).require_complete()
        except UserError as error:
            lines.append(str(error))
        else:
            done.append(path)
    return done, lines


def unfinished(paths: Sequence[Path]) -> list[str]:
    """Return a line for every suite of attacks among or below the folders that did not come to its end."""
    suites = {file.parent for path in paths for file in (*path.glob("request.json"), *path.glob("*/request.json"))}
    lines = []
    for suite in sorted(suites):
        if (suite / "report.html").is_file():  # written last
            continue
        wanted = read_json(suite / "request.json").get("results", [])
        missing = [name for name in wanted if _kind(suite / name) is None]
        if missing:
            lines.append(
                f"{suite}: unfinished, {', '.join(missing)} missing; repeat its command with {argument('resume')}"
            )
    return lines


def _kind(path: Path) -> Kind | None:
    if is_study(path):
        return "study"
    if is_attack_directory(path):
        return "attack"
    if holds_scores(path):
        return "membership"
    return "run" if (path / "config.json").is_file() else None
