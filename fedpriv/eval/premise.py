"""The premise of attacks on uploads from elsewhere: the true images, put through the assumed computation, give the upload.

Scorers check it after the attacks, for diagnosis; no attack sees the answer. Where it fails, a search is for something that
is not behind the upload, so that its failure says nothing. It is checked of uploads that were handed in, or recorded from
another framework. Of runs of fedpriv itself it is not: attacks assume the computation by which fedpriv makes uploads.
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

from fedpriv.attacks.gradients.update import LocalStep, StepModel, Weights, local_step, one_hot
from fedpriv.attacks.observation import BatchFacts, Observation
from fedpriv.eval.records import Cause, Premise
from fedpriv.federation.local_training import has_batch_norm
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator

EXACT = 1e-3
"""Relative error that two computations of the same may have from rounding."""

ROUNDED = 8
"""Unit roundoffs of half precision that an upload which came in it may lie away."""

TENSOR_CORES = 0.25
"""Of the error that bfloat16 makes: as much may TF32 make, which has three bits more and is what GPUs convolve in."""

COARSE = 0.2
"""Where rounding, or an unknown order, may make up so much of an upload, agreement with it would say nothing."""

GROSS = 0.05
"""A relative error above which the client's upload is another; below, a rounding may have turned a ReLU of a few clients."""

ORDERS, FEWEST_ORDERS = 50, 5
"""Orders of a client's images that are tried where its own is not known, and the fewest that say something."""

BEYOND_ORDERS = 1.25
"""Factor on the 99 % quantile over orders: one client in fifty lies above that by chance, and a page has many."""

MOST_IMAGES = 50_000
"""Images that the replays of one client's steps in other orders go through."""

_HALVES = ((torch.bfloat16, 2.0**-8, 0.0), (torch.float16, 2.0**-11, 2.0**-25))


@dataclass(frozen=True)
class Rounding:
    """Rounding of an upload: the half precision that its values came in (bfloat16 too where in none), and roundoffs."""

    half: torch.dtype = torch.bfloat16
    values: float = 0.0
    smallest: float = 0.0
    weights: float = 2.0**-24  # of uploaded weights, of which attacks take the difference

    def of_computing(self, made: Tensor, in_half: Tensor) -> float:
        """Return the relative error of a client that computes in half precision where it sends that, else in TF32."""
        return (2 if self.values else TENSOR_CORES) * _apart(made, in_half)


def rounding_of(tensors: Sequence[Tensor]) -> Rounding:
    """Return the rounding of some floats, by their values: who sends bfloat16 may have made float32 of it.

    >>> rounding_of([torch.tensor([0.1]).bfloat16().float()]).values, rounding_of([torch.tensor([0.1])]).values
    (0.00390625, 0.0)
    """
    for half, *roundoffs in _HALVES:
        if all(torch.equal(value.to(half).to(value.dtype), value) for value in tensors):
            return Rounding(half, *roundoffs)
    return Rounding()


@dataclass(frozen=True)
class Agreement:
    """One client's upload beside what its true images give."""

    cosine: float
    error: float  # norm of the difference over the larger norm
    allowed: float  # the largest error that rounding or an unknown order explains
    factor: float  # by which the upload is larger
    cause: Cause  # what a difference looks like

    @property
    def differs(self) -> bool:
        """True where the difference is larger than what explains it."""
        return self.error > self.allowed


def agreement(
    upload: Tensor, replayed: Tensor, rounding: Rounding, cause: Cause, lost: float = 0.0, spread: float = 0.0
) -> Agreement:
    """Return the agreement of an upload with what the truth gives.

    ``lost`` and ``spread`` are relative errors from rounding elsewhere and from orders that are not known. Where rounding
    or orders may make much of the upload, or what the truth gives is zero or not finite, it is a UserError.
    """
    sent, made = upload.detach().double().flatten().cpu(), replayed.detach().double().flatten().cpu()
    size, length = float(sent.norm()), float(made.norm())
    if not (size and length and torch.isfinite(made).all()):
        raise UserError("what the true images give is zero or not finite")
    rounded = EXACT + lost + ROUNDED * rounding.values + rounding.smallest * len(sent) ** 0.5 / size
    allowed, product = rounded + spread, float(sent @ made)
    error, factor = _apart(sent, made), product / length**2
    if rounded > COARSE and error <= allowed:
        raise UserError(f"rounding may be {100 * rounded:.0f} % of the upload")
    if spread > COARSE and error <= allowed:
        advice = "hand images in in the order of the steps"
        raise UserError(f"other orders of the images change up to {100 * spread:.0f} % of the upload; {advice}")
    if error > allowed and factor > 0 and _apart(sent, factor * made) <= allowed:
        cause = "scale"
    return Agreement(product / (size * length), error, allowed, factor, cause)


def _apart(first: Tensor, second: Tensor) -> float:
    return float((first - second).norm() / torch.maximum(first.norm(), second.norm()))


