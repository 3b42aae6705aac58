"""``fedpriv train``: run a federation and keep everything that an attack needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

import fedpriv
from fedpriv.cli import common
from fedpriv.cli.federation_options import data_options, training_options
from fedpriv.util.folders import numbered

if TYPE_CHECKING:
    from pydantic import JsonValue

    from fedpriv.federation.summary import RunSummary


@click.command()
@click.option("--method", default="fedre", show_default=True, help="A name of: fedpriv list methods.")
@data_options
@training_options
@common.device_option
@click.option("--out", type=click.Path(path_type=Path), help="Run directory to make (default: runs/METHOD-DATASET).")
@click.option("--resume", is_flag=True, help="Go on with the interrupted run in --out, as it was configured.")
@click.option("--force", is_flag=True, help="Replace the run directory if it exists.")
@common.workers_option
@click.option("--engine", default="local", show_default=True, help="What runs the clients: local or flower.")
@click.option("--min-clients", type=int, help="With --engine flower: fewest answers of a round (default: 1).")
@click.option("--client-timeout", type=float, help="With --engine flower: seconds a client may take (default: 600).")
@click.option("--nodes", type=int, help="With --engine flower: nodes to simulate, or to wait for.")
@click.option("--superlink", metavar="NAME", help="With --engine flower: a SuperLink of Flower's configuration.")
@common.share_option
@common.common_options
@click.pass_context
def train(ctx: click.Context, /, out: Path | None, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Train a federation and store what crossed the wire."""
    given = common.given_values(ctx, flags)
    if out is None and not flags["resume"]:
        out = numbered(Path("runs") / f"{flags['method']}-{common.called(flags)}")
    resume = common.command_line("train", "--resume", "--out", out or "", *common.code_flags())
    listener = common.Terminal(quiet=quiet, as_json=as_json, resume=resume)
    run = fedpriv.train(out=out, listener=listener, **given)
    if as_json:
        common.print_json({"run": str(run.path), **run.summary.model_dump(mode="json")})
    elif not quiet:
        print_summary(run.path, run.summary)


def print_summary(out: Path, summary: RunSummary) -> None:
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
    common.print_table(f"{summary.method} on {summary.dataset}, {summary.rounds} rounds", rows, as_json=False)
    wire = [
        {"count": kind}
        | {
            f"{direction} {unit} / round": f"{getattr(traffic, f'{direction}_{unit}_per_round'):,.0f}"
            for direction in ("upload", "broadcast")
            for unit in ("scalars", "bytes")
        }
        for kind, traffic in summary.communication
    ]
    common.print_table("communication, all clients together", wire, as_json=False)
    for record in summary.privacy:
        print_privacy(record)
    common.tell(f"{summary.seconds:.1f} s, kept in {out}")


def print_privacy(record: Mapping[str, JsonValue]) -> None:
    """Print what a defense guarantees over the run, every condition of it, and what it leaves open."""
    from fedpriv.pages.guarantees import guarantee

    found = guarantee("privacy", record)
    common.tell(found.told)
    for name, value in found.conditions:
        common.tell(f"  {name}: {value}")
