"""Inverting gradients: match the direction of the client's update, under total variation or a deep image prior.

Geiping, Bauermeister, Droege and Moeller, "Inverting Gradients: How easy is it to break privacy in federated
learning?" (NeurIPS 2020); the other prior is that of Ulyanov, Vedaldi and Lempitsky (CVPR 2018), whose weights are
optimised instead of pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Le, MinLen
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.batch_statistics import explained, matching_of
from fedpriv.attacks.gradients.gradient_matching import Matcher, Matching
from fedpriv.attacks.gradients.step_problems import GradientMatching, StepProblem, Tick
from fedpriv.attacks.invert.inversion import DipFitting
from fedpriv.attacks.optim.rows import Row, Solved, fit_rows
from fedpriv.attacks.priors.several import SeveralImages

_DROPS = (3 / 8, 5 / 8, 7 / 8)
"""Shares of the iterations after which the step size falls to a tenth, and total variation loses weight."""

_FLAT = 0.02
"""Mean difference of neighbouring pixels below which an image is hardly smoother for differing less."""

Weight = Annotated[float, Ge(0)]


@dataclass(frozen=True, kw_only=True)
class DirectionMatching(GradientMatching):
    """Gradient matching in the cosine distance.

    Attributes:
        statistics_weight: of the distance between the statistics before batch norms and the client's, where the network
            has batch norms and the card grants statistics; added to the distance. 0 leaves them out. See
            :mod:`fedpriv.attacks.gradients.batch_statistics`.
    """

    statistics_weight: Annotated[float, Ge(0)] = 0.01

    budget = "iterations"


@dataclass(frozen=True, kw_only=True)
class InvertingGradients(DirectionMatching):
    """Gradient matching in the cosine distance, with total variation, by Adam in the box of valid images.

    The variables are ``u`` with ``x = 0.5 + scale u``, the space of images normalised to a standard deviation of
    ``scale``, in which the paper's step size and start are meant. Departs from the paper in that the weight of total
    variation falls together with the step size, from what finds coarse shapes to what leaves fine ones alone. The images
    returned are those, among all iterates under the last weight, with the lowest sum of distance and weighted variation,
    each evaluated as it stands after clamping. Between a target's rows, which were weighted differently, the product of
    distance and squared variation decides, which is the objective reported: it prefers neither the noisy image that fits a
    little better nor the smooth one that fits a little worse.

    Attributes:
        iterations: steps of a row.
        restarts: starts a target under each weight of total variation; the row with the lowest objective is kept.
        total_variation: first weight of the mean absolute difference of neighbouring pixels, across plus down; one, or
            several. No weight suits all: images of few pixels behind smooth networks come back exactly under a small one,
            larger images and networks with ReLU only under a large one, and the objective tells which is which.
        variation_decay: what that weight is multiplied by wherever the step size falls; 1 is the paper's.
        learning_rate: step size of Adam in u; falls to a tenth after 3/8, 5/8 and 7/8 of the iterations.
        signed: whether Adam is given the gradient's signs only, as in the paper; one answer, or several, which the weights
            of total variation take in turn. Signs go far through kinks and plateaus; the gradient itself follows the long
            curved valleys that smooth networks with large weights leave.
        scale: what one unit of u is in pixel values.
        start_noise: standard deviation of the start in u, around mid-grey; 1 is the paper's.
        median_every: iterations after which a 3 x 3 median filter goes over the images, again and again; 0 for never.
        tolerance: a row has converged when its distance is below.
    """

    iterations: Annotated[int, Ge(1)] = 2000
    total_variation: Weight | Annotated[tuple[Weight, ...], MinLen(1)] = (0.06, 0.06, 0.001)
    variation_decay: Annotated[float, Ge(0), Le(1)] = 0.2
    learning_rate: Annotated[float, Gt(0)] = 0.1
    signed: bool | Annotated[tuple[bool, ...], MinLen(1)] = (True, False, True)
    scale: Annotated[float, Gt(0)] = 0.5
    start_noise: Annotated[float, Ge(0)] = 0.2
    median_every: Annotated[int, Ge(0)] = 0
    tolerance: Annotated[float, Ge(0)] = 1e-3

    name = "inverting-gradients"
    summary = "smooth images whose gradient is the uploaded one, by direction"

    @property
    def ways(self) -> tuple[tuple[float, bool], ...]:
        """First weight of total variation and whether signs are taken; a target's rows take one after the other."""
        weights = self.total_variation if isinstance(self.total_variation, tuple) else (self.total_variation,)
        signs = self.signed if isinstance(self.signed, tuple) else (self.signed,)
        return tuple((weight, signs[place % len(signs)]) for place, weight in enumerate(weights))

    @property
    def rows_per_target(self) -> int:
        """As many restarts under each weight of total variation."""
        return self.restarts * len(self.ways)

    def solve(
        self, problem: AttackProblem, updates: StepProblem, matcher: Matcher, rows: Sequence[Row], tick: Tick
    ) -> Solved:
        """Search for the images of N rows, each its own way."""
        _, _, labels = updates.of(rows)
        batch = (labels.shape[1], *problem.knowledge.image_shape)
        draws = torch.stack([torch.randn(batch, generator=row.generator(problem.seed)) for row in rows])
        matching = matching_of(updates, matcher, rows, self.statistics_weight)
        ways = [self.ways[row.restart % len(self.ways)] for row in rows]
        known = updates.probabilities(rows, problem.knowledge.n_classes)
        search = _Search(self, matching, known, draws.to(problem.device), ways)
        for step in range(self.iterations):
            search.advance(step)
            tick(step + 1)
        search.look()
        return Solved(
            images=updates.shown(rows, search.images),
            objective=search.distance.clamp_min(0) * (_FLAT + absolute_variation(search.images)).square(),
            converged=explained(matching, search.images, known, search.distance) < self.tolerance,
            labels=updates.shown(rows, labels),
            iterations=self.iterations,
        )


