"""Clients that the attacker makes up: drawn from its own labelled images, trained as the broadcast suggests, and uploading.

Nothing of any method is used but what the protocol shows: a client is sent something, trains a private model on its images,
and uploads a payload of a known kind. A shadow client starts from the broadcast classifier where there is one, and is pulled
towards broadcast prototypes and class outputs where there are some.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.algebra.entanglement import Mechanism, entangle, sample_weights
from fedpriv.attacks.infer.known_clients import KnownClient
from fedpriv.attacks.observation import BatchFacts, Observation
from fedpriv.attacks.read.class_outputs import is_distribution, output_distance
from fedpriv.datasets.types import Samples
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator
from fedpriv.wire.kinds import CLASS_MEANS, CLASS_OUTPUTS, HEADS, MIXTURES, VECTORS
from fedpriv.wire.payloads import Classifier, ClassLogits, Entangled, Message, Payload, Prototypes, find_payload

_CONCENTRATIONS = (0.1, 0.3, 1.0)
_BATCH, _RATE = 16, 2e-3
LEAST_IMAGES = 40
"""Images of its own below which no clients can be made up."""


def shadow_clients(
    like: Observation,
    own: Samples,
    n_classes: int,
    number: int,
    seed: int,
    *,
    epochs: int,
    mechanism: Mechanism,
    batch: BatchFacts | None,
) -> tuple[KnownClient, ...]:
    """Make up clients that upload what ``like`` does.

    Args:
        like: an upload of a real client: its kind, the width of its vectors, and its broadcast are copied.
        own: the attacker's images ``(p, c, h, w)`` in [0, 1] with labels.
        n_classes: C.
        number: how many.
        seed: of everything drawn.
        epochs: passes over a client's images.
        mechanism: of entangled uploads.
        batch: the local step, for classifiers; None takes one pass at learning rate 0.1.

    Raises:
        UserError: when there are too few images, or nothing like the upload can be made.
    """
    if len(own) < LEAST_IMAGES:
        raise UserError(
            f"attack 'property' got {len(own)} images to make clients of; expected at least {LEAST_IMAGES} (train the "
            "run with --public N)"
        )
    made = []
    for place in range(number):
        rng = generator(seed, "shadow client", place)
        index = _holding(own.labels.cpu(), n_classes, place, rng)
        images, labels = own.images[index], own.labels[index].to(own.images.device)
        model = _trained(like, images, labels, n_classes, derive_seed(seed, "shadow client", place), rng, epochs)
        upload = _upload(like, model, images, labels, n_classes, rng, mechanism, batch)
        counts = torch.bincount(labels.cpu(), minlength=n_classes)
        made.append(KnownClient(Observation(like.round, -1 - place, upload, like.broadcast), counts))
    return tuple(made)


def _holding(labels: Tensor, n_classes: int, place: int, rng: torch.Generator) -> Tensor:
    """Draw a client's images: class shares from a Dirichlet distribution, as many as half of all, where they last."""
    alpha = _CONCENTRATIONS[place % len(_CONCENTRATIONS)]
    seed = int(torch.randint(2**31, (1,), generator=rng))
    wanted = np.round(np.random.default_rng(seed).dirichlet([alpha] * n_classes) * len(labels) / 2).astype(int)
    chosen = []
    for label in range(n_classes):
        places = (labels == label).nonzero().flatten()
        chosen.append(places[torch.randperm(len(places), generator=rng)[: int(wanted[label])]])
    index = torch.cat(chosen)
    return index if len(index) > 1 else torch.randperm(len(labels), generator=rng)[:2]


def _trained(
    like: Observation, images: Tensor, labels: Tensor, n_classes: int, seed: int, rng: torch.Generator, epochs: int
) -> SplitModel:
    shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
    name = "cnn4" if min(shape[1:]) >= 16 else "small-cnn"
    model = build_model(Blueprint(name, shape, n_classes, _width(like)), seed).to(images.device).train()
    _take_head(model, like)
    loss_of = _loss(like, n_classes, images.device)
    optimiser = torch.optim.Adam(model.parameters(), lr=_RATE)
    for _ in range(epochs):
        for index in torch.randperm(len(labels), generator=rng).to(images.device).split(_BATCH):
            loss = loss_of(model, images[index], labels[index])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval()


