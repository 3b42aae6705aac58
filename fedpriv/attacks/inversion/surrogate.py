"""Substitutes for clients, trained on the attacker's own images: shadows of private networks, and simulated clients.

Where a head f is sent and prototypes p_c, a shadow g is trained on labelled auxiliary images, f and p frozen, by

    CE(f(g(a)), y) + ||g(a) - p_y||^2 / mean_c ||p_c||^2.

Where clients send mean outputs u_c of their classes (FD), a whole model h is trained by

    CE(h(a), y) + D(h(a), u_y),

with D as in :func:`fedpriv.attacks.inputs.outputs.output_distance`. Classes that the client did not send keep the first
term only. Simulated clients train from the broadcast classifier, pulled towards broadcast prototypes, and upload what
real ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from fedpriv.algebra.entanglement import entangle, sample_weights
from fedpriv.attacks.inputs.outputs import output_distance, read_outputs
from fedpriv.attacks.inputs.targets import kinds_in, observation_of
from fedpriv.attacks.observation import Observation, TargetId
from fedpriv.attacks.search.fit import Adam
from fedpriv.datasets.types import Samples
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint, SplitModel, fastest_order
from fedpriv.uploads.kinds import CLASS_MEANS, HEADS, MIXTURES, VECTORS
from fedpriv.uploads.payload import Payload
from fedpriv.uploads.payloads import Classifier, ClassLogits, Entangled, Prototypes, Representations, find_payload
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator

WIDTH = 64  # of a shadow's representations where the client's own is not known and does not matter
_CONCENTRATIONS = (0.1, 0.3, 1.0)  # of the Dirichlet distributions of simulated clients' class shares, in turn

Extractor = Callable[[Tensor], Tensor]
"""Images ``(n, c, h, w)`` to representations ``(n, d)``, differentiable, in evaluation mode."""

ShadowModel = tuple[Extractor, tuple[Tensor, Tensor]]
"""An extractor, and its head's weight ``(C, d)`` and bias ``(C,)``."""


@dataclass(frozen=True)
class ShadowTraining:
    """Length of a substitute's training, and the steps of Adam."""

    epochs: int = 40
    batch_size: int = 32
    learning_rate: float = 1e-3
    steps: int | None = None  # at most
    enough: float = 0.0  # share of the first loss below which the running mean of the loss ends training


def find_anchors(
    observations: Sequence[Observation], client: int, round_: int
) -> tuple[Classifier | None, Prototypes | None]:
    """Return the client's head and class means where it uploads them in a round, else those sent to it; refuse none."""
    for seen in observations:
        if (seen.round, seen.client) != (round_, client):
            continue
        head = find_payload(seen.upload, Classifier) or find_payload(seen.broadcast, Classifier)
        means, raw = find_payload(seen.upload, Prototypes), find_payload(seen.upload, Representations)
        if means is None and raw is not None:
            classes = raw.labels.unique()
            means = Prototypes(torch.stack([raw.features[raw.labels == c].mean(0) for c in classes]), classes)
        means = means or find_payload(seen.broadcast, Prototypes)
        means = means if means is not None and len(means.classes) else None
        if head is not None or means is not None:
            return head, means
    raise UserError(
        f"knowledge extractor=shadow: neither upload nor broadcast of client {client} in round {round_} holds a classifier, "
        "prototypes or representations to align a shadow extractor with"
    )


def shadow_extractor(
    anchors: tuple[Classifier | None, Prototypes | None],
    samples: Samples,
    n_classes: int,
    seed: int,
    training: ShadowTraining = ShadowTraining(epochs=12),
) -> Extractor:
    """Return a shadow of extractors, trained on the attacker's images when it is first called.

    ``anchors``: the head and the class means (:func:`find_anchors`), one of them at least. Clients with the same anchors
    have the same shadow.
    """
    device = samples.images.device
    classifier, means = anchors
    head = None if classifier is None else [classifier.state[name].to(device) for name in ("weight", "bias")]
    near = None if means is None else by_class(means.features, means.classes, n_classes, device)
    scale = 0.0 if means is None else float(means.features.square().sum(1).mean().clamp_min(1e-12))
    width = next(rows.shape[1] for rows in (head or near or ()))

    @cache
    def trained() -> Extractor:
        model = substitute(samples.images, n_classes, width, derive_seed(seed, "shadow"))

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            features = model.represent(images)
            total = features.new_zeros(()) if head is None else cross_entropy(linear(features, *head), labels)
            return total if near is None else total + _distance(features, labels, near).mean() / scale

        # Batch norm, where the architecture has it, needs two images.
        train_substitute(model, samples, loss, training, generator(seed, "shadow order"), least=2)
        return model.eval().requires_grad_(False).represent

    return lambda images: trained()(images)


def shadow_model(
    observations: Sequence[Observation],
    client: int,
    round_: int,
    samples: Samples,
    n_classes: int,
    seed: int,
    training: ShadowTraining = ShadowTraining(),
) -> ShadowModel:
    """Train a shadow of a client's whole model by its class outputs, or refuse where it sent none."""
    sent = find_payload(observation_of(observations, TargetId(round_, client)).upload, ClassLogits)
    if sent is None:
        raise UserError(f"knowledge extractor=shadow: client {client} sent no class outputs in round {round_}")
    values, softmax = read_outputs(sent.values)
    table, known = by_class(values, sent.classes, n_classes, samples.images.device)
    model = substitute(samples.images, n_classes, WIDTH, derive_seed(seed, "shadow", client))

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        logits = model(images)
        apart = output_distance(logits, table[labels], softmax=softmax) * known[labels]
        return cross_entropy(logits, labels) + apart.mean()

    train_substitute(model, samples, loss, training, generator(seed, "shadow order", client), least=2)
    model.eval().requires_grad_(False)
    return model.represent, (model.head.weight.detach(), model.head.bias.detach())