def class_means(rows: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """Return the mean row of each class ``(c, d)``."""
    return torch.stack([rows[labels == label].mean(0) for label in classes.tolist()])


# ---------------------------------------------------------------- local steps

Differentiate = Callable[[Weights, Tensor, Tensor], Weights]
"""(weights, images, probabilities of classes) -> gradient of their mean loss."""


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
    """Return the agreement of uploaded weights with SGD steps on the true images, in order; else in other orders.

    ``batch`` are images ``(n, c, h, w)`` of all steps and their classes; ``head`` is private, behind an uploaded extractor.
    A UserError where it cannot be told.
    """
    step = local_step(seen, model, facts.learning_rate, device, head)
    with torch.random.fork_rng(devices=[]):  # a network may draw numbers though it should not
        torch.manual_seed(0)
        training, in_half, evaluation = _gradients(step, model, rounding, device)
        with torch.no_grad():
            width = functional_call(model, {**step.weights, **step.fixed}, (batch[0][:1].to(device),)).shape[1]
        classes = one_hot(batch[1], max(width, int(batch[1].max()) + 1), facts.label_smoothing).to(device)
        images = batch[0].to(device)

        def replayed(
            differentiate: Differentiate, order: Tensor | None = None, weights: Weights = step.weights
        ) -> Tensor:
            part = (images, classes) if order is None else (images[order], classes[order])
            total = _sum_of_gradients(differentiate, weights, *part, facts)
            return _flat(total if step.project is None else step.project(total))

        sent, in_order = _flat(step.gradient), replayed(training)
        moved = facts.learning_rate * float(sent.norm())
        lost = 2 * facts.steps * rounding.weights * float(_flat(step.weights).norm()) / max(moved, 1e-300)
        first = agreement(sent, in_order, rounding, "steps", lost)
        if first.differs:
            lost += rounding.of_computing(in_order, replayed(in_half))
            first = agreement(sent, in_order, rounding, "steps", lost)
        if not first.differs:
            return first
        if has_batch_norm(model) and not agreement(sent, replayed(evaluation), rounding, "steps", lost).differs:
            return replace(first, cause="evaluation")
        after = {name: value - facts.learning_rate * step.gradient[name] for name, value in step.weights.items()}
        if first.cosine < 0 and not agreement(-sent, replayed(training, None, after), rounding, "steps", lost).differs:
            return replace(first, cause="swapped")
        if facts.steps == 1:
            return first
        distances = [_apart(replayed(training, order), in_order) for order in _orders(images)]
    spread = BEYOND_ORDERS * float(torch.tensor(distances).quantile(0.99))
    return agreement(sent, in_order, rounding, "steps", lost, spread)


def _gradients(
    step: LocalStep, model: nn.Module, rounding: Rounding, device: torch.device
) -> tuple[Differentiate, Differentiate, Differentiate]:
    """Return gradients as attacks compute them, likewise in half precision, and in evaluation mode."""
    assumed, still = StepModel(model, device), copy.deepcopy(model).to(device).eval()

    def training(weights: Weights, images: Tensor, classes: Tensor) -> Weights:
        return assumed.gradient(weights, images, classes, step.fixed)

    def in_half(weights: Weights, images: Tensor, classes: Tensor) -> Weights:
        values, fixed = ({name: value.to(rounding.half) for name, value in w.items()} for w in (weights, step.fixed))
        gradient = assumed.gradient(values, images.to(rounding.half), classes, fixed)
        return {name: value.float() for name, value in gradient.items()}

    def evaluation(weights: Weights, images: Tensor, classes: Tensor) -> Weights:
        def loss(values: Weights) -> Tensor:
            return functional.cross_entropy(functional_call(still, {**values, **step.fixed}, (images,)), classes)

        gradient: Weights = grad(loss)(weights)
        return gradient

    return training, in_half, evaluation


def _flat(weights: Weights) -> Tensor:
    return torch.cat([weights[name].detach().double().flatten() for name in sorted(weights)])


def _sum_of_gradients(
    differentiate: Differentiate, weights: Weights, images: Tensor, classes: Tensor, facts: BatchFacts
) -> Weights:
    sizes = list(facts.sizes or (facts.batch_size,) * facts.steps)
    total = {name: torch.zeros_like(value) for name, value in weights.items()}
    for some, labels in zip(images.split(sizes), classes.split(sizes), strict=True):
        gradient = differentiate(weights, some, labels)
        total = {name: value + gradient[name] for name, value in total.items()}
        weights = {name: value - facts.learning_rate * gradient[name] for name, value in weights.items()}
    return total


def _orders(images: Tensor) -> list[Tensor]:
    """Return orders of the images of several steps, each pass over the client's images shuffled by itself."""
    count = len(images)
    number = min(ORDERS, MOST_IMAGES // count)
    if number < FEWEST_ORDERS:
        raise UserError(
            f"the order of {count} images in the local steps is not known, and they are too many to try some"
        )
    once = len(images.unique(dim=0))
    if count % once or not torch.equal(images, images[:once].repeat(count // once, 1, 1, 1)):
        once = count
    rng, starts = generator(0, "orders of local steps"), range(0, count, once)
    orders = [torch.cat([start + torch.randperm(once, generator=rng) for start in starts]) for _ in range(number)]
    return [order.to(images.device) for order in orders]


def over_clients(agreements: Sequence[Agreement], unchecked: Sequence[str], optimiser: str = "") -> Premise:
    """Return the premise of a round's uploads: it fails where most clients' do, or where one differs grossly."""
    off = [client for client in agreements if client.differs]
    if 2 * len(off) <= len(agreements) and all(client.error <= GROSS for client in off):
        off = []
    shown = off or agreements
    optimiser = optimiser if off or not agreements else ""
    return Premise(
        status="differs" if off or optimiser else "agrees" if agreements else "not checkable",
        cause="optimiser" if optimiser else off[0].cause if off else "",
        optimiser=optimiser,
        why=next(iter(unchecked), ""),
        cosine=statistics.median(client.cosine for client in shown) if shown else None,
        relative_error=statistics.median(client.error for client in shown) if shown else None,
        worst=max((client.error for client in agreements), default=None),
        allowed=max((client.allowed for client in shown), default=None),
        factor=statistics.median(client.factor for client in shown) if shown else None,
        n_clients=len(agreements),
        n_differ=len(off),
    )
