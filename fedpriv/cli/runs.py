"""Commands on federations, studies and claims, and on what there is to run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

import fedpriv
from fedpriv.cli import common
from fedpriv.cli.options import Command, flags_of
from fedpriv.util.errors import UserError
from fedpriv.util.escape import command_line, visible
from fedpriv.util.folders import numbered, telling_name
from fedpriv.util.registry import code_flags

if TYPE_CHECKING:
    from fedpriv.api.federations import Traffic
    from fedpriv.federation.summary import RunSummary
    from fedpriv.study.run import StudyResult


@click.command(cls=Command)
@flags_of("federations:train", first="method dataset partition alpha clients rounds models defense seed out resume")
@common.common_options
def train(out: Path | None, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Train a federation and store what crossed the wire (default folder: runs/METHOD-DATASET)."""
    given = common.given_values(flags)
    if out is None and not flags["resume"]:
        data = str(flags["dataset"] or "fashion")
        if data == "folder" and flags["data_dir"]:  # a folder of images goes by its own name
            data = "-".join(telling_name(Path(flags["data_dir"])))
        out = numbered(Path("runs") / f"{flags['method'] or 'fedre'}-{data}")
    resume = command_line("train", "--resume", "--out", out or "", *code_flags())
    listener = common.Terminal(quiet=quiet, as_json=as_json, resume=resume)
    run = fedpriv.train(out=out, listener=listener, **given)
    if as_json:
        common.print_json({"run": str(run.path), **run.summary.model_dump(mode="json")})
    elif not quiet:
        _show_run(run.path, run.summary)


def _show_run(out: Path, summary: RunSummary) -> None:
    """Print accuracy and communication of a finished run."""
    rows = [
        {
            "accuracy": when.replace("_", " "),
            "pooled": f"{reached.pooled:.4f}",
            "at its best (round)": f"{reached.best:.4f} ({reached.best_round})",
            "mean over clients": f"{reached.mean_over_clients:.4f}",
            "at its best": f"{reached.best_mean_over_clients:.4f} ({reached.best_mean_round})",
        }
        for when, reached in summary.accuracy.items()
    ]
    common.print_table(f"{summary.method} on {summary.dataset}, {summary.rounds} rounds", rows)
    wire = [
        {"count": kind}
        | {
            f"{direction} {unit} / round": f"{getattr(traffic, f'{direction}_{unit}') / summary.rounds:,.0f}"
            for direction in ("upload", "broadcast")
            for unit in ("scalars", "bytes")
        }
        for kind, traffic in summary.communication
    ]
    common.print_table("communication, all clients together", wire)
    for record in summary.privacy:
        from fedpriv.reports.privacy import guarantee

        result = guarantee("privacy", record)
        common.tell(result.words, *(f"  {name}: {value}" for name, value in result.conditions))
    common.tell(f"{summary.seconds:.1f} s, kept in {out}")


@click.command(cls=Command)
@flags_of("federations:cost", first="methods classes clients width pairs samples models dataset partition")
@common.common_options
def cost(methods: tuple[str, ...], as_json: bool, quiet: bool, **flags: Any) -> None:
    """Show what a method uploads and broadcasts in a round, all clients together.

    Sizes are stated (--classes --width --pairs ...), or taken from data (--dataset --partition ...). Without data,
    images are 3 x 32 x 32 unless --channels and --image-size say otherwise. --clients are those that take part.
    """
    result = fedpriv.cost(methods or "fedre", **common.given_values(flags))
    if as_json:
        common.print_json({"sizes": dict(result.sizes), "methods": list(result.methods)})
    elif not quiet:
        _show_cost(result)


def _show_cost(traffic: Traffic) -> None:
    columns = [f"{direction}_{unit}" for unit in ("scalars", "bytes") for direction in ("upload", "broadcast")]
    table = [
        {"method": row["method"], "count": row["count"]}
        | {column.replace("_", " "): f"{row[f'{column}_per_round']:,}" for column in columns}
        for row in traffic.table()
    ]
    common.print_table("communication of a settled round, all clients together", table)
    common.tell("sizes: " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in traffic.sizes.items()))
    common.tell("paper: without labels, class ids, counts and schedules; full: everything")
    common.tell(*(f"not counted: {row['method']}; {row['missing']}" for row in traffic.methods if "missing" in row))


