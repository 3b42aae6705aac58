"""``fedpriv train`` and ``cost``, ``list``, ``explain`` and ``doctor``: run a federation, and what there is to run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

import fedpriv
from fedpriv.cli import common
from fedpriv.cli.options import Command, flags_of
from fedpriv.util.code import code_flags
from fedpriv.util.escape import command_line, visible
from fedpriv.util.folders import numbered

if TYPE_CHECKING:
    from fedpriv.api.training import Traffic
    from fedpriv.federation.summary import RunSummary


TRAIN_FIRST = (
    *("method", "dataset", "partition", "alpha", "clients", "rounds", "models", "defense", "seed", "out", "resume"),
)
COST_FIRST = ("methods", "classes", "clients", "width", "pairs", "samples", "models", "dataset", "partition")
"""Settings whose flags ``train --help`` and ``cost --help`` show."""


@click.command(cls=Command)
@flags_of("training:train", first=TRAIN_FIRST)
@common.common_options
def train(out: Path | None, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Train a federation and store what crossed the wire (default folder: runs/METHOD-DATASET)."""
    given = common.given_values(flags)
    if out is None and not flags["resume"]:
        out = numbered(Path("runs") / f"{flags['method'] or 'fedre'}-{common.data_name(flags)}")
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
            f"{direction} {unit} / round": f"{getattr(traffic, f'{direction}_{unit}_per_round'):,.0f}"
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
@flags_of("training:cost", first=COST_FIRST)
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
        {"method": row["method"], "count": kind}
        | {column.replace("_", " "): f"{counts[f'{column}_per_round']:,}" for column in columns}
        for row in traffic.methods
        for kind, counts in row.get("communication", {}).items()
    ]
    common.print_table("communication of a settled round, all clients together", table)
    common.tell("sizes: " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in traffic.sizes.items()))
    common.tell("paper: without labels, class ids, counts and schedules; full: everything")
    common.tell(*(f"not counted: {row['method']}; {row['missing']}" for row in traffic.methods if "missing" in row))


KINDS = ("methods", "attacks", "defenses", "datasets", "models", "payloads", "targets", "claims")


@click.command(name="list")
@click.argument("kind", shell_complete=common.completed(lambda: KINDS))
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


def _names() -> Iterable[str]:
    """Return the names of members that are known without loading any."""
    from fedpriv.attacks import ATTACKS
    from fedpriv.datasets import DATASETS
    from fedpriv.defenses import DEFENSES
    from fedpriv.methods import METHODS
    from fedpriv.models import FAMILIES, MODELS

    return (*METHODS, *ATTACKS, *DEFENSES, *DATASETS, *MODELS, *FAMILIES)


@click.command()
@click.argument("name", shell_complete=common.completed(_names))
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
        common.tell(*(lines if whole else (part for line in lines for part in common.filled(line) or [""])))
        if not whole and (result.page or result.bibtex):
            common.tell("", f"more: fedpriv explain {result.name} --all")


@click.command()
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@common.common_options
def doctor(device: str, as_json: bool, quiet: bool) -> int:
    """Check installed versions, and compare a gradient computed on the device with the CPU's; for bug reports.

    Exits with 1 where something failed.
    """
    result = fedpriv.doctor(device=device)
    if as_json:
        common.print_json({"failed": bool(result.failed), "findings": result.table()})
    elif not quiet or result.failed:
        common.tell(*map(str, result.failed if quiet else result.findings))
    return 1 if result.failed else 0
