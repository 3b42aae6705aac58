"""The output of ``fedpriv attack`` and ``fedpriv score``: tables strongest first, and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.cli import common

if TYPE_CHECKING:
    from fedpriv.experiment.verbs.result import AttackResult
    from fedpriv.scoring.records import InferenceResult, ReconstructionRecord, Verdict


def show(result: AttackResult, *, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Print a result for a person, or for a program.

    The last lines are the findings, where the page is, and the next command.

    Args:
        result: of the suite.
        as_json: print the records.
        quiet: print nothing else.
        verbose: print all columns, and a paragraph on each attack.
    """
    verdicts = result.verdicts
    if as_json:
        judged = {name: verdict_json(one) for name, one in verdicts.items()}
        shown = {name: record.model_dump(mode="json") for name, record in result.scores.items()}
        kinds = ("membership", "property")
        named = {kind: {name: one for name, one in shown.items() if one["kind"] == kind} for kind in kinds}
        attacks = {name: record.model_dump(mode="json") for name, record in result.records.items()}
        found = [{"upload": one.name, "finding": one.short} for one in result.findings]
        told = {"verdicts": judged, "findings": found, "reach": list(result.reach)}
        common.print_json({"out": str(result.path), "attacks": attacks, **named, **told})
        return
    if quiet:
        return
    show_attacks(
        {result.path / name: record for name, record in result.records.items()},
        {result.path / name: verdict for name, verdict in verdicts.items()},
        verbose=verbose,
    )
    if verbose:
        _show_inferences(result, verdicts)
    _show_findings(result)
    common.tell("")
    for name in result.records if verbose else ():
        picture = result.path / name / "grid.png"
        if picture.exists():  # under --redact omit none is drawn
            common.tell(f"image grid: {picture}")
    common.tell(f"report: {result.path / 'report.html'}")
    common.tell(f"next:   {common.command_line('report', result.path, '--open')}")


def _show_inferences(result: AttackResult, verdicts: Mapping[str, Verdict]) -> None:
    """Print tables and verdicts of membership and of properties."""
    from fedpriv.pages.membership_report import row as membership_row
    from fedpriv.pages.property_report import row as property_row
    from fedpriv.scoring.verdict import TOGETHER

    members = {name: record for name, record in result.scores.items() if record.kind == "membership"}
    answers = {name: record for name, record in result.scores.items() if record.kind == "property"}
    _show_scores(members, [membership_row(record) for record in members.values()], verdicts)
    _show_scores(answers, [property_row(record) for record in answers.values()], verdicts)
    common.tell("", TOGETHER)


def _show_findings(result: AttackResult) -> None:
    """Print of each upload one sentence and four marks."""
    from fedpriv.pages.upload_card import marks

    for finding in result.findings:
        told = marks([one.verdict for one in finding.told])
        common.tell("", *common.filled(f"{finding.name}: {finding.short}"))
        common.tell(*common.filled_parts([f"{mark.sign} {mark.question}: {mark.words}" for mark in told]))


def verdict_json(verdict: Verdict) -> dict[str, object]:
    """Return a verdict as a program reads it, with its words."""
    from fedpriv.scoring.verdict import words

    return {**verdict.model_dump(mode="json"), "words": words(verdict)}


def _show_scores(
    records: Mapping[str, InferenceResult], rows: Sequence[Mapping[str, str]], verdicts: Mapping[str, Verdict]
) -> None:
    """Print the table and the verdicts of one inference."""
    from fedpriv.pages.score_section import varying
    from fedpriv.scoring.verdict import words

    for name in dict.fromkeys(record.attack for record in records.values()):
        own = [row for row, record in zip(rows, records.values(), strict=True) if record.attack == name]
        common.print_table(name, varying(own), as_json=False)
    for place in records:
        common.tell(f"{place}: {words(verdicts[place])}")


