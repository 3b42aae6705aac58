"""``fedpriv audit``, ``fedpriv audit-dp`` and ``fedpriv reproduce``: grids of runs, claimed epsilons, claims of papers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

import fedpriv
from fedpriv.cli import common
from fedpriv.cli.options import Command, flags_of
from fedpriv.util.code import code_flags
from fedpriv.util.errors import UserError
from fedpriv.util.escape import command_line
from fedpriv.util.folders import numbered

if TYPE_CHECKING:
    from fedpriv.study.run import StudyResult


FIRST = ("methods", "defenses", "attacks", "seeds", "rounds", "targets", "iterations", "quick", "dataset", "out")
DP_FIRST = ("run", "method", "defense", "claim", "canaries", "confidence", "dataset", "seed", "out")
REPRODUCE_FIRST = ("scale", "rows", "columns", "seeds", "data_dir", "workers", "download", "out")
"""Settings whose flags ``--help`` shows."""


@click.command(cls=Command)
@click.argument("study", required=False, type=click.Path(path_type=Path), metavar="[STUDY.toml]")
@flags_of("auditing:audit", without=("study", "federation", "option", "defense"), first=FIRST)
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
@flags_of("privacy_auditing:audit_dp", first=DP_FIRST)
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
@flags_of("auditing:reproduce", without=("claim",), single=("seeds",), first=REPRODUCE_FIRST)
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
