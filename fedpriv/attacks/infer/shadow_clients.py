"""Clients that the attacker makes up: drawn from its own labelled images, trained as the broadcast suggests, and uploading.

Nothing of any method is used but what the protocol shows: a client is sent something, trains a private model on its images,
and uploads a payload of a known kind. A shadow client starts from the broadcast classifier where there is one, and is pulled
towards broadcast prototypes and class outputs where there are some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.algebra.entanglement import Mechanism, entangle, sample_weights
from fedpriv.attacks.inputs.outputs import output_distance, read_outputs
from fedpriv.attacks.inputs.targets import kinds_in
from fedpriv.attacks.invert.shadow import WIDTH, ShadowTraining, by_class, substitute, train_substitute
from fedpriv.attacks.observation import BatchFacts, Observation
from fedpriv.datasets.types import Samples
from fedpriv.models.split import SplitModel
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator
from fedpriv.wire.kinds import CLASS_MEANS, CLASS_OUTPUTS, HEADS, MIXTURES, VECTORS
from fedpriv.wire.payloads import Classifier, ClassLogits, Entangled, Payload, Prototypes, find_payload

_CONCENTRATIONS = (0.1, 0.3, 1.0)
BATCH, RATE = 16, 2e-3
"""Images a step, and Adam's step size, of a client's training."""

LEAST_IMAGES = 40
"""Images of its own below which no clients can be made up."""


@dataclass(frozen=True)
class KnownClient:
    """An upload of a client of which the attacker knows how many images of each class it has ``(C,)`` int64."""

    observation: Observation
    counts: Tensor


def shadow_clients(
    like: Observation,
    own: Samples,
    n_classes: int,
    number: int,
    seed: int,
    *,
    training: ShadowTraining,
    mechanism: Mechanism,
    batch: BatchFacts | None,
) -> Iterator[KnownClient]:
    """Make up clients that upload what ``like`` does: its kind, the width of its vectors, and its broadcast are copied.

    Args:
        like: an upload of a real client.
        own: the attacker's images ``(p, c, h, w)`` in [0, 1] with labels.
        n_classes: C.
        number: of clients.
        seed: of everything drawn.
        training: of each client's model.
        mechanism: of entangled uploads.
        batch: the local step, for classifiers; None takes one pass at learning rate 0.1.

    Raises:
        UserError: when there are too few images, or nothing like the upload can be made.
    """
    if len(own) < LEAST_IMAGES:
        raise UserError(
            f"attack 'property' got {len(own)} images to make clients of; expected at least {LEAST_IMAGES} (train the "
            f"run with {argument('public')} N)"
        )
    template = _Template(like, n_classes, training, mechanism, batch)
    for place in range(number):
        rng = generator(seed, "shadow client", place)
        index = _holding(own.labels.cpu(), n_classes, place, rng)
        held = Samples(own.images[index], own.labels[index].to(own.images.device))
        model = template.trained(held, derive_seed(seed, "shadow client", place), rng)
        upload = template.uploaded(model, held, rng)
        counts = torch.bincount(held.labels.cpu(), minlength=n_classes)
        yield KnownClient(Observation(like.round, -1 - place, (upload,), like.broadcast), counts)


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


@dataclass(frozen=True)
class _Template:
    """A real client's observation, and what made-up ones are trained and upload by."""

    like: Observation
    n_classes: int
    training: ShadowTraining
    mechanism: Mechanism
    batch: BatchFacts | None

    def trained(self, held: Samples, seed: int, rng: torch.Generator) -> SplitModel:
        """Return a model that starts from the broadcast head and is pulled towards broadcast vectors and outputs."""
        model = substitute(held.images, self.n_classes, self._width(), seed)
        self._take_head(model)
        train_substitute(list(model.parameters()), held, self._loss(model, held.images.device), self.training, rng)
        return model.eval()

    def _width(self) -> int:
        for payload in (*self.like.upload, *self.like.broadcast):
            if payload.kind in VECTORS:
                return payload.rows().shape[1]
            if payload.kind in HEADS:
                return payload.parameters()["weight"].shape[1]
        return WIDTH

    def _take_head(self, model: SplitModel) -> None:
        sent = find_payload(self.like.broadcast, Classifier)
        if sent is not None:
            with torch.no_grad():
                model.head.weight.copy_(sent.state["weight"])
                model.head.bias.copy_(sent.state["bias"])

    def _loss(self, model: SplitModel, device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
        broadcast = self.like.broadcast
        means, outputs = find_payload(broadcast, Prototypes), find_payload(broadcast, ClassLogits)
        near = None if means is None else by_class(means.features, means.classes, self.n_classes, device)
        alike, softmax = None, False
        if outputs is not None:
            values, softmax = read_outputs(outputs.values)
            alike = by_class(values, outputs.classes, self.n_classes, device)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            features = model.represent(images)
            logits = model.head(features)
            total = functional.cross_entropy(logits, labels)
            if near is not None:
                table, known = near
                total = total + ((features - table[labels]).square().mean(1) * known[labels]).mean()
            if alike is not None:
                table, known = alike
                total = total + (output_distance(logits, table[labels], softmax=softmax) * known[labels]).mean()
            return total

        return loss

    def uploaded(self, model: SplitModel, held: Samples, rng: torch.Generator) -> Payload:
        """Return the payload that a client with this model and these images sends."""
        if HEADS.first(self.like.upload) is not None:
            return self._classifier(model, held, rng)
        with torch.no_grad():
            features = torch.cat([model.represent(part) for part in held.images.split(256)])
            logits = model.head(features)
        for payload in self.like.upload:
            found = self._payload(payload, features, logits, held.labels, rng)
            if found is not None:
                return found
        raise UserError(f"attack 'property': no client can be made up that uploads {kinds_in(self.like.upload)}")

    def _payload(
        self, like: Payload, features: Tensor, logits: Tensor, labels: Tensor, rng: torch.Generator
    ) -> Payload | None:
        if like.kind in MIXTURES:
            weights = sample_weights(labels, self.mechanism, rng)
            return Entangled(*(value.cpu() for value in entangle(features, labels, weights, self.n_classes)))
        classes = labels.unique()
        if like.kind in CLASS_MEANS:
            means = torch.stack([features[labels == label].mean(0) for label in classes])
            return Prototypes(means.cpu(), classes.cpu())
        if like.kind in CLASS_OUTPUTS:
            answers = logits.softmax(1) if read_outputs(like.rows())[1] else logits
            means = torch.stack([answers[labels == label].mean(0) for label in classes])
            return ClassLogits(means.cpu(), classes.cpu())
        return None

    def _classifier(self, model: SplitModel, held: Samples, rng: torch.Generator) -> Classifier:
        """Return the head after one round of local steps from the broadcast one."""
        self._take_head(model)
        batch, labels = self.batch, held.labels
        size = BATCH if batch is None else batch.batch_size
        steps = max(1, len(labels) // size) if batch is None else batch.steps
        rate, parameters = 0.1 if batch is None else batch.learning_rate, list(model.parameters())
        for _ in range(steps):
            index = torch.randperm(len(labels), generator=rng)[:size].to(labels.device)
            loss = functional.cross_entropy(model(held.images[index]), labels[index])
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for value, gradient in zip(parameters, gradients, strict=True):
                    value.sub_(gradient, alpha=rate)
        return Classifier({name: value.detach().cpu().clone() for name, value in model.head.state_dict().items()})
