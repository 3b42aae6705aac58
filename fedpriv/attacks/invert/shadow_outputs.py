"""A substitute for a private model of which only class outputs were seen, trained on the attacker's own images.

Where clients send mean outputs u_c of their classes (FD), neither extractor nor head is known. A whole model h of the
attacker's choice is trained on its own labelled images a to answer as the client's does on average,

    CE(h(a), y) + mu D(h(a), u_y),

with D as in :func:`fedpriv.attacks.read.class_outputs.output_distance`. Classes that the client did not send keep
the first term only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.invert.shadow import ShadowTraining
from fedpriv.attacks.observation import Observation, TargetId
from fedpriv.attacks.read.class_outputs import is_distribution, output_distance
from fedpriv.attacks.read.target_features import observation_of
from fedpriv.datasets.types import Samples
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator
from fedpriv.wire.payloads import ClassLogits, find_payload

WIDTH = 64
"""Length of the substitute's representations; the client's own is not known and does not matter."""

ShadowModel = tuple[Callable[[Tensor], Tensor], tuple[Tensor, Tensor]]
"""A differentiable extractor in evaluation mode, and its head's weight ``(C, d)`` and bias ``(C,)``."""


def shadow_model(
    observations: Sequence[Observation],
    client: int,
    round_: int,
    own: Samples,
    n_classes: int,
    seed: int,
    training: ShadowTraining | None = None,
) -> ShadowModel:
    """Train a substitute for a client's model.

    Args:
        observations: what the server saw.
        client: whose model to stand in for.
        round_: whose upload it should answer like.
        own: the attacker's images ``(p, c, h, w)`` in [0, 1] with labels.
        n_classes: C.
        seed: of the initial weights and the order of images.
        training: how; default :class:`fedpriv.attacks.invert.shadow.ShadowTraining`.

    Raises:
        UserError: when the client sent no class outputs.
    """
    how = training or ShadowTraining()
    sent = find_payload(observation_of(observations, TargetId(round_, client)).upload, ClassLogits)
    if sent is None:
        raise UserError(f"knowledge extractor=shadow: client {client} sent no class outputs in round {round_}")
    images, labels = own.images, own.labels.to(own.images.device)
    device = images.device
    values, classes, softmax = sent.values.to(device), sent.classes.to(device), is_distribution(sent.values)
    table = torch.zeros(n_classes, n_classes, device=device).index_copy(0, classes, values)
    known = torch.zeros(n_classes, dtype=torch.bool, device=device).index_fill(0, classes, True)
    shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
    name = how.architecture or ("cnn4" if min(shape[1:]) >= 16 else "small-cnn")
    blueprint = Blueprint(name, shape, n_classes, WIDTH)
    model = build_model(blueprint, derive_seed(seed, "shadow", client)).to(device).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=how.learning_rate)
    rng = generator(seed, "shadow order", client)
    for _ in range(how.epochs):
        for index in torch.randperm(len(labels), generator=rng).to(device).split(how.batch_size):
            if len(index) < 2:  # batch norm, where the architecture has it, needs two
                continue
            logits, wanted = model(images[index]), labels[index]
            apart = output_distance(logits, table[wanted], softmax=softmax) * known[wanted]
            loss = functional.cross_entropy(logits, wanted) + how.alignment * apart.mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    model.eval().requires_grad_(False)
    return model.represent, (model.head.weight.detach(), model.head.bias.detach())