def _width(like: Observation) -> int:
    for payload in (*like.upload, *like.broadcast):
        if payload.kind in VECTORS:
            return payload.rows().shape[1]
        if payload.kind in HEADS:
            return payload.parameters()["weight"].shape[1]
    return 64


def _take_head(model: SplitModel, like: Observation) -> None:
    sent = find_payload(like.broadcast, Classifier)
    if sent is not None:
        with torch.no_grad():
            model.head.weight.copy_(sent.state["weight"])
            model.head.bias.copy_(sent.state["bias"])


def _loss(like: Observation, n_classes: int, device: torch.device) -> Callable[[SplitModel, Tensor, Tensor], Tensor]:
    means, outputs = find_payload(like.broadcast, Prototypes), find_payload(like.broadcast, ClassLogits)
    pulls: list[tuple[Tensor, Tensor, bool | None]] = []
    if means is not None:
        pulls.append((*_table(means.features, means.classes, n_classes, device), None))
    if outputs is not None:
        pulls.append((*_table(outputs.values, outputs.classes, n_classes, device), is_distribution(outputs.values)))

    def loss(model: SplitModel, images: Tensor, labels: Tensor) -> Tensor:
        features = model.represent(images)
        logits = model.head(features)
        total = functional.cross_entropy(logits, labels)
        for table, known, softmax in pulls:
            wanted = table[labels]
            apart = (
                (features - wanted).square().mean(1)
                if softmax is None
                else output_distance(logits, wanted, softmax=softmax)
            )
            total = total + (apart * known[labels]).mean()
        return total

    return loss


def _table(rows: Tensor, classes: Tensor, n_classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    rows, classes = rows.to(device), classes.to(device)
    table = torch.zeros(n_classes, rows.shape[1], device=device).index_copy(0, classes, rows)
    return table, torch.zeros(n_classes, device=device).index_fill(0, classes, 1.0)


def _upload(
    like: Observation,
    model: SplitModel,
    images: Tensor,
    labels: Tensor,
    n_classes: int,
    rng: torch.Generator,
    mechanism: Mechanism,
    batch: BatchFacts | None,
) -> Message:
    if HEADS.first(like.upload) is not None:
        return (_classifier(like, model, images, labels, rng, batch),)
    with torch.no_grad():
        features = torch.cat([model.represent(part) for part in images.split(256)])
        logits = model.head(features)
    for payload in like.upload:
        found = _payload(payload, features, logits, labels, n_classes, rng, mechanism)
        if found is not None:
            return (found,)
    kinds = ", ".join(payload.kind for payload in like.upload)
    raise UserError(f"attack 'property': no client can be made up that uploads {kinds or 'nothing'}")


def _payload(
    like: Payload,
    features: Tensor,
    logits: Tensor,
    labels: Tensor,
    n_classes: int,
    rng: torch.Generator,
    mechanism: Mechanism,
) -> Payload | None:
    if like.kind in MIXTURES:
        weights = sample_weights(labels, mechanism, rng)
        return Entangled(*(value.cpu() for value in entangle(features, labels, weights, n_classes)))
    classes = labels.unique()
    if like.kind in CLASS_MEANS:
        means = torch.stack([features[labels == label].mean(0) for label in classes])
        return Prototypes(means.cpu(), classes.cpu())
    if like.kind in CLASS_OUTPUTS:
        answers = logits.softmax(1) if is_distribution(like.rows()) else logits
        return ClassLogits(torch.stack([answers[labels == label].mean(0) for label in classes]).cpu(), classes.cpu())
    return None


def _classifier(
    like: Observation, model: SplitModel, images: Tensor, labels: Tensor, rng: torch.Generator, batch: BatchFacts | None
) -> Classifier:
    """Return the head after one round of local steps from the broadcast one."""
    _take_head(model, like)
    size = _BATCH if batch is None else batch.batch_size
    steps = max(1, len(labels) // size) if batch is None else batch.steps
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1 if batch is None else batch.learning_rate)
    for _ in range(steps):
        index = torch.randperm(len(labels), generator=rng)[:size].to(images.device)
        loss = functional.cross_entropy(model(images[index]), labels[index])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    state = {name: value.detach().cpu().clone() for name, value in model.head.state_dict().items()}
    return Classifier(state)
