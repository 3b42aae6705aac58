"""The premise of attacks on uploads from elsewhere: the true images, put through the assumed computation, give the upload.

Scorers ask it after the attacks, for diagnosis; no attack sees the answer. Where it fails, a search is for something that is
not behind the upload, so that finding nothing says nothing. Uploads that were handed in, or recorded from another framework,
are asked; those of runs of fedpriv itself are not, for their computation is the one that attacks assume, by construction.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional

from fedpriv.attacks.gradients.local_step import StepModel, local_step
from fedpriv.attacks.observation import BatchFacts, Observation
from fedpriv.attacks.read.updates import Weights
from fedpriv.federation.local_training import has_batch_norm
from fedpriv.scoring.records.made import Cause, Premise
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator

EXACT = 1e-3
"""Relative error that two computations of the same may have from rounding."""

ROUNDED = 8
"""Unit roundoffs of a half precision that an upload which came in it may lie beside: it may have been computed in it."""

COARSE = 0.2
"""Where rounding alone may make up so much of an upload, agreement with it would say nothing."""

ORDERS, FEWEST_ORDERS = 50, 5
"""Orders of a client's images that are tried where its own is not known, and the fewest that say something."""

BEYOND_ORDERS = 1.25
"""Factor on the 99 % quantile over orders: one client in fifty lies above that by chance, and a page has many."""

MOST_IMAGES = 200_000
"""Images that the replays of one client's steps in other orders go through."""

_CHUNK = 256
_HALVES = ((torch.bfloat16, 2.0**-8, 0.0), (torch.float16, 2.0**-11, 2.0**-25))


@dataclass(frozen=True)
class Rounding:
    """Rounding of an upload.

    Attributes:
        values: unit roundoff of its values, above that of float32; 0 for none.
        smallest: the same of values that are next to zero, absolute.
        weights: unit roundoff of uploaded weights, of which attacks take the difference.
    """

    values: float = 0.0
    smallest: float = 0.0
    weights: float = 2.0**-24


def half_precision(tensors: Sequence[Tensor]) -> tuple[float, float]:
    """Return the unit roundoff of the half precision that holds all values, and its absolute error next to zero; else 0s.

    >>> half_precision([torch.tensor([0.1]).bfloat16().float()])[0], half_precision([torch.tensor([0.1])])[0]
    (0.00390625, 0.0)
    """
    for kind, roundoff, smallest in _HALVES:
        if all(torch.equal(value.to(kind).to(value.dtype), value) for value in tensors):
            return roundoff, smallest
    return 0.0, 0.0


@dataclass(frozen=True)
class Agreement:
    """One client's upload beside what its true images give.

    Attributes:
        cosine: between the two.
        error: norm of the difference over the larger norm.
        allowed: the largest error that rounding, or an unknown order, explains.
        factor: by which the upload is the larger one, in the direction that both have.
        cause: what a difference looks like.
    """

    cosine: float
    error: float
    allowed: float
    factor: float
    cause: Cause

    @property
    def differs(self) -> bool:
        """True where the difference is larger than what explains it."""
        return self.error > self.allowed


def agreement(
    upload: Tensor, replayed: Tensor, rounding: Rounding, cause: Cause, lost: float = 0.0, spread: float = 0.0
) -> Agreement:
    """Return the agreement of an upload with what the truth gives.

    Args:
        upload: what was sent.
        replayed: what the truth gives, of the same shape.
        rounding: of the upload.
        cause: what a difference looks like unless it is one of scale.
        lost: relative error from the rounding of weights.
        spread: relative error from orders that are not known.

    Raises:
        UserError: where rounding alone may make most of the upload, or what the truth gives is zero or not finite.
    """
    sent, made = upload.detach().double().flatten().cpu(), replayed.detach().double().flatten().cpu()
    size, own = float(sent.norm()), float(made.norm())
    if not (size and own and torch.isfinite(made).all()):
        raise UserError("what the true images give is zero or not finite")
    rounded = EXACT + lost + ROUNDED * rounding.values + rounding.smallest * len(sent) ** 0.5 / size
    allowed = rounded + spread
    product = float(sent @ made)
    error, factor = float((sent - made).norm()) / max(size, own), product / own**2
    if rounded > COARSE and error <= allowed:
        raise UserError(f"rounding may be {100 * rounded:.0f} % of the upload")
    if error > allowed and factor > 0 and float((sent - factor * made).norm()) <= allowed * size:
        cause = "scale"
    return Agreement(product / (size * own), error, allowed, factor, cause)


# ---------------------------------------------------------------- forward passes


@torch.no_grad()
def represented(network: nn.Module, images: Tensor, device: torch.device) -> Tensor:
    """Return the rows ``(n, d)`` that a network in evaluation mode makes of images, on the CPU."""
    return torch.cat([network(part.to(device)).cpu() for part in images.split(_CHUNK)])


