"""A client's class shares, from what training did to uploaded weights.

Local training moves weights by minus the learning rate times the sum of its steps' gradients. With shares s_k of the classes
that is, in expectation, a mixture of the gradients of single classes,

    before - after = a sum_k s_k g_k,    a > 0,

with g_k the mean gradient of images of class k over the way that training took: of the attacker's own images, at the
broadcast weights, at the uploaded ones, and half-way. Shares are those of least squares under s >= 0, one round after the
other, and rounds are averaged, each weighed by the share of the change's square that the mixture explains. Only the head's
rows are compared where the head is uploaded, and everything that is uploaded otherwise. The learning rate, the number of
steps and the size of batches need not be known.

Source: numbers of labels by class from averages over local training are of Geng et al., "Towards general deep leakage in
federated learning" (arXiv 2110.09074, 2021). Shares by gradients of own images, for any part of a model that is uploaded,
are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedpriv.attacks.gradients.update import last_layer
from fedpriv.attacks.infer.contract import InferenceProblem, Moment
from fedpriv.attacks.infer.membership_update import BATCH, Training, training_of
from fedpriv.attacks.observation import Knowledge, Observation
from fedpriv.attacks.read.updates import Weights
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import EXTRACTORS, HEADS, LAYERS, MAPPINGS, NETWORKS, TRAINED
from fedpriv.wire.payload import Payload

WAY = (0.0, 0.5, 1.0)
"""Places between the broadcast and the uploaded weights that gradients are averaged over."""

LEAST = 1e-6
"""Share of a class, and part of a change that is explained, below which nothing is told apart."""

MOST_VALUES = 2**25
"""Values of all classes' gradients that are compared at most: 256 MiB in double precision."""

_TINY = 1e-30

_STEADY = 1e-12
"""Least eigenvalue, to the largest, of the normal equations."""


def followable(problem: InferenceProblem) -> bool:
    """True if the attacker can compute gradients of its own images through what all clients uploaded."""
    knowledge = problem.knowledge
    if knowledge.public_images is None or knowledge.public_labels is None:
        return False
    return all(_through(seen, knowledge) for seen in problem.uploads.values())


def _through(seen: Observation, knowledge: Knowledge) -> bool:
    sent = TRAINED.first(seen.upload)
    if sent is None or not _answers(seen, sent):
        return False
    if sent.kind in NETWORKS:
        return knowledge.model is not None and (sent.kind not in EXTRACTORS or seen.client in knowledge.heads)
    there = seen.client in knowledge.extractors
    return there and (sent.kind in HEADS or (sent.kind in MAPPINGS and seen.client in knowledge.heads))


def _answers(seen: Observation, sent: Payload) -> bool:
    among = NETWORKS if sent.kind in NETWORKS else LAYERS
    return among.first(seen.broadcast) is not None


def followed_shares(problem: InferenceProblem) -> dict[int, Tensor]:
    """Return the shares of classes ``(C,)`` in each client's images, float64, over all rounds that are given.

    Zero, or nearly, for classes that no round shows, and for those that the attacker has no image of.

    Args:
        problem: :func:`followable`; uploads are trained weights.
    """
    found = {}
    for client in problem.uploads:
        fits = []
        for one, knowledge in _followed(problem, client):
            images, labels = knowledge.public_images, knowledge.public_labels
            assert images is not None
            assert labels is not None
            training = training_of(one, client, images, knowledge)
            fits.append(shares_of(training, labels.to(training.inputs.device), knowledge.n_classes))
        weights = torch.tensor([explained for _, explained in fits], dtype=torch.float64).clamp_min(LEAST)
        mean = (torch.stack([shares for shares, _ in fits]) * weights[:, None]).sum(0) / weights.sum()
        found[client] = (mean + LEAST) / (mean + LEAST).sum()
        if problem.progress is not None:
            problem.progress(len(found), len(problem.uploads))
    return found


def shares_of(training: Training, labels: Tensor, n_classes: int) -> tuple[Tensor, float]:
    """Return the shares of classes ``(C,)`` that explain one training best, float64 on the CPU, and the part explained.

    That part, of the change's square, is in [0, 1]; shares are even where it is 0.

    Args:
        training: a client's, with the attacker's own images as inputs.
        labels: their classes ``(m,)``.
        n_classes: C.
    """
    names, is_head = _compared(training, n_classes)
    change = _flat(training, {name: training.before[name] - training.after[name] for name in names})
    gradients = class_gradients(training, labels, n_classes, names, mixed=is_head)
    columns = torch.stack([_flat(training, one) for one in gradients], 1)
    lengths, whole = columns.norm(dim=0).clamp_min(_TINY), float(change.square().sum())
    columns /= lengths
    gram, inner = (columns.T @ columns).cpu(), (columns.T @ change).cpu()
    even = torch.full((n_classes,), 1 / n_classes, dtype=torch.float64)
    if not whole or not bool(gram.isfinite().all() and inner.isfinite().all()):
        return even, 0.0
    least = _non_negative(gram, inner)
    left = float((change - columns @ least.to(columns)).square().sum())
    shares = torch.where(lengths.cpu() > _TINY, least / lengths.cpu(), 0.0)  # rounding would fill a column of zeros
    return (shares / shares.sum(), max(0.0, 1 - left / whole)) if float(shares.sum()) else (even, 0.0)


