"""Shadow clients: models trained on the attacker's own images as a broadcast suggests, and what they would upload.

They start with the broadcast classifier, and are pulled towards broadcast prototypes and class outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedpriv.algebra.entanglement import Mechanism, entangle, sample_weights
from fedpriv.attacks.inputs.outputs import output_distance, read_outputs
from fedpriv.attacks.inputs.targets import kinds_in
from fedpriv.attacks.inversion.surrogate import WIDTH, ShadowTraining, by_class, substitute, train_substitute
from fedpriv.attacks.observation import Observation
from fedpriv.datasets.types import Samples
from fedpriv.models.split import SplitModel
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator
from fedpriv.wire.kinds import CLASS_MEANS, CLASS_OUTPUTS, HEADS, MIXTURES, VECTORS
from fedpriv.wire.payloads import Classifier, ClassLogits, Entangled, Message, Payload, Prototypes, find_payload

_CONCENTRATIONS = (0.1, 0.3, 1.0)

BATCH, RATE = 16, 2e-3
"""Images a step, and Adam's step size, of a client's training."""

LEAST_IMAGES = 40
"""Fewest images of its own of which the attacker simulates clients."""


def shadow_clients(
    like: Observation,
    auxiliary: Samples,
    n_classes: int,
    number: int,
    seed: int,
    *,
    training: ShadowTraining,
    mechanism: Mechanism,
) -> Iterator[tuple[Observation, Tensor]]:
    """Yield what simulated clients upload, of the kind and width of ``like``, and their images of each class ``(C,)``.

    Args:
        like: an upload of a real client.
        auxiliary: the attacker's images ``(p, c, h, w)`` in [0, 1] with labels.
        n_classes: C.
        number: of clients.
        seed: of all random draws.
        training: of each client's model.
        mechanism: of entangled uploads.
    """
    widths = [
        payload.rows().shape[1] if payload.kind in VECTORS else payload.parameters()["weight"].shape[1]
        for payload in (*like.upload, *like.broadcast)
        if payload.kind in VECTORS | HEADS
    ]
    for position in range(number):
        rng = generator(seed, "shadow client", position)
        index = _draw_images(auxiliary.labels.cpu(), n_classes, position, rng)
        samples = Samples(auxiliary.images[index], auxiliary.labels[index].to(auxiliary.images.device))
        drawn = derive_seed(seed, "shadow client", position)
        model = substitute(samples.images, n_classes, widths[0] if widths else WIDTH, drawn)
        sent = find_payload(like.broadcast, Classifier)
        if sent is not None:
            with torch.no_grad():
                model.head.weight.copy_(sent.state["weight"])
                model.head.bias.copy_(sent.state["bias"])
        loss = _loss(model, like.broadcast, n_classes, samples.images.device)
        train_substitute(list(model.parameters()), samples, loss, training, rng)
        upload = _means(model.eval(), samples, n_classes, like, mechanism, rng)
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


def _loss(
    model: SplitModel, broadcast: Message, n_classes: int, device: torch.device
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the cross-entropy with the distances from broadcast prototypes and class outputs."""
    means, outputs = find_payload(broadcast, Prototypes), find_payload(broadcast, ClassLogits)
    near = None if means is None else by_class(means.features, means.classes, n_classes, device)
    alike, softmax = None, False
    if outputs is not None:
        values, softmax = read_outputs(outputs.values)
        alike = by_class(values, outputs.classes, n_classes, device)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        features = model.represent(images)
        logits = model.head(features)
        total = cross_entropy(logits, labels)
        if near is not None:
            table, known = near
            total = total + ((features - table[labels]).square().mean(1) * known[labels]).mean()
        if alike is not None:
            table, known = alike
            total = total + (output_distance(logits, table[labels], softmax=softmax) * known[labels]).mean()
        return total

    return loss


def _means(
    model: SplitModel, samples: Samples, n_classes: int, like: Observation, mechanism: Mechanism, rng: torch.Generator
) -> Payload:
    """Return means or a mixture of a client with this model and these images."""
    with torch.no_grad():
        features = torch.cat([model.represent(part) for part in samples.images.split(256)])
        logits = model.head(features)
    labels, classes = samples.labels, samples.labels.unique()

    def means(rows: Tensor) -> Tensor:
        return torch.stack([rows[labels == label].mean(0) for label in classes]).cpu()

    for payload in like.upload:
        if payload.kind in MIXTURES:
            weights = sample_weights(labels, mechanism, rng)
            return Entangled(*(value.cpu() for value in entangle(features, labels, weights, n_classes)))
        if payload.kind in CLASS_MEANS:
            return Prototypes(means(features), classes.cpu())
        if payload.kind in CLASS_OUTPUTS:
            outputs = logits.softmax(1) if read_outputs(payload.rows())[1] else logits
            return ClassLogits(means(outputs), classes.cpu())
    raise UserError(f"attack 'property': no client can be made up that uploads {kinds_in(like.upload)}")
