"""Properties learned from shadow clients: what clients made of the attacker's own images upload, and what it tells of them.

They train from the broadcast classifier, pulled towards broadcast prototypes. Features of a class mean the same for every
client: lengths, angles to the broadcast classifier, and how a class stands among the client's own classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from fedpriv.algebra.entanglement import Mechanism, entangle, sample_weights
from fedpriv.attacks.inputs.targets import held_classes, kinds_in, upload_holds
from fedpriv.attacks.inversion.surrogate import WIDTH, ShadowTraining, by_class, substitute, train_substitute
from fedpriv.attacks.observation import Observation
from fedpriv.datasets.types import Samples
from fedpriv.models.split import SplitModel
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator
from fedpriv.wire.kinds import CLASS_MEANS, HEADS, MIXTURES, VECTORS
from fedpriv.wire.payloads import Classifier, Entangled, Payload, Prototypes, find_payload

_CONCENTRATIONS = (0.1, 0.3, 1.0)

BATCH, RATE = 16, 2e-3
"""Images a step, and Adam's step size, of a client's training."""

LEAST_IMAGES = 40
"""Fewest images of its own of which the attacker simulates clients."""

_TINY = 1e-12


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
    """Yield what simulated clients upload, of the kind and width of ``like``, and their images of each class ``(C,)``."""
    widths = [
        payload.rows().shape[1] if payload.kind in VECTORS else payload.parameters()["weight"].shape[1]
        for payload in (*like.upload, *like.broadcast)
        if payload.kind in VECTORS | HEADS
    ]
    sent, means = find_payload(like.broadcast, Classifier), find_payload(like.broadcast, Prototypes)
    for position in range(number):
        rng = generator(seed, "shadow client", position)
        index = _draw_images(auxiliary.labels.cpu(), n_classes, position, rng)
        samples = Samples(auxiliary.images[index], auxiliary.labels[index].to(auxiliary.images.device))
        drawn = derive_seed(seed, "shadow client", position)
        model = substitute(samples.images, n_classes, widths[0] if widths else WIDTH, drawn)
        if sent is not None:
            with torch.no_grad():
                model.head.weight.copy_(sent.state["weight"])
                model.head.bias.copy_(sent.state["bias"])
        near = None if means is None else by_class(means.features, means.classes, n_classes, samples.images.device)
        train_substitute(list(model.parameters()), samples, _loss(model, near), training, rng)
        with torch.no_grad():
            features = torch.cat([model.eval().represent(part) for part in samples.images.split(256)])
        upload = _upload(features, samples.labels, n_classes, like, mechanism, rng)
        counts = torch.bincount(samples.labels.cpu(), minlength=n_classes)
        yield Observation(like.round, -1 - position, (upload,), like.broadcast), counts


def _loss(model: SplitModel, near: tuple[Tensor, Tensor] | None) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the cross-entropy with the distance from broadcast prototypes, where they are ``near``."""

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        features = model.represent(images)
        total = cross_entropy(model.head(features), labels)
        if near is None:
            return total
        table, known = near
        return total + ((features - table[labels]).square().mean(1) * known[labels]).mean()

    return loss


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


def _upload(
    features: Tensor, labels: Tensor, n_classes: int, like: Observation, mechanism: Mechanism, rng: torch.Generator
) -> Payload:
    """Return means or a mixture of representations ``(n, d)`` of classes ``(n,)``."""
    kinds, classes = [payload.kind for payload in like.upload], labels.unique()
    if any(kind in MIXTURES for kind in kinds):
        weights = sample_weights(labels, mechanism, rng)
        return Entangled(*(value.cpu() for value in entangle(features, labels, weights, n_classes)))
    if any(kind in CLASS_MEANS for kind in kinds):
        means = torch.stack([features[labels == label].mean(0) for label in classes])
        return Prototypes(means.cpu(), classes.cpu())
    raise UserError(f"attack 'property': no client can be made up that uploads {kinds_in(like.upload)}")


# ---------------------------------------------------------------- features, and what is learned from them


