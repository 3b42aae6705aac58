"""Gradient matching under a deep image prior: the images are what untrained networks draw.

The objective is that of inverting gradients (Geiping et al., NeurIPS 2020); the prior is that of Ulyanov, Vedaldi and
Lempitsky (CVPR 2018), whose weights are optimised instead of pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Lt
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.batch_statistics import explained, matching_of
from fedpriv.attacks.gradients.matching_attack import GradientMatching
from fedpriv.attacks.gradients.step_problems import bytes_of_matching
from fedpriv.attacks.invert.inversion import bytes_of_generator
from fedpriv.attacks.observation import Reconstruction
from fedpriv.attacks.optim.fitting import Schedule, fit
from fedpriv.attacks.optim.rows import Row, Solved, solve_rows
from fedpriv.attacks.priors.dip import Hourglass
from fedpriv.attacks.priors.several import SeveralImages
from fedpriv.wire.kinds import NETWORKS


@dataclass(frozen=True, kw_only=True)
class GradientDip(GradientMatching):
    """Gradient matching in the cosine distance over the weights of one generator network an image, by plain Adam.

    Attributes:
        iterations: most steps of a row.
        learning_rate: Adam's step size.
        restarts: rows a target; the one with the lowest distance is kept.
        average: decay of the running mean of the images.
        tolerance: distance below which a row is finished, and converged.
        patience: steps without 1 % gain after which a row is finished.
        statistics_weight: see :class:`fedpriv.attacks.gradients.inverting_gradients.InvertingGradients`.
        generator: shape of each generator network.
    """

    iterations: Annotated[int, Ge(1)] = 2000
    learning_rate: Annotated[float, Gt(0)] = 5e-3
    restarts: Annotated[int, Ge(1)] = 1
    average: Annotated[float, Ge(0), Lt(1)] = 0.99
    tolerance: Annotated[float, Ge(0)] = 1e-6
    patience: Annotated[int, Ge(1)] = 500
    statistics_weight: Annotated[float, Ge(0)] = 0.01
    generator: Hourglass = Hourglass()

    name = "gradient-dip"
    summary = "images drawn by untrained networks whose gradient is the uploaded one, by direction"
    targets = NETWORKS
    budget = "iterations"

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Recover the images of each target.

        Raises:
            UserError: when the model, the batch facts or granted labels are missing, or labels are too many.
        """
        updates, knowledge, device = self.read(problem), problem.knowledge, problem.device
        matcher = self.matcher(problem, updates)
        count = updates.labels.shape[1]
        schedule = Schedule(
            self.iterations, self.learning_rate, average=self.average, tolerance=self.tolerance, patience=self.patience
        )

        def solve(rows: Sequence[Row], tick: Callable[[int], None]) -> Solved:
            _, _, labels = updates.of(rows)
            matching = matching_of(updates, matcher, rows, self.statistics_weight)
            probabilities = updates.probabilities(rows, knowledge.n_classes)

            def distance(pictures: Tensor, which: Tensor) -> Tensor:
                there = which.to(device)
                return matching.cosine(pictures.unflatten(1, (count, -1)), probabilities[there], there)

            draws = [[row.generator(problem.seed, image) for image in range(count)] for row in rows]
            fitted = fit(SeveralImages(draws, knowledge.image_shape, self.generator, device), distance, schedule, tick)
            images = fitted.images.unflatten(1, (count, -1))
            return Solved(
                images=updates.shown(rows, images),
                objective=fitted.objective,
                converged=explained(matching, images, probabilities, fitted.objective) < schedule.tolerance,
                labels=updates.shown(rows, labels),
                iterations=fitted.iterations,
            )

        return solve_rows(
            problem,
            solve,
            restarts=self.restarts,
            iterations=self.iterations,
            bytes_per_row=count * bytes_of_generator(self.generator, knowledge.image_shape)
            + bytes_of_matching(updates, knowledge, matcher),
        )
