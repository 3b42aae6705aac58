"""``fedpriv attack``, ``score``, ``report`` and ``compare``: invert what clients upload, and pages on what that is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

import fedpriv
from fedpriv.attacks import refuse_unknown_target
from fedpriv.cli import common
from fedpriv.cli.options import Command, flags_of
from fedpriv.util.escape import command_line
from fedpriv.util.folders import numbered

if TYPE_CHECKING:
    from fedpriv.api.result import AttackResult
    from fedpriv.eval.reasons import Verdict
    from fedpriv.eval.records import ReconstructionRecord


FIRST = (
    *("target", "run", "attacks", "knowledge", "method", "dataset", "clients", "defense", "iterations", "seed", "out"),
)
"""Settings whose flags ``attack --help`` shows."""


@click.command(cls=Command)
@flags_of("attacking:attack", single=("reach",), first=FIRST)
@click.option("--verbose", is_flag=True, help="A paragraph on each attack.", panel="Output")
@common.common_options
def attack(target: str, out: Path | None, verbose: bool, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Attack one kind of upload; write image grids, tables and a report (default folder: results/TARGET).

    Without --run a federation is trained first. Where --rounds, --lr, --batch-size, --local-steps and --models are not
    given, it takes quick settings of the target instead of the usual ones, and prints them. Uploads of trained weights
    are then attacked at several settings of local work (--reach).
    """
    refuse_unknown_target(target)
    folder = out or numbered(Path("results") / target)
    again = command_line(*common.typed(), *(() if out else ("--out", folder)), "--resume")
    listener = common.Terminal(quiet=quiet, as_json=as_json, resume=again)
    result = fedpriv.attack(target=target, out=folder, listener=listener, **common.given_values(flags))
    if as_json:
        common.print_json(_as_json(result))
    elif not quiet:
        _show(result, verbose=verbose)


@click.command()
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path))
@flags_of("result:score", without=("results",))
@common.common_options
def score(directories: tuple[Path, ...], as_json: bool, quiet: bool, **flags: Any) -> None:
    """Score attack directories again; rewrites metrics.json and the image grid.

    Membership and property inference are not scored again: they store no scores of single candidates.
    """
    listener = common.Terminal(quiet=quiet, as_json=True)
    records = fedpriv.score(directories, listener=listener, **common.given_values(flags))
    if quiet and not as_json:
        return
    from fedpriv.eval.judgement import judge_page
    from fedpriv.eval.verdict import words

    verdicts = judge_page(records)
    if as_json:
        lines = {
            str(path): {**record.model_dump(mode="json"), "verdict": _verdict(verdicts[path])}
            for path, record in records.items()
        }
        common.print_json(lines)
        return
    _show_attacks(records, verdicts)
    common.tell(*(f"{path}: {words(verdict)}" for path, verdict in verdicts.items()))


def _as_json(result: AttackResult) -> dict[str, Any]:
    shown = {name: record.model_dump(mode="json") for name, record in result.scores.items()}
    return {
        "out": str(result.path),
        "attacks": {name: record.model_dump(mode="json") for name, record in result.records.items()},
        **{
            kind: {name: item for name, item in shown.items() if item["kind"] == kind}
            for kind in ("membership", "property")
        },
        "verdicts": {name: _verdict(verdict) for name, verdict in result.verdicts.items()},
        "findings": [{"upload": finding.name, "finding": finding.short} for finding in result.findings],
    }


def _verdict(verdict: Verdict) -> dict[str, object]:
    from fedpriv.eval.verdict import words

    return {**verdict.model_dump(mode="json"), "words": words(verdict)}


def _show(result: AttackResult, *, verbose: bool) -> None:
    """Print tables, strongest first; the last lines are the findings, where the page is, and the next command."""
    verdicts = {result.path / name: verdict for name, verdict in result.verdicts.items()}
    _show_attacks({result.path / name: record for name, record in result.records.items()}, verdicts)
    if verbose:
        common.tell(*result.verdict.splitlines())
    for finding in result.findings:
        common.tell("", *common.filled(f"{finding.name}: {finding.short}"))
    common.tell("", f"report: {result.path / 'report.html'}")
    common.tell(f"next:   {command_line('report', result.path, '--open')}")