def class_means(rows: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """Return the mean row of each class ``(c, d)``."""
    return torch.stack([rows[labels == label].mean(0) for label in classes.tolist()])


# ---------------------------------------------------------------- local steps

Differentiate = Callable[[Weights, Tensor, Tensor], Weights]


def steps_agreement(
    seen: Observation,
    model: nn.Module,
    batch: tuple[Tensor, Tensor],
    facts: BatchFacts,
    rounding: Rounding,
    *,
    head: tuple[Tensor, Tensor] | None = None,
    device: torch.device,
) -> Agreement:
    """Return the agreement of uploaded weights with SGD steps on the true images, in order; else within other orders.

    Args:
        seen: broadcast and upload.
        model: the architecture.
        batch: images ``(n, c, h, w)`` of all steps, and their classes.
        facts: of the steps.
        rounding: of the upload.
        head: private, behind an uploaded extractor.
        device: where to compute.

    Raises:
        UserError: where it cannot be told.
    """
    step = local_step(seen, model, facts.learning_rate, device, head)
    images, classes = (part.to(device) for part in batch)
    trained = StepModel(model, device)
    still = copy.deepcopy(model).to(device).eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        width = functional_call(still, {**step.weights, **step.fixed}, (images[:1],)).shape[1]
    labels = functional.one_hot(classes, max(width, int(classes.max()) + 1)).float()

    def training(weights: Weights, some: Tensor, own: Tensor) -> Weights:
        return trained.gradient(weights, some, own, step.fixed)

    def evaluation(weights: Weights, some: Tensor, own: Tensor) -> Weights:
        def loss(values: Weights) -> Tensor:
            return functional.cross_entropy(functional_call(still, values | step.fixed, (some,)), own[:, :width])

        found: Weights = grad(loss)(weights)
        return found

    def replayed(differentiate: Differentiate, order: Tensor | None = None) -> Tensor:
        own = (images, labels) if order is None else (images[order], labels[order])
        found = _sum_of_gradients(differentiate, step.weights, *own, facts)
        return _flat(found if step.project is None else step.project(found))

    def compared(made: Tensor, spread: float = 0.0) -> Agreement:
        return agreement(sent, made, rounding, "steps", lost, spread)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sent, in_order = _flat(step.gradient), replayed(training)
        moved = facts.learning_rate * float(sent.norm())
        lost = 2 * facts.steps * rounding.weights * float(_flat(step.weights).norm()) / max(moved, 1e-300)
        first = compared(in_order)
        if not first.differs:
            return first
        if has_batch_norm(model) and not compared(replayed(evaluation)).differs:
            return replace(first, cause="evaluation")
        if facts.steps == 1:
            return first
        others = [replayed(training, order) for order in _orders(images, ORDERS)]
    beside = [float((one - in_order).norm() / torch.maximum(one.norm(), in_order.norm())) for one in others]
    spread = float(torch.tensor(beside).quantile(0.99))
    return compared(in_order, BEYOND_ORDERS * spread)


def _flat(weights: Weights) -> Tensor:
    return torch.cat([weights[name].detach().double().flatten() for name in sorted(weights)])


def _sum_of_gradients(
    differentiate: Differentiate, weights: Weights, images: Tensor, labels: Tensor, facts: BatchFacts
) -> Weights:
    sizes = list(facts.sizes or (facts.batch_size,) * facts.steps)
    current, total = weights, {name: torch.zeros_like(value) for name, value in weights.items()}
    for some, own in zip(images.split(sizes), labels.split(sizes), strict=True):
        found = differentiate(current, some, own)
        total = {name: value + found[name] for name, value in total.items()}
        current = {name: value - facts.learning_rate * found[name] for name, value in current.items()}
    return total


def _orders(images: Tensor, number: int) -> list[Tensor]:
    """Return orders of the images of several steps, each pass over the client's images shuffled by itself.

    Raises:
        UserError: where too many images went through the steps.
    """
    count = len(images)
    number = min(number, MOST_IMAGES // count)
    if number < FEWEST_ORDERS:
        raise UserError(
            f"the order of {count} images in the local steps is not known, and they are too many to try some"
        )
    once = len(images.unique(dim=0))
    whole = not count % once and torch.equal(images, images[:once].repeat(count // once, 1, 1, 1))
    once, rng = once if whole else count, generator(0, "orders of local steps")
    return [
        torch.cat([start + torch.randperm(once, generator=rng) for start in range(0, count, once)]).to(images.device)
        for _ in range(number)
    ]


# ---------------------------------------------------------------- all clients


def over_clients(found: Sequence[Agreement], unchecked: Sequence[str], optimiser: str = "") -> Premise:
    """Return the premise of a round's uploads: it fails where that of one client does.

    Args:
        found: agreement of each client that could be checked.
        unchecked: in words, why others could not.
        optimiser: that clients are said to have used in the place of SGD, or empty.
    """
    off = [one for one in found if one.differs]
    shown = off or found
    causes = {one.cause for one in off}
    named = optimiser if optimiser and (off or not found) else ""
    return Premise(
        status="differs" if off or named else "agrees" if found else "not checkable",
        cause="optimiser" if named else "" if not off else causes.pop() if len(causes) == 1 else off[0].cause,
        optimiser=named,
        why=next(iter(unchecked), ""),
        cosine=statistics.median(one.cosine for one in shown) if shown else None,
        relative_error=statistics.median(one.error for one in shown) if shown else None,
        worst=max((one.error for one in found), default=None),
        allowed=max((one.allowed for one in shown), default=None),
        factor=statistics.median(one.factor for one in shown) if shown else None,
        n_clients=len(found),
        n_differ=len(off),
    )
