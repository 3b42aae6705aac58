"""``fedpriv audit``: train, attack and report over a grid of methods, defenses and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

import fedpriv
from fedpriv.cli import common
from fedpriv.cli.study_flags import study_options
from fedpriv.util.errors import UserError

if TYPE_CHECKING:
    from fedpriv.experiment.study.run import StudyResult
    from fedpriv.experiment.verbs.auditing import StudyPlan
    from fedpriv.experiment.verbs.submitting import Submission


@click.command()
@click.argument("study", required=False, type=click.Path(path_type=Path), metavar="[STUDY.toml]")
@study_options
@common.redact_option
@common.device_option
@common.arithmetic_options
@click.option("--chunk-rows", type=click.IntRange(1), help="Rows of an attack at a time; bounds memory.")
@common.workers_option
@click.option("--shard", metavar="I/N", help="Do part I of N alone; others do theirs in the same --out meanwhile.")
@click.option("--submit", metavar="slurm|local", help="Submit shards as jobs of a queue, and end (needs --shards).")
@click.option("--shards", type=click.IntRange(1), help="How many shards to submit.")
@click.option("--job", multiple=True, metavar="KEY=VALUE", help="Parameter of every job: timeout_min=600 (repeat).")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the study (default: studies/NAME).")
@click.option("--dry-run", is_flag=True, help="Only check the study and list what would run.")
@click.option("--resume", is_flag=True, help="Go on with the study in --out; nothing else has to be repeated.")
@click.option("--force", is_flag=True, help="Replace the folder if it exists.")
@common.share_option
@common.common_options
@click.pass_context
def audit(
    ctx: click.Context,
    /,
    study: Path | None,
    out: Path | None,
    dry_run: bool,
    resume: bool,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> int:
    """Train every method under every defense with every seed, attack each run, report on all together.

    A study is a TOML file (docs/audit.md), flags, or flags over a file. Repeating the command goes on where it stopped.
    """
    given = common.given_values(ctx, flags)
    _refuse_parts(given, dry_run=dry_run)
    if dry_run:
        given = {name: value for name, value in given.items() if name not in ("force", "share_group")}
        quietly = common.Terminal(quiet=quiet, as_json=True)
        found = fedpriv.plan(study, out=out if resume else None, resume=resume, listener=quietly, **given)
        _show_plan(found, as_json=as_json)
        return 0
    folder = out or (None if resume else Path("studies") / ("audit" if study is None else study.stem))
    again = _resume_command(folder or Path(), given)
    listener = common.Terminal(quiet=quiet, as_json=as_json, resume=again)
    if "submit" in given:
        cluster = given.pop("submit")
        sent = fedpriv.submit(study, out=folder or "", cluster=cluster, resume=resume, listener=listener, **given)
        _show_submission(sent, as_json=as_json, quiet=quiet)
        return 0
    result = fedpriv.audit(study, out=folder, resume=resume, listener=listener, **given)
    _finish(result, as_json=as_json, quiet=quiet)
    return 1 if result.failed else 0


def _refuse_parts(given: Mapping[str, Any], *, dry_run: bool) -> None:
    """Check that flags about shards fit together.

    Raises:
        UserError: naming the two that do not.
    """
    if dry_run and (found := [name for name in ("shard", "submit") if name in given]):
        raise UserError(f"--{found[0]} and --dry-run exclude each other: --dry-run lists the cells of all shards")
    if "submit" not in given:
        for name in ("shards", "job"):
            if name in given:
                raise UserError(f"--{name} goes with --submit; one shard alone is --shard I/N")
        return
    for name in ("shard", "force"):
        if name in given:
            raise UserError(f"--submit and --{name} exclude each other")
    if "shards" not in given:
        raise UserError("--submit needs --shards N, the number of jobs")


def _show_submission(sent: Submission, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        held = {name: getattr(sent, name) for name in ("shards", "jobs", "look", "merge")}
        common.print_json({"out": str(sent.folder), "logs": str(sent.logs), **held})
        return
    jobs = f"{sent.jobs[0]} to {sent.jobs[-1]}" if len(sent.jobs) > 1 else sent.jobs[0]
    common.say(f"{len(sent.jobs)} shards of {sent.folder} submitted as jobs {jobs}", quiet=quiet, as_json=False)
    common.say(f"what they print: {sent.logs}", quiet=quiet, as_json=False)
    common.say(f"to look meanwhile: {sent.look}", quiet=quiet, as_json=False)
    common.say(
        "the shard that ends last merges all and reports; should one die, submit again, or do what is "
        f"missing here: {sent.merge}",
        quiet=quiet,
        as_json=False,
    )


def _resume_command(folder: Path, given: Mapping[str, Any]) -> str:
    named = ("shard", "device", "workers")
    own = [part for name in named if name in given for part in (f"--{name}", str(given[name]))]
    own += ["--compile"] if given.get("compile") else []
    return common.command_line("audit", "--resume", "--out", folder, *own, *common.code_flags())


def _show_plan(found: StudyPlan, *, as_json: bool) -> None:
    """List the cells."""
    if as_json:
        common.print_json({"cells": [dict(cell) for cell in found.cells]})
    else:
        common.print_table(f"{len(found.cells)} cells", found.table(), as_json=False)


def _finish(result: StudyResult, *, as_json: bool, quiet: bool) -> None:
    page = None if result.report is None else str(result.report)
    if as_json:
        common.print_json(
            {"out": str(result.folder), "report": page, "cells": [row.model_dump(mode="json") for row in result.rows]}
        )
        return
    for line in result.failures:
        common.tell(f"fedpriv: {line}", err=True)
    done = len(result.rows) - len(result.failed)
    of = f" of shard {result.shard}" if result.shard else ""
    common.say(f"{done} of {len(result.rows)} cells{of} done", quiet=quiet, as_json=False)
    if result.pending:
        common.say(
            f"{result.pending} cells of the study are not over; who ends last merges", quiet=quiet, as_json=False
        )
        look = common.command_line("report", result.folder, "--out", f"{result.folder}-report")
        common.say(f"to look meanwhile: {look}", quiet=quiet, as_json=False)
    if page is not None:
        common.say(f"report: {page}", quiet=quiet, as_json=False)
