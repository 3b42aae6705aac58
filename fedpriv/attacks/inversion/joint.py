"""Joint inversion of prototypes: as many images as the prototype is a mean of, found together.

``||mean_j g(x_j) - p||^2 / ||p||^2`` is minimised over M images x_1 .. x_M, each under a deep image prior of its own, with
the client's extractor g in hand. Inverting a mean of two representations as if it were one image's fails, because no
image has that representation; the two images together do.

How many images went in is uploaded by most methods that upload prototypes. Where it is not, the objective gives it away: a
number too small cannot reach the objective that the right one reaches. The largest number is tried before all others: what
it cannot reach, no smaller one can, and most prototypes of a run are means of many more images than that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.inputs.extractors import require_extractors
from fedpriv.attacks.inputs.targets import observation_of, target_feature
from fedpriv.attacks.inversion.vector import FITS, DipFitting, vector_distance
from fedpriv.attacks.observation import Cost, Needs, Observation, Reconstruction, TargetId
from fedpriv.attacks.priors.dip import SeveralImages
from fedpriv.attacks.search.candidates import Row, Solved, fit_rows, solve_rows
from fedpriv.attacks.search.objectives import Match
from fedpriv.util.last import Last
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
        vectors = [target_feature(problem.observations, t, CLASS_MEANS).to(problem.device) for t in targets]
        counts = [uploaded_count(problem.observations, target) for target in targets]
        kept: dict[int, _Attempt] = {}
        spent: list[Cost] = []
        evaluations = [0] * len(targets)
        passes = self._passes(counts)
        for place, number in enumerate(passes):
            waiting = self._waiting(counts, kept, number)
            if not waiting:
                continue

            def within(done: int, planned: int, before: int = sum(passes[:place]), own: int = number) -> None:
                if problem.progress is not None:
                    problem.progress(before * planned + own * done, sum(passes) * planned)

            part = replace(problem, targets=tuple(targets[one] for one in waiting), progress=within)
            solved = self._solve(part, number)
            in_turn = torch.arange(self.most, device=solved.images.device) % number
            solved = replace(solved, images=solved.images[:, in_turn], labels=solved.labels[:, in_turn])
            spent.append(solved.cost)
            for position, one in enumerate(waiting):
                evaluations[one] += solved.cost.evaluations
                attempt = _Attempt(solved, position, number)
                if one not in kept or attempt.lowest <= self.fits:
                    kept[one] = attempt
        found = [kept[one] for one in range(len(targets))]
        names = ("images", "objective", "chosen", "labels", "converged")
        return Reconstruction(
            targets=targets,
            cost=Cost(
                iterations=max(cost.iterations for cost in spent),
                rows=sum(cost.rows for cost in spent),
                evaluations=max(evaluations),
            ),
            features=torch.stack(vectors),
            **{name: torch.stack([getattr(one.solved, name)[one.position] for one in found]) for name in names},
        )

    def _passes(self, counts: Sequence[int | None]) -> list[int]:
        """Return the numbers of images that may be tried, in order: those said by the uploads, else all from most on."""
        if None in counts:
            return [self.most, *range(1, self.most)]
        return sorted({min(count, self.most) for count in counts if count is not None})

    def _waiting(self, counts: Sequence[int | None], kept: Mapping[int, _Attempt], number: int) -> list[int]:
        """Return the places of the targets that are to be solved by a number of images, after those that are kept so far."""

        def waits(place: int, count: int | None) -> bool:
            if count is not None:
                return place not in kept and min(count, self.most) == number
            first = kept.get(place)
            if first is None:
                return number == self.most
            return first.number == self.most > number and first.lowest <= self.fits

        return [place for place, count in enumerate(counts) if waits(place, count)]

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the distance to the uploaded vectors, each by as many images as it is a mean of.

        Where the upload hides the number, by all images that differ: a solution of fewer repeats them.
        """
        apart = vector_distance(problem, self.match, CLASS_MEANS)
        counts = [uploaded_count(problem.observations, target) for target in problem.targets]

        def of(images: Tensor) -> Tensor:
            own = [
                shown.unique(dim=0) if count is None else shown[: min(count, self.most)]
                for shown, count in zip(images, counts, strict=True)
            ]
            return torch.cat([apart(shown[None], torch.tensor([place])) for place, shown in enumerate(own)])

        return of

    def _solve(self, problem: AttackProblem, number: int) -> Reconstruction:
        knowledge, device = problem.knowledge, problem.device
        apart = vector_distance(problem, self.match, CLASS_MEANS)

        def solve(rows: Sequence[Row], tick: Callable[[int], None]) -> Solved:
            positions = torch.tensor([row.position for row in rows])
            places: Last[Tensor, Tensor] = Last(lambda which: positions[which])

            def distance(pictures: Tensor, which: Tensor) -> Tensor:
                return apart(pictures.unflatten(1, (number, -1)), places(which))

            draws = [[row.generator(problem.seed, "image", image) for image in range(number)] for row in rows]
            prior = SeveralImages(draws, knowledge.image_shape, self.generator, device)
            return fit_rows(rows, prior, distance, self.schedule, tick, count=number, numerics=problem.numerics)

        return solve_rows(
            problem,
            solve,
            restarts=self.restarts,
            iterations=self.iterations,
            bytes_per_row=number * self.bytes_per_image(knowledge.image_shape),
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


def uploaded_count(observations: Sequence[Observation], target: TargetId) -> int | None:
    """Return the number of images that a prototype is a mean of, at least one; None where the upload hides it."""
    means = find_payload(observation_of(observations, target).upload, Prototypes)
    if means is None or means.counts is None:
        return None
    return max(1, int(means.counts[target.index]))
