"""The verb ``report``: one page over attacks, one over runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedpriv.experiment.result_folders import each_once, finished_runs, result_directories, unfinished
from fedpriv.experiment.scratch import Scratch, place
from fedpriv.experiment.verbs.result import AttackResult
from fedpriv.experiment.verbs.training import Run
from fedpriv.pages.baselines import baselines
from fedpriv.pages.report import write_report
from fedpriv.pages.runs_report import PAGE, TARGET_ACCURACY, check_target, write_runs_report
from fedpriv.pages.study_report import read_results, study_runs, together
from fedpriv.util import folders
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.listener import SILENT, Listener

Reportable = AttackResult | Run | str | Path


@dataclass(frozen=True)
class Report:
    """A report that was written. A temporary one (no ``out``) is removed when nothing refers to this object any more.

    Attributes:
        path: folder of the pages.
        pages: ``report.html`` over attacks, ``runs.html`` over runs; one or both.
        attacks: folders of attacks and inferences that are in it.
        runs: folders of runs that are in it.
        notices: what was left out, and why.
    """

    path: Path
    pages: tuple[Path, ...]
    attacks: tuple[Path, ...]
    runs: tuple[Path, ...]
    notices: tuple[str, ...] = ()
    _scratch: Scratch | None = field(default=None, repr=False, compare=False)

    def _repr_html_(self) -> str:
        return "".join(page.read_text(encoding="utf-8") for page in self.pages)


def report(
    results: Reportable | Sequence[Reportable],
    *,
    out: str | Path | None = None,
    target_accuracy: float | None = None,
    strict: bool = False,
    force: bool = False,
    listener: Listener = SILENT,
) -> Report:
    """Report on attacks, runs and studies: what leaked, what it cost, how well it learned.

    Attacks give ``report.html``, ``report.md`` and ``results.csv``; runs give ``runs.html``, ``runs.md``, ``runs.csv`` and
    pictures.

    Args:
        results: what :func:`fedpriv.attack` and :func:`fedpriv.train` returned, or folders that hold such results.
        out: folder to make; None for a temporary one, which is gone with the returned object.
        target_accuracy: for runs: the cost of reaching it, in (0, 1] (default 0.7).
        strict: refuse what did not come to its end (run, suite, study); otherwise it is left out, and said.
        force: replace ``out`` if it exists.
        listener: hears of what is left out.

    Raises:
        UserError: for folders that hold no results, or an ``out`` that overlaps them.
    """
    several = [results] if isinstance(results, (AttackResult, Run, str, Path)) else list(results)
    given = [one.path if isinstance(one, (AttackResult, Run)) else Path(one) for one in several]
    if not given:
        raise UserError(f"{argument('results', several)}: expected at least one")
    found, strangers = result_directories(given)
    studies = {folder: read_results(folder) for folder in found["study"]}
    attacks = each_once([*found["attack"], *(path for images, _, _ in studies.values() for path in images)])
    members = each_once([*found["membership"], *(path for _, scores, _ in studies.values() for path in scores)])
    if out is not None:
        _refuse_overlap(Path(out), [*(path for paths in found.values() for path in paths), *attacks, *members], given)
    runs, skipped = finished_runs(found["run"])
    leaks = bool(attacks or members or studies)
    if target_accuracy is not None and not runs:
        named = f"; pass those of the study, {next(iter(studies)) / 'runs'}" if studies else ""
        where = argument("target_accuracy")
        raise UserError(f"{where}: applies to runs{named or ', but only attacks were given'}")
    target = TARGET_ACCURACY if target_accuracy is None else target_accuracy
    check_target(target)
    complaints = [f"{line}; left out of the report" for line in [*strangers, *skipped]] + unfinished(given)
    complaints += [
        f"{study}: cell {cell.cell} {cell.status}: {cell.why}"
        for study, (_, _, facts) in studies.items()
        for cell in facts.failed
    ]
    if complaints and strict:
        raise UserError(f"{argument('strict')}: {complaints[0]}")
    if not (leaks or runs):
        raise UserError(skipped[0])
    for line in complaints:
        listener.say(f"warning: {line}")
    folder, scratch = place(out)
    with folders.output(folder, "report", force=force):
        if runs:
            write_runs_report(runs, folder, target_accuracy=target, attacks="report.html" if leaks else None)
        if leaks:
            study = together({path: facts for path, (_, _, facts) in studies.items()})
            alone = baselines([*runs, *(run for path in studies for run in study_runs(path))])
            write_report(attacks, folder, members, runs=PAGE if runs else None, study=study, alone=alone)
    pages = tuple(folder / name for name, some in (("report.html", leaks), (PAGE, bool(runs))) if some)
    return Report(folder, pages, (*attacks, *members), tuple(runs), tuple(complaints), scratch)


def _refuse_overlap(out: Path, sources: Sequence[Path], given: Sequence[Path]) -> None:
    for path in sources:
        folders.refuse_overlap(out, {"results": path})
    for path in given:
        folders.refuse_overlap(out, {}, around={"folder": path})
