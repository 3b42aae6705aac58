"""Gradient matching under a deep image prior: the images are what untrained networks draw.

The objective is that of inverting gradients (Geiping et al., NeurIPS 2020); the prior is that of Ulyanov, Vedaldi and
Lempitsky (CVPR 2018), whose weights are optimised instead of pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.batch_statistics import explained, matching_of
from fedpriv.attacks.gradients.gradient_matching import Matcher
from fedpriv.attacks.gradients.step_problems import GradientMatching, StepProblem, Tick
from fedpriv.attacks.invert.inversion import DipFitting
from fedpriv.attacks.optim.rows import Row, Solved, fit_rows
from fedpriv.attacks.priors.several import SeveralImages


@dataclass(frozen=True, kw_only=True)
class GradientDip(DipFitting, GradientMatching):
    """Gradient matching in the cosine distance over the weights of one generator network an image, by plain Adam.

    Attributes:
        statistics_weight: see :class:`fedpriv.attacks.gradients.inverting_gradients.InvertingGradients`.
    """

    iterations: Annotated[int, Ge(1)] = 2000
    tolerance: Annotated[float, Ge(0)] = 1e-6
    patience: Annotated[int, Ge(1)] = 500
    statistics_weight: Annotated[float, Ge(0)] = 0.01

    name = "gradient-dip"
    summary = "images drawn by untrained networks whose gradient is the uploaded one, by direction"
    budget = "iterations"

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
