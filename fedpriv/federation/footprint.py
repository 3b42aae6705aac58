"""The memory that a federation takes at the least, and its refusal before anything is allocated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import torch

from fedpriv.datasets.types import Dataset, Samples
from fedpriv.federation.local_training import EVALUATION_BATCH
from fedpriv.federation.method import ClientSetup
from fedpriv.models.build import footprint
from fedpriv.models.split import Blueprint
from fedpriv.util.arguments import argument
from fedpriv.util.memory import require


def refuse_images(dataset: Dataset) -> None:
    """Refuse images that cannot be divided: each is copied when it is given to somebody, and trained on as floats.

    Raises:
        UserError: naming what would fit.
    """
    images = dataset.samples.images
    number, each = len(images), images[:1].numel()

    def fits(free: int) -> str:
        fewer = free // max(1, each * (4 + images.element_size())) // max(1, dataset.n_classes)
        return (
            f"smaller images ({argument('image_size')})"
            + (f" or {argument('per_class', fewer)}" * (fewer > 0))
            + " would fit"
        )

    shape = " x ".join(map(str, images.shape[1:]))
    what = f"dividing data set {dataset.name!r}, {number:,} images of {shape},"
    require(number * each * (4 + images.element_size()), what, fits, "image_size")


def refuse_networks(blueprints: Collection[Blueprint], device: torch.device) -> None:
    """Refuse networks of which the CPU's memory cannot hold one of each; a GPU says itself when it is full.

    Raises:
        UserError: naming the settings that make them smaller.
    """
    weights = sum(footprint(blueprint).weights for blueprint in set(blueprints))
    if device.type == "cpu":
        require(
            weights, f"one of each network ({len(set(blueprints))})", lambda free: _SMALLER.format(*_sizes()), "models"
        )


def refuse_training(setups: Sequence[ClientSetup], tests: Sequence[Samples], device: torch.device) -> None:
    """Refuse a federation that the CPU's memory cannot hold while it trains; a GPU says itself when it is full.

    Counted are the order of a client's images in every epoch, the weights of every client, each architecture once more with
    its gradients, and of one batch what training keeps for the way back or what a layer takes in an evaluation.

    Args:
        setups: of the clients.
        tests: of the clients.
        device: where the models are.

    Raises:
        UserError: naming what would fit.
    """
    if device.type != "cpu":
        return
    training, most = setups[0].training, max(len(setup.train) for setup in setups)
    order = 8 * most  # a round's batches are drawn before its first step
    told = f"{training.epochs:,} orders of {most:,} images"
    require(order * training.epochs, told, lambda free: f"{argument('epochs', free // order)} would fit", "epochs")
    clients = Counter(setup.blueprint for setup in setups)
    found = {blueprint: footprint(blueprint) for blueprint in clients}
    weights = sum((clients[blueprint] + 2) * one.weights for blueprint, one in found.items())
    told = f"training the models of {len(setups):,} clients"
    require(weights, told, lambda free: f"fewer {argument('clients')} or {_SMALLER.format(*_sizes())}", "models")
    kept, widest = max(one.kept for one in found.values()), max(one.widest for one in found.values())

    def fits(free: int) -> str:
        fitting = max(0, free - weights) // max(1, kept)
        return (
            f"{argument('batch_size', fitting)}" if fitting else f"a smaller {argument('image_size')}"
        ) + " would fit"

    batch = min(training.batch_size, most)
    require(weights + batch * kept, f"training on batches of {batch} images", fits, "batch_size")
    seen = min(EVALUATION_BATCH, max(map(len, tests)))
    told = f"the models' answers to {seen} test images at a time"
    require(weights + seen * widest, told, lambda free: f"a smaller {argument('image_size')} would fit", "image_size")


_SMALLER = "smaller {}, {} or {} would fit"


def _sizes() -> tuple[str, str, str]:
    return argument("models"), argument("width"), argument("image_size")
