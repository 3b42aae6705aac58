"""Operations of a client in a round, counted on the real modules.

A multiplication with the addition that follows it counts as two operations. Counted are convolutions, matrix products
and attention, forward and backward, of training the private model by cross-entropy: what every method does. What a
method adds (a second model, prototypes, a regulariser) is not in the figure, nor are element-wise operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from fedpriv.federation.local_training import has_batch_norm, local_batches
from fedpriv.federation.method import ClientSetup
from fedpriv.federation.summary import Work
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.util.seeds import generator, global_seed

COUNTED_BATCH = 2
"""Operations grow in proportion to the batch, so a small one tells; batch normalisation needs two images."""


def training_flops_per_image(model: SplitModel, blueprint: Blueprint) -> int:
    """Return the operations of one image's forward and backward pass, multiply-add counting two.

    Runs one step on black images without an optimiser: weights stay, running statistics do not.
    """
    device = model.head.weight.device
    images = torch.zeros(COUNTED_BATCH, *blueprint.image_shape, device=device)
    labels = torch.zeros(COUNTED_BATCH, dtype=torch.int64, device=device)
    model.train()
    with global_seed(0), FlopCounterMode(display=False) as counter:
        torch.autograd.grad(cross_entropy(model(images), labels), list(model.parameters()), allow_unused=True)
    return int(counter.get_total_flops()) // COUNTED_BATCH


def images_per_round(setup: ClientSetup) -> int:
    """Return the number of images that a client trains on in a round, every epoch counted."""
    joined = has_batch_norm(setup.model)
    return sum(map(len, local_batches(len(setup.train), setup.training, generator(0), join_single=joined)))


def local_training_flops(setups: Sequence[ClientSetup]) -> Work:
    """Return the operations of one round's local training, counting one step of every distinct architecture."""
    each: dict[Blueprint, int] = {}
    for setup in setups:
        if setup.blueprint not in each:
            each[setup.blueprint] = training_flops_per_image(setup.model, setup.blueprint)
    clients = tuple(each[setup.blueprint] * images_per_round(setup) for setup in setups)
    return Work(local_training_per_client_round=clients, mean_per_client_round=sum(clients) / len(clients))