def describe(observation: Observation, n_classes: int, *, hidden: bool = False) -> tuple[Tensor, Tensor]:
    """Return classes ``(k,)`` and features of each ``(k, f)``, float64.

    The classes are those that the upload names, ascending, or all where it names none. f depends on the kind of upload and
    on whether a classifier was broadcast, not on the client. With ``hidden`` the label encoding of a mixture is ignored.
    """
    upload, head = observation.upload, find_payload(observation.broadcast, Classifier)
    mixed, means = find_payload(upload, Entangled), find_payload(upload, Prototypes)
    hidden = hidden and mixed is not None
    named = None if hidden else held_classes(upload)
    classes = torch.arange(n_classes) if named is None else torch.tensor(named, dtype=torch.int64)
    if means is not None:
        rows = means.features.cpu()[means.classes.cpu().argsort()]
        lengths = rows.norm(dim=1)
        usual = lengths.mean().clamp_min(_TINY)
        nearest = (torch.cdist(rows, rows) + torch.diag(torch.full((len(rows),), torch.inf))).amin(1)
        nearest = nearest.where(nearest.isfinite(), lengths) / usual
        results = [lengths.clamp_min(_TINY).log(), nearest, (rows - rows.mean(0)).norm(dim=1) / usual]
    elif mixed is not None:
        rows = mixed.feature.cpu().expand(len(classes), -1)
        results = [] if hidden else [mixed.label_encoding.cpu()[classes]]
    else:
        raise UserError(f"{upload_holds(observation)}; attack 'property' learns from prototypes and entangled vectors")
    if head is not None:  # the broadcast classifier's view of vectors as images of their classes
        weight, bias = head.state["weight"].cpu(), head.state["bias"].cpu()
        logits = rows @ weight.T + bias
        of_class = [values.gather(1, classes[:, None])[:, 0] for values in (logits, logits.log_softmax(1))]
        results += [of_class[0] - logits.mean(1), of_class[1], cosine_similarity(rows, weight[classes])]
    current = torch.stack(results, 1).double() if results else torch.zeros(len(classes), 0, dtype=torch.float64)
    spread = current.std(0, unbiased=False)
    beside = ((current - current.mean(0)) / spread.clamp_min(1e-9)).where(spread > 1e-9, 0.0)
    crowd = torch.full((len(classes), 1), 1 / max(1, len(classes)), dtype=torch.float64)
    return classes, torch.cat([current, beside, crowd], 1)


@dataclass(frozen=True)
class Learned:
    """A logistic regression on standardised features."""

    centre: Tensor
    scale: Tensor
    weight: Tensor
    bias: float

    def __call__(self, features: Tensor) -> Tensor:
        """Return the log-odds ``(k,)`` of features ``(k, f)``."""
        return ((features - self.centre) / self.scale) @ self.weight + self.bias


def learn(
    described: Sequence[tuple[Tensor, Tensor]], counts: Sequence[Tensor], answers: Callable[[Tensor], Tensor]
) -> Learned:
    """Fit the regression to described uploads of clients, at least one, with known images of each class ``(C,)``.

    ``answers`` makes the true answers ``(C,)`` of counts. Without positives or negatives the regression is constant.
    """
    table = torch.cat([rows for _, rows in described])
    wanted = torch.cat([answers(count)[classes] for (classes, _), count in zip(described, counts, strict=True)])
    centre, scale = table.mean(0), table.std(0, unbiased=False).clamp_min(1e-9)
    weight, bias = torch.zeros(table.shape[1], dtype=torch.float64), 0.0
    if bool(wanted.any()) and not bool(wanted.all()):
        from sklearn.linear_model import LogisticRegression  # slow to import, and reports read this module

        fitted = LogisticRegression(class_weight="balanced", max_iter=2000)
        fitted.fit(((table - centre) / scale).numpy(), wanted.numpy())
        weight, bias = torch.from_numpy(np.asarray(fitted.coef_[0], dtype=np.float64)), float(fitted.intercept_[0])
    return Learned(centre, scale, weight, bias)
