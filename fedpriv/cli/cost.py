"""``fedpriv cost``: communication of a round, without training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from fedpriv.cli import common
from fedpriv.cli.federation_options import data_options
from fedpriv.experiment.federation_settings import FLAG_NAMES, run_config
from fedpriv.util.errors import UserError
from fedpriv.util.pairs import key_values

if TYPE_CHECKING:
    from fedpriv.wire.sizes import Facts

DATA_FLAGS = {
    *("dataset", "data_dir", "download", "per_class", "partition", "alpha", "classes_per_client", "imbalance"),
    *("train_fraction", "seed"),
}
"""Whoever sets one of these wants sizes from data."""

STATED = ("classes", "pairs", "samples", "channels")
"""Sizes that data would give."""


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
@click.option("--option", "option", multiple=True, metavar="KEY=VALUE", help="The method's own option.")
@common.common_options
@click.pass_context
def cost(
    ctx: click.Context,
    /,
    methods: tuple[str, ...],
    seed: int,
    download: bool,
    option: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> None:
    """Show what a method uploads and broadcasts in a round, all clients together.

    Sizes are stated (--classes --width --pairs ...), or taken from data (--dataset --partition ...). Without data,
    images are 3 x 32 x 32 unless --channels and --image-size say otherwise. --clients are those that take part.
    """
    from fedpriv.methods import METHODS

    given = common.given(ctx)
    names = [part for name in methods for part in (METHODS if name == "all" else name.split(","))]
    if option and len(names) > 1:
        raise UserError("--option belongs to one method; ask for one --method with it")
    facts, where, mixed = _sizes(given, seed, download, flags)
    rows = [_row(name, facts, key_values(option, "--option"), mixed) for name in names]
    reasons = [row["missing"] for row in rows if "missing" in row]
    if len(reasons) == len(rows):
        raise UserError(reasons[0] if len(rows) == 1 else f"no method can be counted; {names[0]}: {reasons[0]}")
    if as_json:
        common.print_json({"sizes": where, "methods": rows})
    elif not quiet:
        _print(rows, where)


def _sizes(given: set[str], seed: int, download: bool, flags: dict[str, Any]) -> tuple[Facts, dict[str, Any], bool]:
    """Return the sizes, the same for people and machines, and whether architectures differ."""
    from dataclasses import replace

    from fedpriv.federation.planned_traffic import held, with_models
    from fedpriv.models import default_width, family
    from fedpriv.wire.sizes import Facts

    where: dict[str, Any] = {}
    models: str | None = flags["models"]
    wants_data = sorted(given & DATA_FLAGS)
    if flags["classes"] is None or wants_data:
        stated = [f"--{name}" for name in STATED if name in given]
        if stated:
            reason = f"--{wants_data[0].replace('_', '-')} reads data" if wants_data else "--classes is missing"
            remedy = f"drop {', '.join(stated)}" if wants_data else "state it too"
            raise UserError(f"{', '.join(stated)}: {reason}, and data gives these sizes itself; {remedy}")
        from fedpriv.federation.rounds import load_data

        known = {name: flags[name] for name in FLAG_NAMES if name in flags and flags[name] is not None}
        config = run_config("local", {**known, "models": models or "small"}, seed)
        federated, _ = load_data(config, download=download)
        models, image_shape, sizes = config.models, federated.dataset.image_shape, held(federated)
        where = {"dataset": config.dataset, "partition": config.partition.name, "seed": seed}
    else:
        side = flags["image_size"] or 32
        image_shape = (flags["channels"] or 3, side, side)
        sizes = {name: flags[name] for name in ("classes", "pairs", "samples") if flags[name] is not None}
    if flags["width"] is None and models is None:
        raise UserError("the representation width is not known: pass --width or --model")
    width = flags["width"] or default_width(str(models), image_shape)
    facts = Facts(
        clients=flags["clients"],
        classes=sizes["classes"],
        width=width,
        pairs=sizes.get("pairs"),
        known_classes=sizes.get("known_classes"),
        samples=sizes.get("samples"),
        clusters=flags["clusters"],
        compressed_scalars=flags["compressed_scalars"],
        public=flags["public"] or None,
    )
    if models is not None:
        facts = with_models(facts, models, image_shape, flags["mapping"])
    if flags["model_scalars"] is not None:
        if flags["models"] is not None:
            raise UserError("--model-scalars and --model exclude each other: the model says how many there are")
        facts = replace(facts, model_scalars=flags["model_scalars"], all_model_scalars=None)
    mixed = models is not None and flags["model_scalars"] is None and len(set(family(models)[: facts.clients])) > 1
    named = (
        *("clients", "classes", "known_classes", "width", "pairs", "samples", "public", "clusters"),
        *("compressed_scalars", "all_model_scalars" if mixed else "model_scalars"),
    )
    where |= {name: getattr(facts, name) for name in named if getattr(facts, name) is not None}
    return facts, where, mixed


def _row(name: str, facts: Facts, options: dict[str, Any], mixed: bool) -> dict[str, Any]:
    from fedpriv.federation.planned_traffic import communication
    from fedpriv.methods import METHODS
    from fedpriv.util.registry import resolve

    method = resolve("method", name, METHODS)
    try:
        return {"method": name, "communication": communication(method, facts, options, mixed=mixed)}
    except UserError as error:
        return {"method": name, "missing": str(error)}


def _print(rows: list[dict[str, Any]], where: dict[str, Any]) -> None:
    columns = [f"{direction}_{unit}" for unit in ("scalars", "bytes") for direction in ("upload", "broadcast")]
    table = [
        {"method": row["method"], "count": kind}
        | {column.replace("_", " "): f"{counts[f'{column}_per_round']:,}" for column in columns}
        for row in rows
        if "communication" in row
        for kind, counts in row["communication"].items()
    ]
    sizes = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in where.items())
    common.print_table("communication of a settled round, all clients together", table, as_json=False)
    click.echo(f"sizes: {sizes}")
    click.echo("paper: without labels, class ids, counts and schedules; full: everything")
    unknown: dict[str, list[str]] = {}
    for row in rows:
        if "missing" in row:
            reason = row["missing"].replace(f"method {row['method']!r}", "this method")
            unknown.setdefault(reason, []).append(row["method"])
    for reason, names in unknown.items():
        click.echo(f"not counted: {', '.join(names)}; {reason}")
