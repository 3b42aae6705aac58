"""A substitute for a private extractor, trained on the attacker's own labelled images.

In model-heterogeneous federations nobody sends an extractor. What is sent ties its output down: a head f that classifies
its representations, and prototypes p_c, which are the means of its representations by class. A shadow extractor g of an
architecture of the attacker's choice is trained to go with both,

    CE(f(g(a)), y) + mu ||g(a) - p_y||^2 / mean_c ||p_c||^2,

with f and p frozen. Means by class are all that prototypes tell, so what tells images of one class apart is a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.observation import Observation
from fedpriv.datasets.types import Samples
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator
from fedpriv.wire.payloads import Classifier, Prototypes, Representations, find_payload


@dataclass(frozen=True)
class Anchors:
    """What a private extractor's output is known to fit.

    Attributes:
        weight: ``(C, d)`` of a head, or None.
        bias: ``(C,)`` of the head, or None.
        prototypes: ``(c, d)`` class means, or None.
        classes: ``(c,)`` int64 their classes, or None.
    """

    weight: Tensor | None = None
    bias: Tensor | None = None
    prototypes: Tensor | None = None
    classes: Tensor | None = None

    @property
    def width(self) -> int:
        """Length d of a representation."""
        known = self.weight if self.weight is not None else self.prototypes
        assert known is not None
        return known.shape[1]


@dataclass(frozen=True)
class ShadowTraining:
    """How a shadow extractor is trained.

    Attributes:
        architecture: a name of ``fedpriv.models.MODELS``; the client's own is not known. None takes cnn4 for images
            of 16 positions a side or more, small-cnn for smaller ones.
        epochs: passes over the attacker's images.
        batch_size: images a step.
        learning_rate: Adam's step size.
        alignment: mu, the weight of the distance to prototypes.
    """

    architecture: str | None = None
    epochs: int = 40
    batch_size: int = 32
    learning_rate: float = 1e-3
    alignment: float = 1.0


def find_anchors(observations: Sequence[Observation], client: int, round_: int) -> Anchors:
    """Collect what the server saw of a client in a round that ties its extractor's output down.

    The client's own head and class means are taken where it uploads them, else those that it was sent.

    Raises:
        UserError: when there is neither a head nor a class mean, or nothing of the client.
    """
    for seen in observations:
        if (seen.round, seen.client) != (round_, client):
            continue
        head = find_payload(seen.upload, Classifier) or find_payload(seen.broadcast, Classifier)
        means = find_payload(seen.upload, Prototypes)
        raw = find_payload(seen.upload, Representations)
        if means is None and raw is not None:
            classes = raw.labels.unique()
            means = Prototypes(torch.stack([raw.features[raw.labels == c].mean(0) for c in classes]), classes)
        means = means or find_payload(seen.broadcast, Prototypes)
        if head is None and (means is None or not len(means.classes)):
            break
        return Anchors(
            weight=None if head is None else head.state["weight"],
            bias=None if head is None else head.state["bias"],
            prototypes=None if means is None else means.features,
            classes=None if means is None else means.classes,
        )
    raise UserError(
        f"knowledge extractor=shadow: neither upload nor broadcast of client {client} in round {round_} holds a classifier, "
        "prototypes or representations to align a shadow extractor with"
    )


def shadow_extractor(
    observations: Sequence[Observation],
    client: int,
    round_: int,
    own: Samples,
    n_classes: int,
    seed: int,
    training: ShadowTraining | None = None,
) -> Callable[[Tensor], Tensor]:
    """Train a substitute for a client's extractor.

    Args:
        observations: what the server saw.
        client: whose extractor to stand in for.
        round_: whose uploads it should fit.
        own: the attacker's images ``(p, c, h, w)`` in [0, 1] with labels.
        n_classes: C.
        seed: of the initial weights and the order of images.
        training: how; default :class:`ShadowTraining`.

    Returns:
        Images ``(n, c, h, w)`` to representations ``(n, d)``, differentiable, in evaluation mode.

    Raises:
        UserError: when there is nothing to align with.
    """
    how = training or ShadowTraining()
    anchors = find_anchors(observations, client, round_)
    images, labels = own.images, own.labels
    device = images.device
    shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
    name = how.architecture or ("cnn4" if min(shape[1:]) >= 16 else "small-cnn")
    model = build_model(Blueprint(name, shape, n_classes, anchors.width), derive_seed(seed, "shadow", client))
    model = model.to(device).train()
    parameters = [*model.extractor.parameters(), *model.mapping.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=how.learning_rate)
    rng = generator(seed, "shadow order", client)
    loss_of = _loss(anchors, n_classes, how.alignment, device)
    for _ in range(how.epochs):
        for index in torch.randperm(len(labels), generator=rng).to(device).split(how.batch_size):
            if len(index) < 2:  # batch norm, where the architecture has it, needs two
                continue
            loss = loss_of(model.represent(images[index]), labels[index])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    model.eval().requires_grad_(False)
    return model.represent


def _loss(
    anchors: Anchors, n_classes: int, alignment: float, device: torch.device
) -> Callable[[Tensor, Tensor], Tensor]:
    table, known, scale = None, None, 1.0
    if anchors.prototypes is not None and anchors.classes is not None:
        means, classes = anchors.prototypes.to(device), anchors.classes.to(device)
        table = means.new_zeros(n_classes, means.shape[1]).index_copy(0, classes, means)
        known = torch.zeros(n_classes, dtype=torch.bool, device=device).index_fill(0, classes, True)
        scale = float(means.square().sum(1).mean().clamp_min(1e-12))
    weight = None if anchors.weight is None else anchors.weight.to(device)
    bias = None if anchors.bias is None else anchors.bias.to(device)

    def loss(features: Tensor, labels: Tensor) -> Tensor:
        total = features.new_zeros(())
        if weight is not None:
            total = total + functional.cross_entropy(functional.linear(features, weight, bias), labels)
        if table is not None and known is not None:
            distance = (features - table[labels]).square().sum(1) * known[labels]
            total = total + alignment * distance.mean() / scale
        return total

    return loss