@dataclass(frozen=True, kw_only=True)
class GradientDip(DipFitting, DirectionMatching):
    """Gradient matching in the cosine distance over the weights of one generator network an image, by plain Adam."""

    iterations: Annotated[int, Ge(1)] = 2000
    tolerance: Annotated[float, Ge(0)] = 1e-6
    patience: Annotated[int, Ge(1)] = 500

    name = "gradient-dip"
    summary = "images drawn by untrained networks whose gradient is the uploaded one, by direction"

    def bytes_beside(self, problem: AttackProblem, updates: StepProblem) -> int:
        """Estimate the memory of a row's generator networks."""
        return updates.labels.shape[1] * self.bytes_per_image(problem.knowledge.image_shape)

    def solve(
        self, problem: AttackProblem, updates: StepProblem, matcher: Matcher, rows: Sequence[Row], tick: Tick
    ) -> Solved:
        """Fit one generator network an image."""
        knowledge, device = problem.knowledge, problem.device
        _, _, labels = updates.of(rows)
        count = labels.shape[1]
        matching = matching_of(updates, matcher, rows, self.statistics_weight)
        probabilities = updates.probabilities(rows, knowledge.n_classes)

        def distance(pictures: Tensor, which: Tensor) -> Tensor:
            there = which.to(device)
            return matching.cosine(pictures.unflatten(1, (count, -1)), probabilities[there], there)

        draws = [[row.generator(problem.seed, image) for image in range(count)] for row in rows]
        prior = SeveralImages(draws, knowledge.image_shape, self.generator, device)
        found = fit_rows(rows, prior, distance, self.schedule, tick, count=count)
        return replace(
            found,
            images=updates.shown(rows, found.images),
            converged=explained(matching, found.images, probabilities, found.objective) < self.tolerance,
            labels=updates.shown(rows, labels),
        )


