"""Inversion under a prior that the attacker learned on its own images, of one image or of as many as a mean is made of.

``||mean_j g(x_j) - r||^2 / ||r||^2`` is minimised over the pixels of M images, held back by a denoiser
(:mod:`fedpriv.attacks.priors.denoiser`). A single image begins as a decoder gives it,
several as untrained networks draw them together (:mod:`fedpriv.attacks.inversion.joint`): pixels find the details of images
that are there in outline, and do not find them from afar. How far a single image goes from the decoded towards the fitted
one is learned for each client on images of the attacker's own, as a decoder's refinement is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.inputs.targets import list_targets, observation_of, target_feature
from fedpriv.attacks.inversion.decoder import DecoderInversion, defenses_of, divided, worth
from fedpriv.attacks.inversion.decoder_network import Pairs
from fedpriv.attacks.inversion.joint import JointInversion, uploaded_count
from fedpriv.attacks.inversion.vector import FITS, Fitting, vector_distance
from fedpriv.attacks.observation import Cost, KnowledgeCard, Needs, Observation, Reconstruction, Stages
from fedpriv.attacks.priors.denoiser import Denoiser, DenoiserTraining, LearnedImages, LearnedSettings, own_denoiser
from fedpriv.attacks.search.candidates import Row, Solved, fit_rows, solve_rows
from fedpriv.attacks.search.fit import Schedule
from fedpriv.attacks.trained import Same
from fedpriv.util.last import Last
from fedpriv.util.seeds import derive_seed
from fedpriv.wire.kinds import CLASS_MEANS, SEPARATE
from fedpriv.wire.payloads import Representations

_TRIED = 6
"""Held-out images of the attacker's own on which it learns what a fit through a client's extractor is worth."""

_DIP = 2
"""Work of an iteration of an image under an untrained network, in those of one under a denoiser."""


@dataclass(frozen=True, kw_only=True)
class LearnedInversion(Fitting, Attack):
    """Fit images to each vector under a denoiser, from where a decoder or a joint inversion leads.

    Attributes:
        most: largest number of images M for a class mean, as of the attack ``joint``; every
            class mean gets as many, the first M of which are all there is. A representation is of one image.
        restarts: decoders, or starts of the joint inversion, of which the best begins.
        together: iterations of the joint inversion that several images begin with; None for twice ``iterations``, so that
            one budget reaches both stages.
        learning_rate: Adam's first step size; it falls to zero along half a cosine.
        prior: what holds pixels back.
        denoiser: how the denoiser is trained, once for a run; for ``iterations`` steps at most.
    """

    iterations: Annotated[int, Ge(1)] = 300
    learning_rate: Annotated[float, Gt(0)] = 0.05
    fits: Annotated[float, Ge(0)] = FITS
    most: Annotated[int, Ge(1)] = 4
    together: Annotated[int, Ge(1)] | None = None
    prior: LearnedSettings = LearnedSettings()
    denoiser: DenoiserTraining = DenoiserTraining()

    name = "learned"
    summary = "images of the uploaded vector, or of as many as it is a mean of, held back by a trained denoiser"
    version = 3
    targets = SEPARATE
    unit = "upload"
    budget = "iterations"
    most_targets = 24
    only_by_name_on = CLASS_MEANS
    needs = Needs(extractor=("white_box",), attacker_data=("same_domain", "other_domain"))

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
        denoiser, targets = own_denoiser(self.name, problem, self.denoiser, self.iterations), problem.targets
        of_class = [CLASS_MEANS.first(observation_of(problem.observations, one).upload) is not None for one in targets]
        shown, counts = self.most if any(of_class) else 1, self._counts(problem)
        together = sum(count or self.most for count in counts if count != 1)  # images that begin together
        each = counts.count(1) + together
        stages = Stages(problem.progress, [_DIP * together * self.joint.iterations, each * self.iterations])
        begun = self._begun(replace(problem, progress=stages.of(0)), counts, denoiser)
        parts: list[Reconstruction] = []
        fits = Stages(stages.of(1), [begin.images.shape[:2].numel() for begin in begun])
        for turn, begin in enumerate(begun):
            some = replace(_some(problem, begin.places), progress=fits.of(turn))
            solved = _between(some, begin.images, self._solve(some, begin.images, denoiser), begin.shares)
            in_turn = torch.arange(shown, device=begin.images.device) % begin.images.shape[1]
            parts.append(replace(solved, images=solved.images[:, in_turn], labels=solved.labels[:, in_turn]))
        order = torch.tensor([place for begin in begun for place in begin.places]).argsort().to(problem.device)
        names = ("images", "objective", "chosen", "labels", "converged", "features")
        return Reconstruction(
            targets=targets,
            cost=_spent(begun, parts),
            **{name: torch.cat([getattr(part, name) for part in parts])[order] for name in names},
        )

    @property
    def joint(self) -> JointInversion:
        """The inversion that several images begin with."""
        iterations = 2 * self.iterations if self.together is None else self.together
        return JointInversion(most=self.most, iterations=iterations, restarts=self.restarts)

    def _begun(self, problem: AttackProblem, counts: Sequence[int | None], denoiser: Denoiser) -> list[_Begun]:
        """Return where the targets' images begin: single ones as decoded, several as found together."""
        alone = [place for place, count in enumerate(counts) if count == 1]
        others = [place for place, count in enumerate(counts) if count != 1]
        begun = []
        if alone:
            worths = {client: self._worth(problem, client, denoiser) for client in _some(problem, alone).clients}
            shares = torch.tensor([worths[problem.targets[place].client] for place in alone], device=problem.device)
            begun.append(_Begun(alone, self._decoded(_some(problem, alone)), shares, Cost()))
        if others:
            found = self.joint.run(_some(problem, others))
            starts = [_first(images) for images in found.images]
            for number in sorted({len(start) for start in starts}):
                own = [which for which, start in enumerate(starts) if len(start) == number]
                images = torch.stack([starts[which] for which in own])
                shares = torch.ones(len(own), device=images.device)
                begun.append(_Begun([others[which] for which in own], images, shares, found.cost))
        return begun

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the distance to the uploaded vectors, each by as many images as it is a mean of.

        Where the upload hides the number, by all images that differ: a solution of fewer repeats them.
        """
        apart, counts = vector_distance(problem), self._counts(problem)

        def of(images: Tensor) -> Tensor:
            own = [
                _first(shown) if count is None else shown[:count] for shown, count in zip(images, counts, strict=True)
            ]
            return torch.cat([apart(shown[None], torch.tensor([place])) for place, shown in enumerate(own)])

        return of

    def _counts(self, problem: AttackProblem) -> list[int | None]:
        """Return the number of images to search for of each target; None where the upload hides it."""
        found: list[int | None] = []
        for target in problem.targets:
            if CLASS_MEANS.first(observation_of(problem.observations, target).upload) is None:
                found.append(1)
                continue
            count = uploaded_count(problem.observations, target)
            found.append(None if count is None else min(count, self.most))
        return found

    def _solve(self, problem: AttackProblem, begin: Tensor, denoiser: Denoiser) -> Reconstruction:
        """Fit images to each target from ``(T, M, c, h, w)`` on."""
        apart, number, targets = vector_distance(problem), begin.shape[1], problem.targets

        def solve(rows: Sequence[Row], tick: Callable[[int], None]) -> Solved:
            positions = torch.tensor([row.position for row in rows])
            places: Last[Tensor, Tensor] = Last(lambda which: positions[which])

            def distance(pictures: Tensor, which: Tensor) -> Tensor:
                return apart(pictures.unflatten(1, (number, -1)), places(which))

            prior = LearnedImages(begin[positions.to(begin.device)], denoiser, self.denoiser.noise, self.prior)
            return fit_rows(rows, prior, distance, self.schedule, tick, count=number, numerics=problem.numerics)

        channels, height, width = problem.knowledge.image_shape
        return solve_rows(
            problem,
            solve,
            restarts=1,
            iterations=self.iterations,
            bytes_per_row=4 * number * (200 * max(channels, 16) + 20 * self.denoiser.width) * height * width,
            features=torch.stack([target_feature(problem.observations, one).to(problem.device) for one in targets]),
        )

    def _decoded(self, problem: AttackProblem) -> Tensor:
        """Return the targets' images ``(T, 1, c, h, w)`` as the decoder gives them."""
        return DecoderInversion(refine=0, restarts=self.restarts).run(replace(problem, progress=None)).images

    def _worth(self, problem: AttackProblem, client: int, denoiser: Denoiser) -> float:
        """Return the share of the way from decoded to fitted images, learned once on images held out of the decoder."""
        own, extractor = problem.knowledge.public_images, problem.knowledge.extractors[client]
        defended = defenses_of(problem, [client])[0]
        assert own is not None  # the denoiser was trained on them

        def learn() -> float:
            known = (
                divided(Pairs([], own), derive_seed(problem.seed, "decoder", 0))[1].images[:_TRIED].to(problem.device)
            )
            with torch.no_grad():
                vectors = extractor(known)
                vectors = vectors if defended is None else defended(vectors, derive_seed(problem.seed, "learned worth"))
            upload = Representations(vectors.cpu(), torch.zeros(len(known), dtype=torch.long))
            seen = (Observation(problem.targets[0].round, client, (upload,), ()),)
            trial = replace(problem, observations=seen, targets=list_targets(seen, upload.kind), progress=None)
            decoded = self._decoded(trial)
            fitted = self._solve(trial, decoded, denoiser).images
            return worth(decoded, fitted, known[:, None])

        return problem.trained.get(
            ("learned worth", self, problem.seed, Same(extractor), Same(own), Same(defended)), learn
        )