def show_attacks(
    results: Mapping[Path, ReconstructionRecord],
    verdicts: Mapping[Path, Verdict],
    *,
    with_folder: bool = False,
    verbose: bool = True,
) -> None:
    """Print a table for each knowledge card, strongest attack first, and under all of them the verdicts in that order.

    An attack that ran with several budgets stands in it with the largest, and has a table of its budgets below.

    Args:
        results: records by folder.
        verdicts: on all that is shown together, by the same folders.
        with_folder: call attacks by their folders.
        verbose: all columns, and the sentences.
    """
    from fedpriv.pages.card import differing
    from fedpriv.scoring.ranking import by_budget, strongest_first, title
    from fedpriv.scoring.verdict import words

    series = by_budget(list(results.items()), lambda item: item[1], lambda item: None)
    rankings = strongest_first([members[-1] for members in series], lambda item: item[1])
    cards = differing([members[0][1].knowledge for members in rankings])
    for members, card in zip(rankings, cards, strict=True):
        named = f", {card}" if card else ""
        rows = [summary_row(record) for _, record in members]
        if not verbose:
            rows = [_short(row, verdicts[path]) for row, (path, _) in zip(rows, members, strict=True)]
        common.print_table(f"leakage (dB of PSNR, mean over targets){named}", rows, as_json=False)
    for members in series:
        if len(members) > 1:
            name = title(members[0][1].model_copy(update={"budget": None}))
            common.print_table(f"{name} by budget", [_budget_row(record) for _, record in members], as_json=False)
    for path, record in (item for members in rankings for item in members if verbose):
        common.tell(f"{path if with_folder else title(record)}: {words(verdicts[path])}")


def _short(row: Mapping[str, str], verdict: Verdict) -> dict[str, str]:
    """Return the columns that a reader in haste wants."""
    from fedpriv.scoring.verdict import BADGES

    guess = row["floor (best blind guess)"].partition(" (")[0]
    kept = {"attack": row["attack"], "PSNR": row["PSNR"], "best guess": guess}
    return kept | {"advantage [95 %]": row["advantage [95 %]"], "finding": BADGES[verdict.kind]}


def _budget_row(record: ReconstructionRecord) -> dict[str, str]:
    row, budget = summary_row(record), record.budget
    keys = (
        "PSNR",
        "advantage [95 %]",
        "beat the floor by 3 dB",
        "converged",
        "specific",
        "objective (median)",
        "seconds",
    )
    named = {} if budget is None else {budget.field: f"{budget.value:,}"}
    return named | {key: row[key] for key in keys}


def summary_row(record: ReconstructionRecord) -> dict[str, str]:
    """Return one line of the table that a person reads."""
    from fedpriv.scoring.convergence import convergence, objective
    from fedpriv.scoring.floors import LABELS, PERMUTED
    from fedpriv.scoring.ranking import title

    gain, floors = record.advantage_db, record.image_floors
    best = gain.best_floor
    permuted = floors.get(PERMUTED)
    interval = "" if gain.ci95 is None else f" [{gain.ci95[0]:+.2f}, {gain.ci95[1]:+.2f}]"
    reached, told = convergence(record), record.metrics.identification_top1.mean
    return {
        "attack": title(record),
        "PSNR": f"{record.metrics.psnr_db.mean:.2f}",
        "floor (best blind guess)": f"{floors[best].psnr_db:.2f} ({LABELS[best]})",
        "permuted uploads (negative control)": "not run" if permuted is None else f"{permuted.psnr_db:.2f}",
        "advantage [95 %]": f"{gain.mean:+.2f}{interval}",
        "beat the floor by 3 dB": f"{100 * gain.share_3db:.0f} %",
        "identified": "not measured" if told is None else f"{100 * told:.0f} %",
        "converged": f"{100 * reached.converged:.0f} %",
        "specific": "not measured" if reached.specific is None else f"{100 * reached.specific:.0f} %",
        "objective (median)": objective(reached.objective),
        "targets / clients": f"{record.n_targets} / {record.n_clients}{' groups' if record.units == 'groups' else ''}",
        "seconds": f"{record.cost.seconds:.0f}",
    }
