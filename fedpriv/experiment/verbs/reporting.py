"""The verb ``report``: one page over attacks, one over runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedpriv.experiment.named_code import imports_what_is_named
from fedpriv.experiment.result_folders import each_once, result_directories, unfinished
from fedpriv.experiment.scratch import Scratch, place
from fedpriv.experiment.verbs.privacy_auditing import PrivacyAudit
from fedpriv.experiment.verbs.result import AttackResult, given_folders
from fedpriv.experiment.verbs.training import Run
from fedpriv.pages.page import readable
from fedpriv.pages.report import load_scored, write_results
from fedpriv.pages.run_records import baselines, check_run
from fedpriv.pages.runs_report import PAGE, TARGET_ACCURACY, check_target, write_runs_report
from fedpriv.pages.study_report import read_results, together
from fedpriv.scoring.redaction import NONE, read_rule
from fedpriv.scoring.storage import load_privacy_audit, load_scores
from fedpriv.util import files, folders
from fedpriv.util.errors import UserError
from fedpriv.util.parallel import SILENT, Listener

Reportable = AttackResult | Run | PrivacyAudit | str | Path


@dataclass(frozen=True)
class Report:
    """A report that was written. A temporary one (no ``out``) is removed when nothing refers to this object any more.

    Attributes:
        path: folder of the pages.
        pages: ``report.html`` over attacks, ``runs.html`` over runs, one or both.
        attacks: folders of attacks, inferences and audits of epsilon that are in it.
        runs: folders of runs that are in it.
        notices: what was left out, and why, a line each.
    """

    path: Path
    pages: tuple[Path, ...]
    attacks: tuple[Path, ...]
    runs: tuple[Path, ...]
    notices: tuple[str, ...] = ()
    _scratch: Scratch | None = field(default=None, repr=False, compare=False)

    def _repr_html_(self) -> str:
        return "".join(page.read_text(encoding="utf-8") for page in self.pages)


@imports_what_is_named
def report(
    results: Reportable | Sequence[Reportable],
    *,
    out: str | Path | None = None,
    target_accuracy: float | None = None,
    strict: bool = False,
    redact: str | None = None,
    force: bool = False,
    share_group: bool = False,
    allow_code: str | Sequence[str] = (),
    listener: Listener = SILENT,
) -> Report:
    """Report on attacks, runs and studies: what leaked, what it cost, how well it learned.

    Attacks give ``report.html``, ``report.md`` and ``results.csv``; runs give ``runs.html``, ``runs.md``, ``runs.csv`` and
    pictures.

    Args:
        results: what :func:`fedpriv.attack`, :func:`fedpriv.train` and :func:`fedpriv.audit_dp` returned, or folders that
            hold such results.
        out: folder to make; None for a temporary one, which is gone with the returned object.
        target_accuracy: for runs: the cost of reaching it, in (0, 1] (default 0.7).
        strict: refuse what did not come to its end (run, suite, study) or is damaged; otherwise it is left out, and both
            ``listener`` and the pages name it.
        redact: ``blur`` or ``omit`` pictures of people, so that the report can be passed on (docs/redaction.md). What
            is stored redacted is never shown by a milder rule.
        force: replace ``out`` if it exists.
        share_group: let your group read the report. It is yours alone otherwise, and with ``redact`` everybody's
            (docs/folders.md).
        allow_code: modules that may be imported although only a file names them (docs/reliability.md); one or several.
        listener: hears of what is left out.

    Raises:
        UserError: for folders that hold no results, or an ``out`` that overlaps them.
    """
    rule = read_rule(redact)
    given = given_folders(results, (AttackResult, Run, PrivacyAudit))
    result, auxiliary = result_directories(given)
    studies, no_studies = readable(result["study"], read_results)
    attacks, no_attacks = readable(result["attack"], load_scored)
    scores, no_scores = readable(result["membership"], load_scores)
    audits, no_audits = readable(result["privacy"], load_privacy_audit)
    runs, no_runs = readable(result["run"], check_run)
    left_out = [
        *no_studies,
        *no_attacks,
        *no_scores,
        *no_audits,
        *no_runs,
        *(one for s in studies.values() for one in s.left_out),
    ]
    attacks = each_once([*attacks.items(), *(entry for own in studies.values() for entry in own.attacks.items())])
    scores = each_once([*scores.items(), *(item for own in studies.values() for item in own.scores.items())])
    if out is not None:
        _refuse_overlap(Path(out), [*(path for paths in result.values() for path in paths), *attacks, *scores], given)
    trained_only = {path: group for path, group in studies.items() if group.facts.trained_only}
    of_studies, damaged = readable([run for selected in trained_only.values() for run in selected.runs], check_run)
    left_out, runs = [*left_out, *damaged], runs | of_studies
    leaks = bool(attacks or scores or audits or studies.keys() - trained_only.keys())
    if target_accuracy is not None and not runs:
        raise UserError("target_accuracy: applies to runs; pass some, such as those in the folder runs of a study")
    target = TARGET_ACCURACY if target_accuracy is None else target_accuracy
    check_target(target)
    complaints = [f"{line}; left out of the report" for line in [*auxiliary, *map(str, left_out)]] + unfinished(given)
    complaints += [
        f"{study}: cell {cell.cell} {cell.status}: {cell.why}"
        for study, current in studies.items()
        for cell in current.facts.failed
    ]
    if complaints and strict:
        raise UserError(f"strict: {complaints[0]}")
    if not (leaks or runs):
        raise UserError(str(left_out[0]))
    for line in complaints:
        listener.warn(line)
    folder, scratch = place(out)
    with files.sharing(share_group), folders.output(folder, "report", force=force, public=rule != NONE):
        if runs:
            beside = "report.html" if leaks else None
            write_runs_report(list(runs), folder, target_accuracy=target, attacks=beside, left_out=left_out)
        if leaks:
            write_results(
                list(attacks.values()),
                scores,
                folder,
                runs=PAGE if runs else None,
                study=together({path: own.facts for path, own in studies.items() if path not in trained_only}),
                alone=baselines([*runs, *(run for own in studies.values() for run in own.runs)]),
                left_out=left_out,
                audits=list(audits.values()),
                redact=rule,
            )
    pages = tuple(folder / name for name, some in (("report.html", leaks), (PAGE, bool(runs))) if some)
    return Report(folder, pages, (*attacks, *scores, *audits), tuple(runs), tuple(complaints), scratch)


def _refuse_overlap(out: Path, sources: Sequence[Path], given: Sequence[Path]) -> None:
    for path in sources:
        folders.refuse_overlap(out, {"results": path})
    for path in given:
        folders.refuse_overlap(out, {}, around={"folder": path})
