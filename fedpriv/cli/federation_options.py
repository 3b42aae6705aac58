"""The flags that describe a federation, and the run configuration they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from fedpriv.cli.common import key_values
from fedpriv.util.errors import UserError

if TYPE_CHECKING:
    from fedpriv.federation.run_directory import RunConfig

F = TypeVar("F", bound=Callable[..., Any])

DATA_OPTIONS = (
    click.option("--dataset", default="digits", show_default=True, help="A name of: fedpriv list datasets."),
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
    click.option("--imbalance", type=float, default=100.0, show_default=True, help="For --partition long_tail."),
    click.option("--train-fraction", type=float, default=0.75, show_default=True, help="Share of a client's images."),
    click.option("--clients", type=int, default=10, show_default=True, help="Number of clients."),
    click.option("--public", type=int, default=0, show_default=True, help="Images set aside as public data."),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of every random draw."),
)
TRAINING_OPTIONS = (
    click.option("--rounds", type=int, default=20, show_default=True, help="Number of rounds."),
    click.option("--participation", type=float, default=1.0, show_default=True, help="Share of clients in a round."),
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
        "--keep", multiple=True, type=int, metavar="ROUND", help="Keep this round's checkpoint and uploads for good."
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


FLAG_NAMES = (
    *("dataset", "data_dir", "per_class", "image_size", "partition", "alpha", "classes_per_client", "imbalance"),
    *("train_fraction", "clients", "public", "rounds", "participation", "models", "width", "mapping", "lr"),
    *("batch_size", "epochs", "momentum", "weight_decay", "drop_last", "shuffle", "local_steps", "option", "defense"),
    *("capture", "checkpoint_every", "keep"),
)
"""Parameters that describe a federation (``seed``, ``download`` and ``method`` are handled by the commands)."""


def run_config(method: str, flags: Mapping[str, Any], seed: int) -> RunConfig:
    """Return the run configuration that flags describe.

    Args:
        method: the method's name.
        flags: by parameter name; missing ones take the configuration's own defaults.
        seed: the run's seed.

    Raises:
        UserError: naming the flag that is out of range.
    """
    from fedpriv.defenses import parse_choice
    from fedpriv.federation.run_directory import RunConfig
    from fedpriv.util.config import parse, plain

    direct = (
        *("dataset", "per_class", "image_size", "clients", "public", "rounds", "participation", "models", "width"),
        *("mapping", "capture"),
    )
    values: dict[str, Any] = {name: flags[name] for name in direct if name in flags}
    values |= {"method": method, "seed": seed, "options": key_values(tuple(flags.get("option", ())), "--option")}
    if flags.get("data_dir") is not None:
        values["data_dir"] = str(Path(flags["data_dir"]).expanduser().resolve())
    if "checkpoint_every" in flags:
        values["checkpoint_every"] = flags["checkpoint_every"]
    values["keep"] = tuple(flags.get("keep", ()))
    values["defenses"] = tuple(plain(parse_choice(text)) for text in flags.get("defense", ()))
    partition = {"partition": "name"} | {n: n for n in ("alpha", "classes_per_client", "imbalance", "train_fraction")}
    values["partition"] = {name: flags[flag] for flag, name in partition.items() if flag in flags}
    training = {"lr": "learning_rate", "local_steps": "max_steps"}
    training |= {n: n for n in ("batch_size", "epochs", "momentum", "weight_decay", "drop_last", "shuffle")}
    values["training"] = {name: flags[flag] for flag, name in training.items() if flag in flags}
    config = parse(RunConfig, values, "federation flags")
    for number in config.keep:
        if not 1 <= number <= config.rounds:
            raise UserError(f"federation flags: keep: input should be a round from 1 to {config.rounds}, got {number}")
    return config
