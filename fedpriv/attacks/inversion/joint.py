"""Joint inversion of prototypes: as many images as the prototype is a mean of, found together.

``||mean_j g(x_j) - p||^2 / ||p||^2`` is minimised over M images x_1 .. x_M, each under a deep image prior of its own, with
the client's extractor g in hand. Inverting a mean of two representations as if it were one image's fails, because no
image has that representation; the two images together do.

How many images went in is uploaded by most methods that upload prototypes. Where it is not, the objective gives it away: a
number too small cannot reach the objective that the right one reaches. The largest number is tried before all others: what
it cannot reach, no smaller one can, and most prototypes of a run are means of many more images than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.inputs.extractors import require_extractors
from fedpriv.attacks.inputs.targets import observation_of
from fedpriv.attacks.inversion.vector import FITS, DipFitting, uploaded_vectors, vector_distance
from fedpriv.attacks.observation import Cost, Needs, Observation, Reconstruction, TargetId
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
        most: largest number of images M; a prototype of more images is inverted by ``most``.
        fits: relative feature distance at which a number of images counts as enough. Where the upload hides the count,
            ``most`` images are tried; if they reach it, then M = 1, 2, .., and the first that reaches it is kept.
        match: what of the prototype is believed; see :data:`fedpriv.attacks.search.objectives.Match`.
    """

    iterations: Annotated[int, Ge(1)] = 1000
    most: Annotated[int, Ge(1)] = 4
    fits: Annotated[float, Ge(0)] = FITS
    match: Match = "vector"

    name = "joint"
    summary = "as many images as an uploaded class mean is made of, found together"
    version = 4
    targets = CLASS_MEANS
    unit = "upload"
    budget = "iterations"
    most_targets = 6
    needs = Needs(extractor=("white_box", "shadow"))

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Invert the prototypes of the targets."""
        targets = problem.targets
        require_extractors(problem.knowledge, targets)
        vectors = uploaded_vectors(problem, CLASS_MEANS)
        counts = [uploaded_count(problem.observations, target) for target in targets]
        passes = sorted({min(count, self.most) for count in counts if count is not None})
        if None in counts:
            passes = [self.most, *range(1, self.most)]
        attempts: dict[int, _Attempt] = {}
        evaluations = [0] * len(targets)
        spent: list[Cost] = []
        for turn, number in enumerate(passes):
            waiting = [
                positions
                for positions, count in enumerate(counts)
                if self._waits(count, attempts.get(positions), number)
            ]
            if not waiting:
                continue

            def within(done: int, planned: int, before: int = sum(passes[:turn]), weight: int = number) -> None:
                if problem.progress is not None:
                    problem.progress(before * planned + weight * done, sum(passes) * planned)

            part = replace(problem, targets=tuple(targets[place] for place in waiting), progress=within)
            solved = repeated(self._solve(part, number), self.most)
            spent.append(solved.cost)
            for position, index in enumerate(waiting):
                evaluations[index] += solved.cost.evaluations
                attempt = _Attempt(solved, position, number)
                if index not in attempts or attempt.lowest <= self.fits:
                    attempts[index] = attempt
        kept = [attempts[place] for place in range(len(targets))]
        names = ("images", "objective", "chosen", "labels", "converged")
        return Reconstruction(
            targets=targets,
            cost=Cost(
                iterations=max(cost.iterations for cost in spent),
                rows=sum(cost.rows for cost in spent),
                evaluations=max(evaluations),
            ),
            features=vectors,
            **{name: torch.stack([getattr(each.solved, name)[each.position] for each in kept]) for name in names},
        )

    def _waits(self, count: int | None, attempt: _Attempt | None, number: int) -> bool:
        """True where a prototype is to be solved by a number of images, after an attempt or none so far."""
        if count is not None:
            return min(count, self.most) == number
        if attempt is None:
            return number == self.most
        return attempt.number == self.most > number and attempt.lowest <= self.fits

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the distance to the uploaded vectors, each by as many images as it is a mean of.

        Where the upload hides the number, by all images that differ: a solution of fewer repeats them.
        """
        counts = [uploaded_count(problem.observations, target) for target in problem.targets]
        distance = vector_distance(problem, self.match, CLASS_MEANS)

        def of(images: Tensor) -> Tensor:
            each = [
                shown.unique(dim=0) if count is None else shown[: min(count, self.most)]
                for shown, count in zip(images, counts, strict=True)
            ]
            return torch.cat([distance(shown[None], torch.tensor([index])) for index, shown in enumerate(each)])

        return of

    def _solve(self, problem: AttackProblem, number: int) -> Reconstruction:
        image_shape, distance = problem.knowledge.image_shape, vector_distance(problem, self.match, CLASS_MEANS)

        def solve(rows: Sequence[Row], tick: Callable[[int], None]) -> Solved:
            draws = [row.generator(problem.seed, "image", image) for row in rows for image in range(number)]
            prior = DeepImagePrior(draws, image_shape, self.generator, problem.device, number)
            apart = by_target(rows, distance, number)
            return fit_rows(rows, prior, apart, self.schedule, tick, count=number, numerics=problem.numerics)

        return solve_rows(
            problem,
            solve,
            restarts=self.restarts,
            iterations=self.iterations,
            bytes_per_row=number * self.bytes_per_image(image_shape),
        )


@dataclass(frozen=True)
class _Attempt:
    """One target solved with some number of images: which row of what was solved together."""

    solved: Reconstruction
    position: int
    number: int

    @property
    def lowest(self) -> float:
        """The objective of the chosen restart; infinite where all failed."""
        value = self.solved.objective[self.position, self.solved.chosen[self.position]]
        return float(value.nan_to_num(nan=torch.inf))


def repeated(solved: Reconstruction, most: int) -> Reconstruction:
    """Return ``most`` images and labels a target, in turn those that there are."""
    in_turn = torch.arange(most, device=solved.images.device) % solved.images.shape[1]
    return replace(solved, images=solved.images[:, in_turn], labels=solved.labels[:, in_turn])


def uploaded_count(observations: Sequence[Observation], target: TargetId) -> int | None:
    """Return the number of images that a prototype is a mean of, at least one; None where the upload hides it."""
    means = find_payload(observation_of(observations, target).upload, Prototypes)
    if means is None or means.counts is None:
        return None
    return max(1, int(means.counts[target.index]))
