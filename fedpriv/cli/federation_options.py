"""The flags that describe a federation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click

F = TypeVar("F", bound=Callable[..., Any])


def _rounds(context: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[Any, ...]:
    """Return the numbers of rounds, or ``all`` among them."""
    return tuple(text if text == "all" else click.INT(text, param, context) for text in given)


DATA_OPTIONS = (
    click.option("--dataset", default="fashion", show_default=True, help="A name of: fedpriv list datasets."),
    click.option("--data-dir", type=click.Path(path_type=Path), help="Folder that holds the data set."),
    click.option(
        "--download/--no-download", default=False, help="Fetch the data set into --data-dir if it is missing."
    ),
    click.option("--per-class", type=int, help="Keep only the first N images of each class."),
    click.option("--image-size", type=int, help="Resize images to N x N."),
    click.option(
        "--partition", default="dirichlet", show_default=True, help="dirichlet, pathological, iid or long_tail."
    ),
    click.option("--alpha", type=float, default=0.1, show_default=True, help="Dirichlet concentration."),
    click.option("--classes-per-client", type=int, default=2, show_default=True, help="For --partition pathological."),
    click.option(
        "--assignment",
        default="in_order",
        show_default=True,
        help="Of classes to clients, for --partition pathological: in_order or random.",
    ),
    click.option("--balanced", is_flag=True, help="Equal parts of a class, for --partition pathological."),
    click.option("--imbalance", type=float, default=100.0, show_default=True, help="For --partition long_tail."),
    click.option(
        "--least-per-client",
        type=int,
        help="Least images of a client (default: the reference library's, 40 or half an equal share).",
    ),
    click.option("--train-fraction", type=float, default=0.75, show_default=True, help="Share of a client's images."),
    click.option("--division-seed", type=int, help="Of who holds which images (default: --seed)."),
    click.option("--clients", type=int, default=10, show_default=True, help="Number of clients."),
    click.option("--public", type=int, default=0, show_default=True, help="Images set aside as public data."),
    click.option(
        "--strangers",
        type=float,
        default=0.5,
        show_default=True,
        help="Share of every class that no client holds: half of it the attacker's, half for blind guesses.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of every random draw."),
)
TRAINING_OPTIONS = (
    click.option("--rounds", type=int, default=20, show_default=True, help="Number of rounds."),
    click.option("--participation", type=float, default=1.0, show_default=True, help="Share of clients in a round."),
    click.option(
        "--unsampled",
        default="counted",
        show_default=True,
        help="Clients of no round so far, in accuracies: counted or left_out.",
    ),
    click.option(
        "--models",
        default="small",
        show_default=True,
        help="A family or models, comma-separated; client k takes the k-th.",
    ),
    click.option("--width", type=int, help="Representation width d (default: the family's)."),
    click.option("--mapping", default="ap", show_default=True, help="Representation mapping: ap, mp or fc."),
    click.option("--lr", type=float, default=0.01, show_default=True, help="Learning rate of local SGD."),
    click.option("--batch-size", type=int, default=10, show_default=True, help="Local batch size."),
    click.option("--epochs", type=int, default=1, show_default=True, help="Local epochs a round."),
    click.option("--momentum", type=float, default=0.0, show_default=True, help="SGD momentum."),
    click.option("--weight-decay", type=float, default=0.0, show_default=True, help="SGD weight decay."),
    click.option("--drop-last", is_flag=True, help="Leave out tail batches, as the reference libraries do."),
    click.option("--shuffle/--no-shuffle", default=True, help="Draw a new order of the images every epoch."),
    click.option("--local-steps", type=int, help="Stop local training after N steps."),
    click.option(
        "--option",
        "option",
        multiple=True,
        metavar="KEY=VALUE",
        help="The method's own option, for example mechanism=VAP.",
    ),
    click.option(
        "--defense",
        "defense",
        multiple=True,
        metavar="NAME[:KEY=VALUE,...]",
        help="What clients do to an upload before it leaves (repeat; applied in this order): fedpriv list defenses.",
    ),
    click.option(
        "--capture", default="auto", show_default=True, help="Rounds whose uploads are stored: all, last, none, auto."
    ),
    click.option("--checkpoint-every", type=int, default=1, show_default=True, help="Rounds between checkpoints."),
    click.option(
        "--evaluate-every",
        type=int,
        default=1,
        show_default=True,
        metavar="N",
        help="Rounds between evaluations of all clients; the last round is evaluated in any case.",
    ),
    click.option(
        "--keep",
        multiple=True,
        callback=_rounds,
        metavar="ROUND",
        help="Keep this round's checkpoint and uploads for good; all keeps every round's.",
    ),
)


def data_options(command: F) -> F:
    """Add the flags that say what data there is and who holds it."""
    for option in reversed(DATA_OPTIONS):
        command = option(command)
    return command


def training_options(command: F) -> F:
    """Add the flags that say how a federation trains."""
    for option in reversed(TRAINING_OPTIONS):
        command = option(command)
    return command
