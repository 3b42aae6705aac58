"""The run that is trained where none is given: its quick settings, and its training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.experiment.training import train_run
from fedpriv.federation.run_directory import RunDirectory, dataset_title
from fedpriv.util.folders import occupied
from fedpriv.util.listener import Listener
from fedpriv.wire.kinds import payload_kind

if TYPE_CHECKING:
    from fedpriv.federation.run_directory import RunConfig


def quick_settings(target: str) -> dict[str, Any]:
    """Return settings of the run that is trained when none is given, unless the user sets them: small enough for a laptop.

    Weights are attacked after one step on one image, the textbook case; mixtures are taken apart over more rounds, in
    smaller steps, so that what the extractor makes of an image hardly moves from one round to the next.
    """
    kind = payload_kind(target)
    if kind.computed_from == "training":
        models = {"whole": "lenet-sigmoid", "extractor": "small-cnn"}.get(str(kind.network))
        one_step = {"rounds": 1, "lr": 0.1, "batch_size": 1, "local_steps": 1}
        return one_step | ({"models": models} if models else {})
    pace = {"rounds": 30, "lr": 0.03} if kind.computed_from == "mixture" else {"rounds": 10, "lr": 0.1}
    return pace | ({"public": 200} if kind.computed_from == "public" else {})


def _local(config: RunConfig) -> str:
    """Return the size of local batches and the limit on local steps, the latter where there is one."""
    training = config.training
    steps = "" if training.max_steps is None else f", at most {training.max_steps} local step(s) a round"
    return f", batch size {training.batch_size}{steps}"


def train_first(
    paths: Sequence[Path],
    configs: Sequence[RunConfig],
    *,
    device: str,
    download: bool,
    workers: int | str,
    listener: Listener,
) -> None:
    """Train runs, each in its folder, or finish those that are there; ``workers`` processes run the clients of a round."""
    for path, config in zip(paths, configs, strict=True):
        resume = occupied(path)
        if resume and RunDirectory.open(path).complete:
            continue
        listener.say(
            f"no run: training {config.method} on {dataset_title(config)}: {config.clients} clients, models "
            f"{config.models}, {config.rounds} rounds, learning rate {config.training.learning_rate:g}{_local(config)}"
        )
        how: dict[str, Any] = {"device": device, "download": download, "resume": resume, "clients_by": workers}
        train_run(path, config, listener=listener, **how)
