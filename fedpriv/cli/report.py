"""``fedpriv report``: one page over attack directories, one over run directories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import rich_click as click

from fedpriv.cli import common
from fedpriv.util import folders
from fedpriv.util.errors import UserError
from fedpriv.util.files import read_json

Kind = Literal["attack", "membership", "run", "study"]


@click.command()
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the report (default: results/report).")
@click.option("--target-accuracy", type=float, help="For runs: the cost of reaching it (default: 0.7).")
@click.option("--strict", is_flag=True, help="Refuse what did not come to its end (run, suite, study); default: warn.")
@click.option("--force", is_flag=True, help="Replace the folder if it exists.")
@common.common_options
def report(
    directories: tuple[Path, ...],
    out: Path | None,
    target_accuracy: float | None,
    strict: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Report on attack and run directories, studies, and folders that hold some of them.

    Attacks give report.html, report.md and results.csv: what leaked. Runs give runs.html, runs.md, runs.csv and
    pictures: accuracy by round and by communication, per client, and the prototypes that were uploaded.
    """
    from fedpriv.pages.report import write_report
    from fedpriv.pages.runs_report import PAGE, TARGET_ACCURACY, check_target, write_runs_report
    from fedpriv.pages.study_report import read_results, together

    found, strangers = result_directories(directories)
    studies = {folder: read_results(folder) for folder in found["study"]}
    attacks = _each_once([*found["attack"], *(place for images, _, _ in studies.values() for place in images)])
    members = _each_once([*found["membership"], *(place for _, scores, _ in studies.values() for place in scores)])
    sources = [*(place for places in found.values() for place in places), *attacks, *members]
    if out is not None:
        for place in sources:
            folders.refuse_overlap(out, {"results": place})
        for place in directories:
            folders.refuse_overlap(out, {}, around={"folder": place})
    runs, skipped = finished_runs(found["run"])
    leaks = bool(attacks or members or studies)
    if target_accuracy is not None and not runs:
        named = f"; pass those of the study, {next(iter(studies)) / 'runs'}" if studies else ""
        raise UserError(f"--target-accuracy: applies to runs{named or ', but only attacks were given'}")
    target = TARGET_ACCURACY if target_accuracy is None else target_accuracy
    check_target(target)
    complaints = [f"{line}; left out of the report" for line in [*strangers, *skipped]] + unfinished(directories)
    complaints += [
        f"{study}: cell {cell.cell} {cell.status}: {cell.why}"
        for study, (_, _, facts) in studies.items()
        for cell in facts.failed
    ]
    if complaints and strict:
        raise UserError(f"--strict: {complaints[0]}")
    if not (leaks or runs):
        raise UserError(skipped[0])
    for line in complaints:
        common.say(f"warning: {line}", quiet=quiet, as_json=True)
    folder = out or folders.numbered(Path("results") / "report")
    with folders.output(folder, "report", force=force):
        if runs:
            write_runs_report(runs, folder, target_accuracy=target, attacks="report.html" if leaks else None)
        if leaks:
            study = together({place: facts for place, (_, _, facts) in studies.items()})
            write_report(attacks, folder, members, runs=PAGE if runs else None, study=study)
    if as_json:
        shown = {"attacks": [*attacks, *members], "runs": runs}
        common.print_json({"out": str(folder), **{kind: [str(p) for p in paths] for kind, paths in shown.items()}})
        return
    for name, some in (("report.html", leaks), (PAGE, bool(runs))):
        if some:
            common.say(f"report: {folder / name}", quiet=quiet, as_json=False)


def result_directories(paths: tuple[Path, ...]) -> tuple[dict[Kind, list[Path]], list[str]]:
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
            raise UserError(f"{path}: no such folder; expected one made by fedpriv attack or fedpriv train")
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


def _each_once(paths: Sequence[Path]) -> list[Path]:
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
    from fedpriv.federation.run_directory import RunDirectory

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


def unfinished(paths: tuple[Path, ...]) -> list[str]:
    """Return a line for every suite of attacks among or below the folders that did not come to its end."""
    suites = {file.parent for path in paths for file in (*path.glob("request.json"), *path.glob("*/request.json"))}
    lines = []
    for suite in sorted(suites):
        if (suite / "report.html").is_file():  # written last
            continue
        wanted = read_json(suite / "request.json").get("results", [])
        missing = [name for name in wanted if _kind(suite / name) is None]
        if missing:
            lines.append(f"{suite}: unfinished, {', '.join(missing)} missing; repeat its command with --resume")
    return lines


def _kind(path: Path) -> Kind | None:
    from fedpriv.pages.study_report import is_study
    from fedpriv.scoring.score_records import holds_scores
    from fedpriv.scoring.storage import is_attack_directory

    if is_study(path):
        return "study"
    if is_attack_directory(path):
        return "attack"
    if holds_scores(path):
        return "membership"
    return "run" if (path / "config.json").is_file() else None