@dataclass(frozen=True)
class _Begun:
    """Targets that as many images each are fitted to.

    Attributes:
        places: T of them, among all targets.
        images: ``(T, M, c, h, w)`` that the fit begins with.
        shares: ``(T,)`` of the way from these to the fitted ones that is gone.
        cost: of finding the images.
    """

    places: list[int]
    images: Tensor
    shares: Tensor
    cost: Cost


def _spent(begun: Sequence[_Begun], fitted: Sequence[Reconstruction]) -> Cost:
    """Return the cost of what was begun and then fitted; trainings, and what a fit is worth, are learned once for a run."""
    both = [(begin.cost, part.cost) for begin, part in zip(begun, fitted, strict=True)]
    return Cost(
        iterations=max(first.iterations + then.iterations for first, then in both),
        rows=sum(then.rows for _, then in both),
        evaluations=max(first.evaluations + then.evaluations for first, then in both),
    )


def _between(problem: AttackProblem, begin: Tensor, solved: Reconstruction, shares: Tensor) -> Reconstruction:
    """Return images so far between the first and the fitted ones, ``(T,)`` shares of the way, and their distances."""
    if bool((shares == 1).all()):
        return solved
    images = torch.lerp(begin, solved.images, shares.view(-1, 1, 1, 1, 1))
    with torch.no_grad():
        apart = vector_distance(problem)(images, torch.arange(len(images)))
    return replace(solved, images=images, objective=apart[:, None])


def _some(problem: AttackProblem, places: Sequence[int]) -> AttackProblem:
    return replace(problem, targets=tuple(problem.targets[place] for place in places))


def _first(images: Tensor) -> Tensor:
    """Return the images ``(M, c, h, w)`` that are shown before they are repeated in turn."""
    again = next((place for place in range(1, len(images)) if torch.equal(images[place], images[0])), len(images))
    return images[:again]
