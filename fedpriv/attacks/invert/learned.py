"""Inversion under a prior that the attacker learned on its own images, of one image or of as many as a mean is made of.

``||mean_j g(x_j) - r||^2 / ||r||^2`` is minimised over the pixels of M images, held back by a denoiser
(:mod:`fedpriv.attacks.priors.learned`). A single image begins as a decoder gives it (:mod:`fedpriv.attacks.invert.decoder`).
Several begin as images of the attacker's own whose mean representation comes near, moved so that their mean image is the decoded
one: which images made a mean is then searched for among images, and no longer among everything that has the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.invert.decoder import DecoderInversion
from fedpriv.attacks.invert.inversion import FITS, Fitting
from fedpriv.attacks.invert.joint import uploaded_count
from fedpriv.attacks.invert.vector_distance import vector_distance
from fedpriv.attacks.observation import Cost, KnowledgeCard, Needs, Reconstruction, TargetId
from fedpriv.attacks.optim.rows import Row, Solved, fit_rows, solve_rows
from fedpriv.attacks.optim.schedule import Schedule
from fedpriv.attacks.priors.denoiser import Denoiser, DenoiserTraining
from fedpriv.attacks.priors.learned import LearnedImages, LearnedSettings, own_denoiser
from fedpriv.attacks.read.extractors import represent
from fedpriv.attacks.read.target_features import observation_of, target_feature
from fedpriv.attacks.trained import Same
from fedpriv.util.last import Last
from fedpriv.wire.kinds import CLASS_MEANS, SEPARATE


@dataclass(frozen=True, kw_only=True)
class LearnedInversion(Fitting, Attack):
    """Fit images to each vector under a denoiser, from where a decoder and the attacker's own images lead.

    Attributes:
        most: largest number of images M for a class mean: as many as the upload says that it is a mean of, ``most`` where it
            hides that. A representation is of one image.
        learning_rate: Adam's first step size; it falls to zero along half a cosine.
        prior: what holds pixels back.
        denoiser: how the denoiser is trained, once for a run.
    """

    iterations: Annotated[int, Ge(1)] = 300
    learning_rate: Annotated[float, Gt(0)] = 0.05
    fits: Annotated[float, Ge(0)] = FITS
    most: Annotated[int, Ge(1)] = 4
    prior: LearnedSettings = LearnedSettings()
    denoiser: DenoiserTraining = DenoiserTraining()

    name = "learned"
    summary = "images of the uploaded vector, or of a mean of several, held back by a denoiser that the attacker trained"
    targets = SEPARATE
    unit = "upload"
    budget = "iterations"
    needs = Needs(extractor=("white_box", "shadow"), attacker_data=("same_domain", "other_domain"))

    @property
    def schedule(self) -> Schedule:
        """Adam with a step size that falls to zero."""
        return replace(super().schedule, anneal=True)

    def trains(self, card: KnowledgeCard) -> str:
        """Return the name of what it trains first: a decoder serves all who decode."""
        return "decoder"

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Train, unless that is done, and fit.

        Raises:
            UserError: when extractors or images are missing, there are too few images, or a target is not there.
        """
        decoded = DecoderInversion(refine=0).run(replace(problem, progress=None)).images[:, 0]
        denoiser = own_denoiser(self.name, problem, self.denoiser)
        counts = [self._count(problem, target) for target in problem.targets]
        shown = max(self.most if self._of_class(problem, target) else 1 for target in problem.targets)
        parts: dict[int, Reconstruction] = {}
        places = {number: [k for k, count in enumerate(counts) if count == number] for number in sorted(set(counts))}
        for number, own in places.items():
            some = replace(problem, targets=tuple(problem.targets[k] for k in own))
            solved = self._solve(some, decoded[own], denoiser, number)
            in_turn = torch.arange(shown, device=solved.images.device) % number
            parts[number] = replace(solved, images=solved.images[:, in_turn], labels=solved.labels[:, in_turn])
        order = torch.tensor([k for own in places.values() for k in own]).argsort().to(problem.device)
        names = ("images", "objective", "chosen", "labels", "converged")
        return Reconstruction(
            targets=problem.targets,
            cost=Cost(
                iterations=max(part.cost.iterations for part in parts.values()),
                rows=sum(part.cost.rows for part in parts.values()),
            ),
            features=torch.stack([target_feature(problem.observations, t).to(problem.device) for t in problem.targets]),
            **{name: torch.cat([getattr(part, name) for part in parts.values()])[order] for name in names},
        )

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the distance to the uploaded vectors, each by as many images as were fitted to it."""
        apart = vector_distance(problem)
        counts = [self._count(problem, target) for target in problem.targets]

        def of(images: Tensor) -> Tensor:
            each = zip(images, counts, strict=True)
            return torch.cat(
                [apart(shown[None, :count], torch.tensor([place])) for place, (shown, count) in enumerate(each)]
            )

        return of

    def _of_class(self, problem: AttackProblem, target: TargetId) -> bool:
        return CLASS_MEANS.first(observation_of(problem.observations, target).upload) is not None

    def _count(self, problem: AttackProblem, target: TargetId) -> int:
        if not self._of_class(problem, target):
            return 1
        count = uploaded_count(problem.observations, target)
        return self.most if count is None else min(count, self.most)

    def _solve(self, problem: AttackProblem, decoded: Tensor, denoiser: Denoiser, number: int) -> Reconstruction:
        """Fit ``number`` images to each target, whose decoded image ``(T, c, h, w)`` is their mean at first."""
        apart = vector_distance(problem)

        def solve(rows: Sequence[Row], tick: Callable[[int], None]) -> Solved:
            positions = torch.tensor([row.position for row in rows])
            places: Last[Tensor, Tensor] = Last(lambda which: positions[which])
            start = decoded[positions.to(decoded.device)][:, None]
            if number > 1:
                start = torch.stack([self._apart(problem, row, own, number) for row, own in zip(rows, start, strict=True)])

            def distance(pictures: Tensor, which: Tensor) -> Tensor:
                return apart(pictures.unflatten(1, (number, -1)), places(which))

            prior = LearnedImages(start, denoiser, self.denoiser.noise, self.prior)
            return fit_rows(rows, prior, distance, self.schedule, tick, count=number, numerics=problem.numerics)

        channels, height, width = problem.knowledge.image_shape
        return solve_rows(
            problem,
            solve,
            restarts=self.restarts,
            iterations=self.iterations,
            bytes_per_row=4 * number * (200 * max(channels, 16) + 20 * self.denoiser.width) * height * width,
        )

    def _apart(self, problem: AttackProblem, row: Row, decoded: Tensor, number: int) -> Tensor:
        """Return images ``(M, c, h, w)`` of the attacker's own, moved so that their mean is the decoded one ``(1, c, h, w)``.

        From a half of its images, which the row draws, one at a time that brings the mean representation nearest.
        """
        own, vectors = self._own(problem, row.target.client)
        wanted = target_feature(problem.observations, row.target).to(vectors)
        half = torch.randperm(len(own), generator=row.generator(problem.seed, "half"))[: max(number, len(own) // 2)]
        chosen: list[int] = []
        total = torch.zeros_like(wanted)
        for step in range(1, number + 1):
            gap = ((total + vectors[half]) / step - wanted).square().sum(1)
            gap[[place for place, one in enumerate(half.tolist()) if one in chosen]] = torch.inf
            chosen.append(int(half[gap.argmin()]))
            total = total + vectors[chosen[-1]]
        found = own[chosen].to(decoded.device)
        return (found - found.mean(0, keepdim=True) + decoded).clamp(0, 1)

    def _own(self, problem: AttackProblem, client: int) -> tuple[Tensor, Tensor]:
        """Return the attacker's own images and their representations by a client's extractor, computed once."""
        knowledge = problem.knowledge
        own = knowledge.public_images
        assert own is not None
        key = ("own representations", Same(knowledge.extractors[client]), Same(own), problem.device)
        return own, problem.trained.get(key, lambda: represent(knowledge, client, own.to(problem.device)))
