"""``fedpriv cost``: communication and computation of a round, without training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

import fedpriv
from fedpriv.cli import common
from fedpriv.cli.federation_options import data_options

if TYPE_CHECKING:
    from fedpriv.experiment.verbs.counting import Traffic


@click.command()
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("fedre",),
    show_default="fedre",
    help="A name of: fedpriv list methods; several, or all, for a table.",
)
@data_options
@click.option("--classes", type=click.IntRange(1), help="Number of classes C; without it sizes are taken from data.")
@click.option("--width", type=click.IntRange(1), help="Representation width d (default: that of --model).")
@click.option("--pairs", type=click.IntRange(1), help="(client, class) pairs in the training splits together, P.")
@click.option("--samples", type=click.IntRange(1), help="Training images of all clients together.")
@click.option("--model", "--models", "models", help="A family or models, comma-separated; client k takes the k-th.")
@click.option("--channels", type=click.IntRange(1), help="Channels of images where no data is read (default 3).")
@click.option("--mapping", default="ap", show_default=True, help="Representation mapping: ap, mp or fc.")
@click.option("--model-scalars", type=click.IntRange(1), help="Parameters of one client's model, instead of --model.")
@click.option("--clusters", type=click.IntRange(1), help="Cluster prototypes over all classes, Q (fpl).")
@click.option("--compressed-scalars", type=click.IntRange(1), help="Scalars of one compressed model (fedkd).")
@click.option("--operations", is_flag=True, help="Count what clients compute too: a few steps on images of noise.")
@click.option("--epochs", type=int, default=1, show_default=True, help="Local epochs a round, for --operations.")
@click.option("--batch-size", type=int, default=10, show_default=True, help="Local batch size, for --operations.")
@click.option("--drop-last", is_flag=True, help="Leave out tail batches, for --operations.")
@click.option("--local-steps", type=int, help="Stop local training after N steps, for --operations.")
@click.option("--option", "option", multiple=True, metavar="KEY=VALUE", help="The method's own option.")
@common.common_options
@click.pass_context
def cost(ctx: click.Context, /, methods: tuple[str, ...], as_json: bool, quiet: bool, **flags: Any) -> None:
    """Show what a method uploads and broadcasts in a round, all clients together, and what a client computes.

    Sizes are stated (--classes --width --pairs ...), or taken from data (--dataset --partition ...). Without data,
    images are 3 x 32 x 32 unless --channels and --image-size say otherwise. --clients are those that take part.
    """
    found = fedpriv.cost(methods, **common.given_values(ctx, flags))
    if as_json:
        common.print_json({"sizes": dict(found.sizes), "methods": list(found.methods)})
    elif not quiet:
        _print(found)


def _print(found: Traffic) -> None:
    columns = [f"{direction}_{unit}" for unit in ("scalars", "bytes") for direction in ("upload", "broadcast")]
    table = [
        {"method": row["method"], "count": kind}
        | {column.replace("_", " "): f"{counts[f'{column}_per_round']:,}" for column in columns}
        for row in found.methods
        if "communication" in row
        for kind, counts in row["communication"].items()
    ]
    work = [
        {"method": row["method"]}
        | {name.replace("_", " "): f"{number:,.{2 * (name == 'ratio_to_local')}f}" for name, number in own.items()}
        for row in found.methods
        if (own := row.get("operations"))
    ]
    if work:
        told = "operations of one client in a settled round, mean over clients; a multiply-add is two"
        common.print_table(told, work, as_json=False)
    sizes = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in found.sizes.items())
    common.print_table("communication of a settled round, all clients together", table, as_json=False)
    common.tell(f"sizes: {sizes}")
    common.tell("paper: without labels, class ids, counts and schedules; full: everything")
    unknown: dict[str, list[str]] = {}
    for row in found.methods:
        if "missing" in row:
            reason = row["missing"].replace(f"method {row['method']!r}", "this method")
            unknown.setdefault(reason, []).append(row["method"])
    for reason, names in unknown.items():
        common.tell(f"not counted: {', '.join(names)}; {reason}")
