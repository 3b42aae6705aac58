"""Gradient matching under a deep image prior: the images are what untrained networks draw.

The objective is that of inverting gradients (Geiping et al., NeurIPS 2020); the prior is that of Ulyanov, Vedaldi and
Lempitsky (CVPR 2018), whose weights are optimised instead of pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from fedpriv.attacks.gradients.batch_statistics import explained, matching_of
from fedpriv.attacks.gradients.gradient_matching import Matcher, SeveralSteps
from fedpriv.attacks.gradients.step_problems import MATCHING, MATCHING_ON, bytes_of_matching, caveat, read_problem
from fedpriv.attacks.invert.inversion import bytes_of_generator
from fedpriv.attacks.observation import Knowledge, NeedsOn, Observation, Progress, Reconstruction, TargetId, Unit
from fedpriv.attacks.optim.fitting import Schedule, fit
from fedpriv.attacks.optim.rows import Row, Solved, solve_rows
from fedpriv.attacks.priors.dip import Hourglass
from fedpriv.attacks.priors.several import SeveralImages
from fedpriv.attacks.read.sent_entries import GradientMatch
from fedpriv.util import seeds
from fedpriv.wire.kinds import NETWORKS


@dataclass(frozen=True)
class GradientDip:
    """Gradient matching in the cosine distance over the weights of one generator network an image, by plain Adam.

    A target is an upload as a whole; its images are all those of its local steps, in the order of the steps.

    Attributes:
        iterations: most steps of a row.
        learning_rate: Adam's step size.
        restarts: rows a target; the one with the lowest distance is kept.
        average: decay of the running mean of the images.
        tolerance: distance below which a row is finished, and converged.
        patience: steps without 1 % gain after which a row is finished.
        several_steps: see :class:`fedpriv.attacks.gradients.inverting_gradients.InvertingGradients`.
        ignore: see there too.
        match: see there too.
        statistics_weight: see there too.
        generator: shape of each generator network.
    """

    iterations: Annotated[int, Ge(1)] = 2000
    learning_rate: Annotated[float, Gt(0)] = 5e-3
    restarts: Annotated[int, Ge(1)] = 1
    average: Annotated[float, Ge(0), Lt(1)] = 0.99
    tolerance: Annotated[float, Ge(0)] = 1e-6
    patience: Annotated[int, Ge(1)] = 500
    several_steps: SeveralSteps = "unrolled"
    ignore: str = ""
    match: GradientMatch = "all"
    statistics_weight: Annotated[float, Ge(0)] = 0.01
    generator: Hourglass = Hourglass()

    name = "gradient-dip"
    targets = NETWORKS
    unit: ClassVar[Unit] = "upload"
    budget: ClassVar[str | None] = "iterations"
    needs = MATCHING
    needs_on: ClassVar[NeedsOn] = MATCHING_ON

    def run(
        self,
        observations: tuple[Observation, ...],
        targets: tuple[TargetId, ...],
        knowledge: Knowledge,
        *,
        seed: int,
        device: torch.device,
        chunk_rows: int | None = None,
        progress: Progress | None = None,
    ) -> Reconstruction:
        """Recover the images of each target; see :class:`fedpriv.attacks.observation.Attack`.

        Raises:
            UserError: when the model, the batch facts or granted labels are missing, or labels are too many.
        """
        self.needs.refuse(self.name, knowledge.card)
        problem = read_problem(
            self.name, observations, targets, knowledge, device, ignore=self.ignore, match=self.match
        )
        matcher = Matcher(
            problem.model, knowledge.image_shape, problem.facts, self.several_steps, device, knowledge.loss.proximal
        )
        count = problem.labels.shape[1]
        schedule = Schedule(
            self.iterations, self.learning_rate, average=self.average, tolerance=self.tolerance, patience=self.patience
        )

        def solve(rows: Sequence[Row], tick: Callable[[int], None]) -> Solved:
            _, _, labels = problem.of(rows)
            matching = matching_of(problem, matcher, rows, self.statistics_weight)
            probabilities = problem.probabilities(rows, knowledge.n_classes)

            def distance(pictures: Tensor, which: Tensor) -> Tensor:
                there = which.to(device)
                return matching.cosine(pictures.unflatten(1, (count, -1)), probabilities[there], there)

            draws = [[_generator(seed, row, image) for image in range(count)] for row in rows]
            fitted = fit(SeveralImages(draws, knowledge.image_shape, self.generator, device), distance, schedule, tick)
            images = fitted.images.unflatten(1, (count, -1))
            return Solved(
                images=problem.shown(rows, images),
                objective=fitted.objective,
                converged=explained(matching, images, probabilities, fitted.objective) < schedule.tolerance,
                labels=problem.shown(rows, labels),
                iterations=fitted.iterations,
            )

        best = solve_rows(
            targets,
            solve,
            restarts=self.restarts,
            iterations=self.iterations,
            bytes_per_row=count * bytes_of_generator(self.generator, knowledge.image_shape)
            + bytes_of_matching(problem, knowledge, matcher),
            device=device,
            chunk_rows=chunk_rows,
            progress=progress,
        )
        return best.reconstruction(targets)

    def caveat(self, observations: tuple[Observation, ...], targets: tuple[TargetId, ...], knowledge: Knowledge) -> str:
        """Return in words why the true images need not be what is searched for; empty where they are."""
        return caveat(self.name, observations, targets, knowledge, ignore=self.ignore, match=self.match)


def _generator(seed: int, row: Row, image: int) -> torch.Generator:
    target = row.target
    return seeds.generator(seed, target.round, target.client, target.index, row.restart, image)