def substitute(images: Tensor, n_classes: int, width: int, seed: int) -> SplitModel:
    """Return an untrained cnn4 for images ``(p, c, h, w)`` of 32 positions a side, small-cnn for smaller ones."""
    channels, height, side = images.shape[1:]
    name = "cnn4" if min(height, side) >= 32 else "small-cnn"
    return build_model(Blueprint(name, (channels, height, side), n_classes, width), seed).to(images.device).train()


@torch.enable_grad()
def train_substitute(
    model: SplitModel,
    samples: Samples,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    training: ShadowTraining,
    rng: torch.Generator,
    *,
    least: int = 1,
) -> None:
    """Minimise a mean loss of (images, labels) over batches of at least ``least`` images, in an order that ``rng`` draws."""
    device = samples.images.device
    orders = (torch.randperm(len(samples.labels), generator=rng).to(device) for _ in range(training.epochs))
    batches = (index for order in orders for index in order.split(training.batch_size) if len(index) >= least)
    with fastest_order(model, loss_of) as ordered:
        optimiser = Adam(model.parameters(), training.learning_rate, fused=True)
        first = mean = 0.0
        for index in islice(batches, training.steps):
            loss = loss_of(ordered(samples.images[index]), samples.labels[index])
            optimiser.descend(loss)
            if training.enough:  # a GPU would be waited for
                value = loss.item()
                first, mean = first or value, 0.9 * (mean or value) + 0.1 * value
                if mean < training.enough * first:
                    break


def by_class(rows: Tensor, classes: Tensor, n_classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return rows ``(c, k)`` as a table ``(C, k)`` with zeros for other classes, and 1 for each class that is there."""
    rows, classes = rows.to(device), classes.to(device)
    table = rows.new_zeros(n_classes, rows.shape[1]).index_copy(0, classes, rows)
    return table, rows.new_zeros(n_classes).index_fill(0, classes, 1.0)


def _distance(features: Tensor, labels: Tensor, near: tuple[Tensor, Tensor]) -> Tensor:
    """Return squared distances ``(n,)`` from the rows of classes; zero where there is none."""
    table, known = near
    return (features - table[labels]).square().sum(1) * known[labels]


# ---------------------------------------------------------------- simulated clients


def shadow_clients(
    like: Observation, auxiliary: Samples, n_classes: int, number: int, seed: int, training: ShadowTraining
) -> Iterator[tuple[Observation, Tensor]]:
    """Yield what simulated clients upload, of the kind and width of ``like``, and their images of each class ``(C,)``."""
    widths = [
        payload.rows().shape[1] if payload.kind in VECTORS else payload.parameters()["weight"].shape[1]
        for payload in (*like.upload, *like.broadcast)
        if payload.kind in VECTORS | HEADS
    ]
    head, means = find_payload(like.broadcast, Classifier), find_payload(like.broadcast, Prototypes)
    device = auxiliary.images.device
    near = None if means is None else by_class(means.features, means.classes, n_classes, device)
    for position in range(number):
        rng = generator(seed, "shadow client", position)
        index = _draw_images(auxiliary.labels.cpu(), n_classes, position, rng)
        samples = Samples(auxiliary.images[index], auxiliary.labels[index].to(device))
        drawn = derive_seed(seed, "shadow client", position)
        model = substitute(samples.images, n_classes, widths[0] if widths else WIDTH, drawn)
        if head is not None:
            model.head.load_state_dict(head.state)

        def loss(images: Tensor, labels: Tensor, model: SplitModel = model) -> Tensor:
            features = model.represent(images)
            total = cross_entropy(model.head(features), labels)
            return total if near is None else total + _distance(features, labels, near).mean() / features.shape[1]

        train_substitute(model, samples, loss, training, rng)
        with torch.no_grad():
            features = torch.cat([model.eval().represent(part) for part in samples.images.split(256)])
        upload = _upload(features, samples.labels, n_classes, like, rng)
        counts = torch.bincount(samples.labels.cpu(), minlength=n_classes)
        yield Observation(like.round, -1 - position, (upload,), like.broadcast), counts


def _draw_images(labels: Tensor, n_classes: int, number: int, rng: torch.Generator) -> Tensor:
    """Draw a client's images, half of all where they last, with class shares from a Dirichlet distribution."""
    alpha = _CONCENTRATIONS[number % len(_CONCENTRATIONS)]
    seed = int(torch.randint(2**31, (1,), generator=rng))
    wanted = np.round(np.random.default_rng(seed).dirichlet([alpha] * n_classes) * len(labels) / 2).astype(int)
    chosen = []
    for label in range(n_classes):
        places = (labels == label).nonzero().flatten()
        chosen.append(places[torch.randperm(len(places), generator=rng)[: int(wanted[label])]])
    index = torch.cat(chosen)
    return index if len(index) > 1 else torch.randperm(len(labels), generator=rng)[:2]


def _upload(features: Tensor, labels: Tensor, n_classes: int, like: Observation, rng: torch.Generator) -> Payload:
    """Return means, or a mixture by FedRE's RAP, of representations ``(n, d)`` of classes ``(n,)``."""
    if MIXTURES.first(like.upload) is not None:
        weights = sample_weights(labels, "RAP", rng)
        return Entangled(*(value.cpu() for value in entangle(features, labels, weights, n_classes)))
    if CLASS_MEANS.first(like.upload) is not None:
        classes = labels.unique()
        means = torch.stack([features[labels == label].mean(0) for label in classes])
        return Prototypes(means.cpu(), classes.cpu())
    raise UserError(f"attack 'property': no client can be made up that uploads {kinds_in(like.upload)}")
