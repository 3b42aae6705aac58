"""Joint inversion of prototypes: as many images as the prototype is a mean of, found together.

``||mean_j g(x_j) - p||^2 / ||p||^2`` is minimised over M images x_1 .. x_M, each under a deep image prior of its own, with
the client's extractor g in hand. Inverting a mean of two representations as if it were one image's fails, because no
image has that representation; the two images together do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.inputs.targets import observation_of
from fedpriv.attacks.inversion.vector import FITS, DipFitting, uploaded_vectors, vector_distance
from fedpriv.attacks.observation import Cost, Needs, Observation, Reconstruction, Stages, TargetId
from fedpriv.attacks.priors.dip import DeepImagePrior
from fedpriv.attacks.search.candidates import Row, Solved, by_target, fit_rows, solve_rows
from fedpriv.attacks.search.objectives import Match
from fedpriv.wire.kinds import CLASS_MEANS
from fedpriv.wire.payloads import Prototypes, find_payload


@dataclass(frozen=True, kw_only=True)
class JointInversion(DipFitting, Attack):
    """Invert each prototype by as many images as it is a mean of.

    Every target gets ``most`` images, because a reconstruction holds the same number for all: one of M < ``most`` images
    repeats them in turn, so the first M are all there is.

    Attributes:
        most: largest number of images M; a prototype of more images, or of a number that the upload hides, is inverted by
            ``most``.
        match: what of the prototype is believed; see :data:`fedpriv.attacks.search.objectives.Match`.
    """

    iterations: Annotated[int, Ge(1)] = 1000
    most: Annotated[int, Ge(1)] = 4
    fits: Annotated[float, Ge(0)] = FITS
    match: Match = "vector"

    name = "joint"
    summary = "as many images as an uploaded class mean is made of, found together"
    version = 5
    targets = CLASS_MEANS
    unit = "upload"
    budget = "iterations"
    most_targets = 6
    needs = Needs(extractor=("white_box", "shadow"))

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Invert the prototypes of the targets."""
        targets, counts = problem.targets, self._counts(problem)
        numbers = sorted(set(counts))
        stages = Stages(problem.progress, [number * counts.count(number) for number in numbers])
        parts: list[Reconstruction] = []
        order: list[int] = []
        for stage, number in enumerate(numbers):
            places = [place for place, count in enumerate(counts) if count == number]
            part = replace(problem, targets=tuple(targets[place] for place in places), progress=stages.of(stage))
            parts.append(self._solve(part, number))
            order += places
        back = torch.tensor(order).argsort()
        names = ("images", "objective", "chosen", "labels", "converged")
        joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        cost = Cost(
            iterations=max(part.cost.iterations for part in parts),
            rows=sum(part.cost.rows for part in parts),
            evaluations=max(part.cost.evaluations for part in parts),
        )
        vectors = uploaded_vectors(problem, CLASS_MEANS)
        return Reconstruction(
            targets=targets,
            cost=cost,
            features=vectors,
            **{name: values[back.to(values.device)] for name, values in joined.items()},
        )

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the distance to the uploaded vectors, each by as many images as it is searched for by."""
        counts, distance = self._counts(problem), vector_distance(problem, self.match, CLASS_MEANS)

        def of(images: Tensor) -> Tensor:
            each = [shown[:count] for shown, count in zip(images, counts, strict=True)]
            return torch.cat([distance(shown[None], torch.tensor([index])) for index, shown in enumerate(each)])

        return of

    def _counts(self, problem: AttackProblem) -> list[int]:
        counts = [uploaded_count(problem.observations, target) for target in problem.targets]
        return [self.most if count is None else min(count, self.most) for count in counts]

    def _solve(self, problem: AttackProblem, number: int) -> Reconstruction:
        """Return ``most`` images and labels a target, of which so many are searched for and repeated in turn."""
        image_shape, distance = problem.knowledge.image_shape, vector_distance(problem, self.match, CLASS_MEANS)

        def solve(rows: Sequence[Row], tick: Callable[[int], None]) -> Solved:
            draws = [row.generator(problem.seed, "image", image) for row in rows for image in range(number)]
            prior = DeepImagePrior(draws, image_shape, self.generator, problem.device, number)
            apart = by_target(rows, distance, number)
            return fit_rows(rows, prior, apart, self.schedule, tick, count=number, numerics=problem.numerics)

        solved = solve_rows(
            problem,
            solve,
            restarts=self.restarts,
            iterations=self.iterations,
            bytes_per_row=number * self.bytes_per_image(image_shape),
        )
        turns = torch.arange(self.most, device=solved.images.device) % number
        return replace(solved, images=solved.images[:, turns], labels=solved.labels[:, turns])


def uploaded_count(observations: Sequence[Observation], target: TargetId) -> int | None:
    """Return the number of images that a prototype is a mean of, at least one; None where the upload hides it."""
    means = find_payload(observation_of(observations, target).upload, Prototypes)
    if means is None or means.counts is None:
        return None
    return max(1, int(means.counts[target.index]))