@click.command(cls=Command)
@click.argument("study", required=False, type=click.Path(path_type=Path), metavar="[STUDY.toml]")
@flags_of(
    "auditing:audit",
    without=("study", "federation", "option", "defense"),
    first="methods defenses attacks seeds rounds targets iterations quick dataset out",
)
@click.option("--dry-run", is_flag=True, help="Run nothing: list the cells, and estimate their work.")
@common.common_options
def audit(
    study: Path | None, out: Path | None, dry_run: bool, resume: bool, as_json: bool, quiet: bool, **flags: Any
) -> int:
    """Train every method under every defense with every seed, attack each run, report on all together.

    A study is a TOML file (docs/audit.md), flags, or flags over a file. Repeating the command goes on where it stopped.
    """
    given = common.given_values(flags)
    if dry_run:
        if "shard" in given:
            raise UserError("--dry-run does not go with --shard")
        given = {name: value for name, value in given.items() if name not in ("force", "share_group")}
        quietly = common.Terminal(quiet=quiet, as_json=True)
        outcome = fedpriv.plan(study, out=out if resume else None, resume=resume, listener=quietly, **given)
        if as_json:
            common.print_json({"cells": [dict(cell) for cell in outcome.cells]})
        else:
            columns = [{name.replace("_", " "): value for name, value in row.items()} for row in outcome.table()]
            common.print_table(outcome.work, columns)
        return 0
    folder = out or (None if resume else Path("studies") / ("audit" if study is None else study.stem))
    same = [
        part for name in ("shard", "device", "workers") if name in given for part in (f"--{name}", str(given[name]))
    ]
    again = command_line("audit", "--resume", "--out", folder or "", *same, *code_flags())
    listener = common.Terminal(quiet=quiet, as_json=as_json, resume=again)
    result = fedpriv.audit(study, out=folder, resume=resume, listener=listener, **given)
    _show_study(result, as_json=as_json, quiet=quiet)
    return 1 if result.failed else 0


def _show_study(result: StudyResult, *, as_json: bool, quiet: bool) -> None:
    page = None if result.report is None else str(result.report)
    if as_json:
        cells = [row.model_dump(mode="json") for row in result.rows]
        common.print_json({"out": str(result.folder), "report": page, "cells": cells})
        return
    for line in result.failures:
        common.tell(f"fedpriv: {line}", err=True)
    done = len(result.rows) - len(result.failed)
    of = f" of shard {result.shard}" if result.shard else ""
    common.say(f"{done} of {len(result.rows)} cells{of} done", quiet=quiet)
    if result.pending:
        look = command_line("report", result.folder, "--out", f"{result.folder}-report")
        common.say(f"{result.pending} cells are not over; who ends last merges; to look meanwhile: {look}", quiet=quiet)
    if page is not None:
        common.say(f"report: {page}", quiet=quiet)