def _non_negative(gram: Tensor, inner: Tensor) -> Tensor:
    """Return the least-squares coefficients ``(C,)`` that are not negative, from the normal equations.

    Args:
        gram: inner products of columns of length one, or zero, ``(C, C)``.
        inner: of columns and what is wanted ``(C,)``.
    """
    from scipy.optimize import nnls  # type: ignore[import-untyped]  # takes a quarter of a second to import

    values, vectors = torch.linalg.eigh(gram)
    roots = values.clamp_min(_STEADY * float(values[-1])).sqrt()
    return torch.from_numpy(nnls((roots[:, None] * vectors.T).numpy(), ((vectors.T @ inner) / roots).numpy())[0])


def class_gradients(
    training: Training, labels: Tensor, n_classes: int, names: Sequence[str], *, mixed: bool
) -> list[Weights]:
    """Return the mean gradient of each class, by name, over the way from the broadcast to the uploaded weights.

    Zero for classes without an image.

    Args:
        training: with images of the attacker's own as inputs.
        labels: their classes ``(m,)``.
        n_classes: C.
        names: of the parameters.
        mixed: whether images of all classes go through the network together: what stands before a head takes one pass then.
    """
    numbers = torch.bincount(labels, minlength=n_classes)
    found = [{name: torch.zeros_like(training.before[name]) for name in names} for _ in range(n_classes)]
    for place in WAY:
        weights = {name: torch.lerp(value, training.after[name], place) for name, value in training.before.items()}
        asked = {name: weights[name].detach().requires_grad_() for name in names}
        for part in _parts(labels, mixed=mixed):
            # A batch norm of one image's few values has nothing to go by, of the image twice it has.
            rows = part if len(part) > 1 else part.repeat(2)
            with torch.enable_grad():
                losses = cross_entropy(
                    training.logits(weights | asked, training.inputs[rows]), labels[rows], reduction="none"
                )
            there = labels[part].unique().tolist()
            for label in there:
                share = int((labels[part] == label).sum()) / (int(numbers[label]) * len(WAY))
                mean = losses[labels[rows] == label].mean() * share
                slopes = torch.autograd.grad(mean, list(asked.values()), retain_graph=label != there[-1])
                for name, slope in zip(names, slopes, strict=True):
                    found[label][name] += slope
    return found


def _parts(labels: Tensor, *, mixed: bool) -> Iterator[Tensor]:
    """Yield places of images that go through the network together: as mixed as possible, or of one class."""
    if mixed:
        several = -(-len(labels) // BATCH)
        yield from (torch.arange(first, len(labels), several, device=labels.device) for first in range(several))
    else:
        for label in labels.unique():
            yield from (labels == label).nonzero().squeeze(1).split(BATCH)


def _compared(training: Training, n_classes: int) -> tuple[list[str], bool]:
    """Return the names of the head's parameters, or of all where no head is among them, and whether it is.

    Of all, the last that :data:`MOST_VALUES` hold a gradient a class of.
    """
    try:
        weight, bias = last_layer(training.before, n_classes)
    except UserError:
        names, values = list(training.before), 0
        for kept, name in enumerate(reversed(names), start=1):
            values += n_classes * training.before[name].numel()
            if values > MOST_VALUES:
                return names[-max(1, kept - 1) :], False
        return names, False
    return [name for name, value in training.before.items() if value is weight or value is bias], True


def _flat(training: Training, changes: Mapping[str, Tensor]) -> Tensor:
    """Return the comparable part of changes as one vector, float64."""
    kept = changes if training.project is None else training.project(changes)
    return torch.cat([value.flatten() for value in kept.values()]).double()


def _followed(problem: InferenceProblem, client: int) -> list[tuple[Observation, Knowledge]]:
    """Return a client's uploads that can be followed, with what is known of their rounds."""
    moments = (*problem.earlier, Moment(tuple(problem.uploads.values()), problem.knowledge))
    seen = [(one, moment.knowledge) for moment in moments for one in moment.observations if one.client == client]
    return [(one, known) for one, known in seen if _through(one, known)]
