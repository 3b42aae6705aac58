"""The settings that describe a federation, flat as people write them, and the run configuration they make."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.util.pairs import key_values

if TYPE_CHECKING:
    from fedpriv.federation.run_directory import RunConfig

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
    from fedpriv.util.errors import UserError

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
