"""``fedpriv audit``: train, attack and report over a grid of methods, defenses and seeds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

import fedpriv
from fedpriv.cli import common
from fedpriv.cli.study_flags import study_of, study_options
from fedpriv.util.errors import UserError

if TYPE_CHECKING:
    from fedpriv.experiment.study.entries import Study
    from fedpriv.experiment.study.estimate import Estimate
    from fedpriv.experiment.study.run import StudyResult

NOT_OF_THE_STUDY = {"study", "out", "workers", "dry_run", "resume", "force", "as_json", "quiet", "device", "download"}


@click.command()
@click.argument("study", required=False, type=click.Path(path_type=Path), metavar="[STUDY.toml]")
@study_options
@common.device_option
@click.option("--chunk-rows", type=click.IntRange(1), help="Rows of an attack at a time; bounds memory.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes, one thread each.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the study (default: studies/NAME).")
@click.option("--dry-run", is_flag=True, help="Only list what would run, what it sends and how long it may take.")
@click.option("--resume", is_flag=True, help="Go on with the study in --out; nothing else has to be repeated.")
@click.option("--force", is_flag=True, help="Replace the folder if it exists.")
@common.common_options
@click.pass_context
def audit(
    ctx: click.Context,
    /,
    study: Path | None,
    device: str,
    download: bool,
    chunk_rows: int | None,
    workers: int,
    out: Path | None,
    dry_run: bool,
    resume: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> int:
    """Train every method under every defense with every seed, attack each run, report on all together.

    A study is a TOML file (docs/audit.md), flags, or flags over a file. Repeating the command goes on where it stopped.
    """
    given = common.given(ctx) - NOT_OF_THE_STUDY - {"chunk_rows"}
    execution: dict[str, Any] = {"device": device, "download": download, "chunk_rows": chunk_rows, "workers": workers}
    if resume:
        _refuse_beside_resume(study, out, given, force)
        described = None
        folder = out or Path()
    else:
        described = study_of(study, flags, given)
        folder = out or Path("studies") / ("audit" if study is None else study.stem)
    if dry_run:
        from fedpriv.experiment.study.run import saved_study

        _preview(described or saved_study(folder), execution, as_json=as_json, quiet=quiet)
        return 0
    listener = common.Terminal(quiet=quiet, as_json=as_json, resume=_resume_command(folder, device, workers))
    result = fedpriv.audit(described, out=folder, resume=resume, force=force, listener=listener, **execution)
    _finish(result, as_json=as_json, quiet=quiet)
    return 1 if result.failed else 0


def _refuse_beside_resume(study: Path | None, out: Path | None, given: set[str], force: bool) -> None:
    if out is None:
        raise UserError("--resume needs --out, the folder of the study")
    if force:
        raise UserError("--resume and --force exclude each other")
    if study is not None or given:
        extra = [str(study)] if study is not None else []
        extra += ["--" + name.replace("_", "-") for name in sorted(given)]
        raise UserError(f"--resume goes on with the study in {out} as it is; drop {', '.join(extra)}")


def _resume_command(folder: Path, device: str, workers: int) -> str:
    own = [] if device == "auto" else ["--device", device]
    own += [] if workers == 1 else ["--workers", str(workers)]
    return common.command_line("audit", "--resume", "--out", folder, *own)


def _preview(study: Study, execution: dict[str, Any], *, as_json: bool, quiet: bool) -> None:
    """List the cells with what they send and how long they may take."""
    from fedpriv.experiment.study.cells import Execution, lay_out
    from fedpriv.experiment.study.estimate import estimate
    from fedpriv.experiment.study.progress import duration

    def say(text: str) -> None:
        common.say(text, quiet=quiet, as_json=True)

    cells, notes = lay_out(study, Execution(**execution))
    for note in notes:
        common.say(f"left out: {note}", quiet=quiet, as_json=as_json)
    workers = execution["workers"]
    estimates = estimate(cells, download=execution["download"], say=say)
    known = sum(part for one in estimates for part in (one.train, one.attack) if part is not None)
    complete = all(one.complete for one in estimates)
    if as_json:
        listed = [
            {
                **{"cell": cell.name, "method": cell.method.label, "defense": cell.defense.label, "seed": cell.seed},
                **{"target": cell.target, "attacks": list(one.attacks), "upload_per_round": dict(one.upload)},
                **{
                    "seconds": {"train": one.train, "attack": one.attack},
                    "seconds_by_attack": dict(one.attacks),
                    "not_estimated": list(one.reasons),
                },
            }
            for cell, one in zip(cells, estimates, strict=True)
        ]
        common.print_json({"cells": listed, "seconds": known, "complete": complete})
        return
    rows = [
        {
            "cell": cell.name,
            "target": cell.target,
            "attacks": ", ".join(one.attacks),
            "upload scalars / round (paper)": _count(one.upload.get("paper_scalars")),
            "(full)": _count(one.upload.get("full_scalars")),
            "bytes": _count(one.upload.get("full_bytes")),
            "train": "?" if one.train is None else duration(one.train),
            "attack": _sum(one),
        }
        for cell, one in zip(cells, estimates, strict=True)
    ]
    common.print_table(f"{len(cells)} cells", rows, as_json=False)
    least = "" if complete else "at least "
    per_worker = f", {duration(known / min(workers, len(cells)))} with {workers} workers" if workers > 1 else ""
    click.echo(f"time: {least}about {duration(known)} with one worker{per_worker}")
    click.echo(
        "estimated from a rehearsal: two clients' rounds and a few iterations of each attack, scaled up; nothing ran"
    )
    for reason in dict.fromkeys(reason for one in estimates for reason in one.reasons):
        click.echo(f"not estimated: {reason}")


def _sum(one: Estimate) -> str:
    from fedpriv.experiment.study.progress import duration

    if one.attack is None:
        return "?"
    return duration(one.attack) if None not in one.attacks.values() else f"at least {duration(one.attack)}"


def _count(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _finish(result: StudyResult, *, as_json: bool, quiet: bool) -> None:
    from fedpriv.experiment.study.progress import outcome

    page = None if result.report is None else str(result.report)
    if as_json:
        common.print_json({"out": str(result.folder), "report": page, "cells": list(result.rows)})
        return
    for row in result.failed:
        click.echo(f"fedpriv: {outcome(row)}", err=True)
    done = len(result.rows) - len(result.failed)
    common.say(f"{done} of {len(result.rows)} cells done", quiet=quiet, as_json=False)
    if page is not None:
        common.say(f"report: {page}", quiet=quiet, as_json=False)