@click.command(name="audit-dp", cls=Command)
@flags_of("federations:audit_dp", first="run method defense claim canaries confidence dataset seed out")
@common.common_options
def audit_dp(out: Path | None, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Put a claimed epsilon to the test: what canaries show of it, beside the claim and beside what clip and noise imply.

    Canaries pass what --defense does; how many of their coins are told from what the server sees bounds epsilon from below.
    A claim below the bound is contradicted. Default folder: results/audit-dp.
    """
    folder = out or numbered(Path("results") / "audit-dp")
    listener = common.Terminal(quiet=quiet, as_json=as_json)
    result = fedpriv.audit_dp(out=folder, listener=listener, **common.given_values(flags))
    record = result.record
    if as_json:
        common.print_json({"out": str(result.path), **record.model_dump(mode="json")})
        return
    if not quiet:
        from fedpriv.dp.verdict import figure

        rows = [{"": "claimed", "epsilon": "nothing" if record.claim is None else figure(record.claim.epsilon)}]
        if record.claim is not None and record.claim.implied is not None:
            rows.append({"": "clip and noise imply", "epsilon": figure(record.claim.implied)})
        rows += [{"": f"at least, {bound.name}", "epsilon": figure(bound.epsilon)} for bound in record.bounds]
        title = f"{record.defense} on {record.method}, delta {record.delta:g}, {100 * record.confidence:g} % confidence"
        common.print_table(title, rows)
    common.tell(record.sentence)
    for line in (*record.notices, f"kept in {result.path}"):
        common.say(line, quiet=quiet)


@click.command(cls=Command)
@click.argument("claim")
@flags_of(
    "auditing:reproduce",
    without=("claim",),
    single=("seeds",),
    first="scale rows columns seeds data_dir workers download out",
)
@common.common_options
def reproduce(claim: str, out: Path | None, as_json: bool, quiet: bool, **flags: Any) -> int:
    """Put a claim of a paper to the test: what its figures are worth beside plain guesses, then ours and a verdict.

    CLAIM is a name of: fedpriv list claims, or a TOML file (docs/reproducing.md). Repeating the command goes on where it
    stopped. Default folder: claims/CLAIM-SCALE.
    """
    folder = out or Path("claims") / f"{Path(claim).stem}-{flags['scale'] or 'cpu'}"
    again = command_line(*common.typed(), *(() if out else ("--out", folder)))
    listener = common.Terminal(quiet=quiet, as_json=as_json, resume=again)
    result = fedpriv.reproduce(claim, out=folder, listener=listener, **common.given_values(flags))
    card = result.card
    if as_json:
        common.print_json({"out": str(result.path), "page": str(result.page), "card": card.model_dump(mode="json")})
        return 0
    from fedpriv.reports.claim_card import lines_of

    for line in card.left_out:
        common.say(f"left out: {line}", quiet=quiet)
    common.tell(*lines_of(card))
    common.say(f"page: {result.page}", quiet=quiet)
    return 1 if result.study is not None and result.study.failed else 0


KINDS = ("methods", "attacks", "defenses", "datasets", "models", "payloads", "targets", "claims")


@click.command(name="list")
@click.argument("kind", type=click.Choice(KINDS), metavar="KIND")
@click.option("--target", help="With attacks: only those for this kind of upload.")
@common.common_options
def list_names(kind: Any, target: str | None, as_json: bool, quiet: bool) -> None:
    """List methods, attacks, defenses, datasets, models, kinds of payload, targets or claims."""
    rows = fedpriv.catalogue(kind, target=target).table()
    if as_json:
        common.print_json(rows)
    elif quiet:
        common.tell(*(row["name"] for row in rows))
    else:
        common.print_table(kind, rows)


SCREEN = 23  # lines of an explanation at most, before the line that names the rest


@click.command()
@click.argument("name")
@click.option("--all", "whole", is_flag=True, help="With the page of an attack, and the BibTeX entry of a method.")
@common.common_options
def explain(name: str, whole: bool, as_json: bool, quiet: bool) -> None:
    """Explain a method, attack, defense, kind of payload, data set, model, claim, or a word of a report (PSNR)."""
    result = fedpriv.explain(name)
    if as_json:
        common.print_json(asdict(result))
    elif quiet:
        common.tell(*(f"{key}: {fact}" for key, fact in result.facts.items() if fact))
    else:
        lines = visible(result._repr_markdown_() if whole else str(result)).splitlines()
        if not whole:
            lines = [part for line in lines for part in common.filled(line) or [""]]
        common.tell(*(lines if whole else lines[:SCREEN]))
        if not whole and (result.page or result.bibtex or len(lines) > SCREEN):
            common.tell("", f"more: fedpriv explain {result.name} --all")


@click.command()
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@common.common_options
def doctor(device: str, as_json: bool, quiet: bool) -> int:
    """List installed versions, and compare a gradient computed on the device with the CPU's; for bug reports.

    Exits with 1 where something failed.
    """
    result = fedpriv.doctor(device=device)
    if as_json:
        common.print_json({"failed": bool(result.failed), "findings": result.findings})
    elif not quiet or result.failed:
        common.tell(*str(fedpriv.Diagnosis(result.failed) if quiet else result).splitlines())
    return 1 if result.failed else 0
