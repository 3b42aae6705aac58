"""Substitutes for a private extractor or model, trained on the attacker's own labelled images.

In model-heterogeneous federations nobody sends an extractor. What is sent ties its output down: a head f that classifies
its representations, and prototypes p_c, which are the means of its representations by class. A shadow extractor g of an
architecture of the attacker's choice is trained to go with both,

    CE(f(g(a)), y) + mu ||g(a) - p_y||^2 / mean_c ||p_c||^2,

with f and p frozen. Means by class are all that prototypes tell, so what tells images of one class apart is a guess.

Where clients send mean outputs u_c of their classes (FD), the head is not known either. A whole model h is trained to answer
as the client's does on average,

    CE(h(a), y) + mu D(h(a), u_y),

with D as in :func:`fedpriv.attacks.inputs.outputs.output_distance`. Classes that the client did not send keep the first
term only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.inputs.outputs import output_distance, read_outputs
from fedpriv.attacks.inputs.targets import observation_of
from fedpriv.attacks.observation import Observation, TargetId
from fedpriv.attacks.optim.adam import Adam
from fedpriv.datasets.types import Samples
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator
from fedpriv.wire.payloads import Classifier, ClassLogits, Prototypes, Representations, find_payload

WIDTH = 64
"""Length of a substitute's representations where the client's own is not known and does not matter."""

ShadowModel = tuple[Callable[[Tensor], Tensor], tuple[Tensor, Tensor]]
"""A differentiable extractor in evaluation mode, and its head's weight ``(C, d)`` and bias ``(C,)``."""


@dataclass(frozen=True)
class Anchors:
    """A head and class means that a private extractor's output is known to fit; None where unknown.

    Attributes:
        weight: ``(C, d)``.
        bias: ``(C,)``.
        prototypes: ``(c, d)`` class means.
        classes: ``(c,)`` int64 their classes.
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
    """The training of a substitute, by Adam.

    Attributes:
        architecture: a name of ``fedpriv.models.MODELS``; the client's own is not known. None takes cnn4 for images
            of 32 positions a side or more, small-cnn for smaller ones.
        epochs: passes over the attacker's images.
        batch_size: images a step.
        learning_rate: Adam's step size.
        alignment: mu, the weight of the distance to what was sent.
        steps: steps at most, however many passes these are; None for no limit.
    """

    architecture: str | None = None
    epochs: int = 40
    batch_size: int = 32
    learning_rate: float = 1e-3
    alignment: float = 1.0
    steps: int | None = None


def find_anchors(observations: Sequence[Observation], client: int, round_: int) -> Anchors:
    """Return the client's own head and class means where it uploads them in a round, else those that it was sent.

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
        training: default :class:`ShadowTraining`.

    Returns:
        Images ``(n, c, h, w)`` to representations ``(n, d)``, differentiable, in evaluation mode.

    Raises:
        UserError: when there is nothing to align with.
    """
    how = training or ShadowTraining()
    anchors = find_anchors(observations, client, round_)
    model = substitute(own.images, n_classes, anchors.width, derive_seed(seed, "shadow", client), how.architecture)
    loss_of = _anchored_loss(anchors, n_classes, how.alignment, own.images.device)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return loss_of(model.represent(images), labels)

    parameters = [*model.extractor.parameters(), *model.mapping.parameters()]
    # Batch norm, where the architecture has it, needs two images.
    train_substitute(parameters, own, loss, how, generator(seed, "shadow order", client), least=2)
    model.eval().requires_grad_(False)
    return model.represent


def shadow_model(
    observations: Sequence[Observation],
    client: int,
    round_: int,
    own: Samples,
    n_classes: int,
    seed: int,
    training: ShadowTraining | None = None,
) -> ShadowModel:
    """Train a substitute for a client's whole model by its class outputs; arguments as of :func:`shadow_extractor`.

    Raises:
        UserError: when the client sent no class outputs.
    """
    how = training or ShadowTraining()
    sent = find_payload(observation_of(observations, TargetId(round_, client)).upload, ClassLogits)
    if sent is None:
        raise UserError(f"knowledge extractor=shadow: client {client} sent no class outputs in round {round_}")
    values, softmax = read_outputs(sent.values)
    table, known = by_class(values, sent.classes, n_classes, own.images.device)
    model = substitute(own.images, n_classes, WIDTH, derive_seed(seed, "shadow", client), how.architecture)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        logits = model(images)
        apart = output_distance(logits, table[labels], softmax=softmax) * known[labels]
        return functional.cross_entropy(logits, labels) + how.alignment * apart.mean()

    samples = Samples(own.images, own.labels.to(own.images.device))
    order = generator(seed, "shadow order", client)
    train_substitute(list(model.parameters()), samples, loss, how, order, least=2)
    model.eval().requires_grad_(False)
    return model.represent, (model.head.weight.detach(), model.head.bias.detach())


def substitute(images: Tensor, n_classes: int, width: int, seed: int, architecture: str | None = None) -> SplitModel:
    """Return an untrained model for images ``(p, c, h, w)`` on their device, in training mode; see `ShadowTraining`."""
    channels, height, side = images.shape[1:]
    name = architecture or ("cnn4" if min(height, side) >= 32 else "small-cnn")
    return build_model(Blueprint(name, (channels, height, side), n_classes, width), seed).to(images.device).train()


def train_substitute(
    parameters: Sequence[Tensor],
    own: Samples,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    how: ShadowTraining,
    rng: torch.Generator,
    *,
    least: int = 1,
) -> None:
    """Minimise a loss of (images, labels) over batches of at least ``least`` images, in an order that ``rng`` draws."""
    optimiser = Adam(parameters, how.learning_rate)
    orders = (torch.randperm(len(own.labels), generator=rng).to(own.images.device) for _ in range(how.epochs))
    batches = (index for order in orders for index in order.split(how.batch_size) if len(index) >= least)
    for index in islice(batches, how.steps):
        loss = loss_of(own.images[index], own.labels[index])
        optimiser.forget_gradients()
        loss.backward()
        optimiser.step()


def by_class(rows: Tensor, classes: Tensor, n_classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return rows ``(c, k)`` as a table ``(C, k)`` with zeros for other classes, and 1 for each class that is there."""
    rows, classes = rows.to(device), classes.to(device)
    table = rows.new_zeros(n_classes, rows.shape[1]).index_copy(0, classes, rows)
    return table, rows.new_zeros(n_classes).index_fill(0, classes, 1.0)


def _anchored_loss(
    anchors: Anchors, n_classes: int, alignment: float, device: torch.device
) -> Callable[[Tensor, Tensor], Tensor]:
    table, known, scale = None, None, 1.0
    if anchors.prototypes is not None and anchors.classes is not None:
        table, known = by_class(anchors.prototypes, anchors.classes, n_classes, device)
        scale = float(anchors.prototypes.to(device).square().sum(1).mean().clamp_min(1e-12))
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