class _Search:
    """N rows on their way, and the best that each has seen.

    Attributes:
        images: ``(N, M, c, h, w)`` in [0, 1], each row's best so far.
        distance: ``(N,)`` the distance of exactly these images.
    """

    def __init__(
        self,
        attack: InvertingGradients,
        matching: Matching,
        labels: Tensor,
        draws: Tensor,
        ways: Sequence[tuple[float, bool]],
    ) -> None:
        self._attack = attack
        self._matching = matching
        self._labels = labels
        self._rows = torch.arange(len(draws), device=draws.device)
        self._reach = 0.5 / attack.scale
        self._point = (attack.start_noise * draws).clamp_(-self._reach, self._reach).requires_grad_()
        self._optimiser = torch.optim.Adam([self._point], lr=attack.learning_rate, fused=True)
        self._first_weights = self._weights = draws.new_tensor([weight for weight, _ in ways])
        signed = [signed for _, signed in ways]
        self._signed = torch.tensor(signed, device=draws.device).view(-1, 1, 1, 1, 1)
        self._some_signed, self._all_signed = any(signed), all(signed)
        self._each = torch.ones_like(self._weights)
        self._passed = 0
        self._lowest = draws.new_full((len(draws),), torch.inf)
        self.images = self._images().detach().clone()
        self.distance = torch.full_like(self._lowest, torch.inf)

    def _images(self) -> Tensor:
        return torch.rsub(self._point, 0.5, alpha=-self._attack.scale)

    def look(self) -> Tensor:
        """Return objectives ``(N,)`` of the present images; remember those of rows that never had a lower one."""
        images = self._images()
        distance = self._matching.cosine(images, self._labels, self._rows)
        objective = distance + self._weights * absolute_variation(images)
        with torch.no_grad():
            better = objective < self._lowest
            self._lowest = torch.where(better, objective, self._lowest)
            self.distance = torch.where(better, distance, self.distance)
            self.images = torch.where(better.view(-1, 1, 1, 1, 1), images, self.images)
        return objective

    def advance(self, step: int) -> None:
        """Look, then take a step back into the box."""
        attack = self._attack
        passed = sum(step >= share * attack.iterations for share in _DROPS)
        if passed != self._passed:  # objectives under another weight cannot be compared
            self._passed = passed
            self._weights = self._first_weights * attack.variation_decay**passed
            self._lowest = torch.full_like(self._lowest, torch.inf)
        (gradient,) = torch.autograd.grad(self.look(), self._point, self._each)
        # A row that is not finite stays where it is; the others go on.
        gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
        if self._all_signed:
            gradient = gradient.sign()
        elif self._some_signed:
            gradient = torch.where(self._signed, gradient.sign(), gradient)
        self._point.grad = gradient
        self._optimiser.param_groups[0]["lr"] = attack.learning_rate * 0.1**passed
        self._optimiser.step()
        with torch.no_grad():
            if attack.median_every and (step + 1) % attack.median_every == 0 and step + 1 < attack.iterations:
                self._point.copy_(median_filtered(self._point))
            self._point.clamp_(-self._reach, self._reach)


def absolute_variation(images: Tensor) -> Tensor:
    """Return mean ``|right - here|`` plus mean ``|below - here|`` of each row's images ``(N, M, c, h, w)``: ``(N,)``."""
    found: Tensor = _Variation.apply(images)
    return found


class _Variation(torch.autograd.Function):
    """Absolute variation with its derivative, in few operations."""

    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        """Return ``(N,)``."""
        steps = torch.diff(images, dim=-1), torch.diff(images, dim=-2)
        ctx.save_for_backward(*steps)
        across, down = (step.abs().flatten(1).mean(1) for step in steps)
        return across + down

    @staticmethod
    def backward(ctx: Any, *weights: Tensor) -> Tensor:
        """Return the derivative at images of equal neighbours as zero."""
        found = None
        for axis, step in zip((-1, -2), ctx.saved_tensors, strict=True):
            each = step.sign().mul_(weights[0].view(-1, 1, 1, 1, 1) * (len(step) / step.numel()))
            if found is None:
                found = functional.pad(each, (1, 0))
            else:
                found.narrow(axis, 1, step.shape[axis]).add_(each)
            found.narrow(axis, 0, step.shape[axis]).sub_(each)
        assert found is not None
        return found


def median_filtered(images: Tensor) -> Tensor:
    """Return images ``(N, M, c, h, w)`` whose pixels are the medians of 3 x 3; the border is repeated outwards."""
    from kornia.filters import median_blur  # takes a tenth of a second to import

    padded = functional.pad(images.flatten(0, 1), (1, 1, 1, 1), mode="replicate")
    # kornia takes neighbours by convolution with ones and zeros, which cudnn would round to TF32.
    with torch.backends.cudnn.flags(enabled=False):
        filtered: Tensor = median_blur(padded, 3)
    return filtered[..., 1:-1, 1:-1].reshape(images.shape)