def _show_attacks(results: Mapping[Path, ReconstructionRecord], verdicts: Mapping[Path, Verdict]) -> None:
    """Print a table for each threat model, strongest attack first."""
    from fedpriv.reports.labels import differing, strongest_first

    rankings = strongest_first(list(results.items()), lambda item: item[1])
    cards = differing([members[0][1].knowledge for members in rankings])
    for members, card in zip(rankings, cards, strict=True):
        rows = [_row(record, verdicts[path]) for path, record in members]
        common.print_table(f"leakage (dB of PSNR, mean over targets){f', {card}' if card else ''}", rows)


def _row(record: ReconstructionRecord, verdict: Verdict) -> dict[str, str]:
    from fedpriv.eval.verdict import BADGES

    gain = record.advantage_db
    interval = "" if gain.ci95 is None else f" [{gain.ci95[0]:+.2f}, {gain.ci95[1]:+.2f}]"
    return {
        "attack": record.title,
        "PSNR": f"{record.metrics.psnr_db.mean:.2f}",
        "baseline": f"{record.image_floors[gain.best_floor].psnr_db:.2f}",
        "advantage [95 %]": f"{gain.mean:+.2f}{interval}",
        "targets / clients": f"{record.n_targets} / {record.n_clients}{' groups' if record.units == 'groups' else ''}",
        "seconds": f"{record.cost.seconds:.0f}",
        "finding": BADGES[verdict.kind],
    }


@click.command()
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path))
@flags_of("reporting:report", without=("results",))
@click.option("--open", "opened", is_flag=True, help="Show the page in the browser when it is made.")
@common.common_options
def report(
    directories: tuple[Path, ...], out: Path | None, opened: bool, as_json: bool, quiet: bool, **flags: Any
) -> None:
    """Report on attack and run directories, studies, and folders that hold some of them (default folder: results/report).

    Attacks give report.html, report.md and results.csv: what leaked. Runs give runs.html, runs.md, runs.csv and
    pictures: accuracy by round and by communication, per client, and the prototypes that were uploaded.
    """
    listener = common.Terminal(quiet=quiet, as_json=True)
    folder = out or numbered(Path("results") / "report")
    written = fedpriv.report(directories, out=folder, listener=listener, **common.given_values(flags))
    if as_json:
        places = {"attacks": list(map(str, written.attacks)), "runs": list(map(str, written.runs))}
        common.print_json({"out": str(written.path), **places})
    else:
        for page in written.pages:
            common.say(f"report: {page}", quiet=quiet)
    if opened and click.launch(written.pages[0].absolute().as_uri()):
        common.tell(f"warning: no browser could be started; open {written.pages[0]}", err=True)


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@common.common_options
def compare(before: Path, after: Path, as_json: bool, quiet: bool) -> None:
    """Say what changed between two results of attacks, or two studies, and which of it is more than noise."""
    result = fedpriv.compare(before, after)
    if as_json:
        common.print_json(asdict(result) | {"verdict": result.verdict})
        return
    if not quiet:
        common.print_table(f"{before} -> {after}", [_shown(row) for row in result.rows])
    common.tell(*str(result).splitlines()[-1 if quiet else 0 :])


def _shown(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a row in figures that can be read: an interval in brackets, accuracies in per cent."""
    digits, unit = (3, "") if row["quantity"] == "AUC" else (1, " dB")
    shown = {"result": row["name"], "quantity": row["quantity"] or ""}
    for name in ("before", "after"):
        shown[name] = "" if row[name] is None else f"{row[name]:.{digits}f}{unit}"
    difference = "" if row["difference"] is None else f"{row['difference']:+.{digits}f}"
    interval = "" if row["low"] is None else f" [{row['low']:+.{digits}f}, {row['high']:+.{digits}f}]"
    accuracies = [row[f"accuracy {when}"] for when in ("before", "after")]
    accuracy = " -> ".join("none" if item is None else f"{item:.1%}" for item in accuracies)
    return shown | {"difference [95 %]": difference + interval, "accuracy": accuracy, "verdict": row["verdict"]}
