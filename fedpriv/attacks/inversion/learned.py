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
from fedpriv.attacks.inputs.targets import list_targets, observation_of
from fedpriv.attacks.inversion.decoder import TRIED, DecoderInversion, defenses_of, divided, worth
from fedpriv.attacks.inversion.decoder_network import Pairs
from fedpriv.attacks.inversion.joint import JointInversion, repeated, uploaded_count
from fedpriv.attacks.inversion.vector import FITS, Fitting, uploaded_vectors, vector_distance
from fedpriv.attacks.observation import Cost, Needs, Observation, Progress, Reconstruction, ThreatModel
from fedpriv.attacks.priors.denoiser import Denoiser, DenoiserTraining, LearnedImages, LearnedSettings, own_denoiser
from fedpriv.attacks.search.candidates import Row, Solved, by_target, fit_rows, solve_rows
from fedpriv.attacks.search.fit import Schedule
from fedpriv.attacks.trained import Same
from fedpriv.util.seeds import derive_seed
from fedpriv.wire.kinds import CLASS_MEANS, SEPARATE
from fedpriv.wire.payloads import Representations

_DIP = 2
"""Work of an iteration of an image under an untrained network, in those of one under a denoiser."""


@dataclass(frozen=True, kw_only=True)
class LearnedInversion(Fitting, Attack):
    """Fit images to each vector under a denoiser, from where a decoder or a joint inversion leads.

    Attributes:
        most: largest number of images M for a class mean, as of the attack ``joint``; every
            class mean gets as many, the first M of which are all there is. A representation is of one image.
        restarts: starts of the joint inversion, of which the best begins.
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

    def trains(self, card: ThreatModel) -> str:
        """Return the name of what it trains first: a decoder serves all attacks that decode."""
        return "decoder"

    @property
    def joint(self) -> JointInversion:
        """The inversion that several images begin with."""
        iterations = 2 * self.iterations if self.together is None else self.together
        return JointInversion(most=self.most, iterations=iterations, restarts=self.restarts)

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Train, unless that is done, and fit.

        Raises:
            UserError: when extractors or images are missing, there are too few images, or a target is not there.
        """
        denoiser, targets = own_denoiser(self.name, problem, self.denoiser, self.iterations), problem.targets
        of_class = [CLASS_MEANS.first(observation_of(problem.observations, t).upload) is not None for t in targets]
        shown, counts = self.most if any(of_class) else 1, self._counts(problem)
        several = sum(count or self.most for count in counts if count != 1)  # images that begin together
        joint, fits = _DIP * several * self.joint.iterations, (counts.count(1) + several) * self.iterations
        begun = self._begun(
            replace(problem, progress=_part(problem.progress, 0, joint, joint + fits)), counts, denoiser
        )
        parts: list[Reconstruction] = []
        done = joint
        for start in begun:
            units = start.images.shape[:2].numel() * self.iterations
            some = replace(_some(problem, start.places), progress=_part(problem.progress, done, units, joint + fits))
            solved = _between(some, start, self._solve(some, start.images, denoiser))
            parts.append(repeated(solved, shown))
            done += units
        order = torch.tensor([position for start in begun for position in start.places]).argsort().to(problem.device)
        names = ("images", "objective", "chosen", "labels", "converged", "features")
        both = [(start.cost, part.cost) for start, part in zip(begun, parts, strict=True)]
        return Reconstruction(
            targets=targets,
            # Training, and what a fit is worth, are learned once for a run.
            cost=Cost(
                iterations=max(first.iterations + then.iterations for first, then in both),
                rows=sum(then.rows for _, then in both),
                evaluations=max(first.evaluations + then.evaluations for first, then in both),
            ),
            **{name: torch.cat([getattr(part, name) for part in parts])[order] for name in names},
        )

    def _begun(self, problem: AttackProblem, counts: Sequence[int | None], denoiser: Denoiser) -> list[_Start]:
        """Return where the targets' images begin: single ones as decoded, several as found together."""
        alone = [place for place, count in enumerate(counts) if count == 1]
        others = [positions for positions, count in enumerate(counts) if count != 1]
        starts = []
        if alone:
            some = _some(problem, alone)
            worths = {client: self._worth(problem, client, denoiser) for client in some.clients}
            shares = torch.tensor([worths[target.client] for target in some.targets], device=problem.device)
            starts.append(_Start(alone, _decoded(some), shares, Cost()))
        if others:
            solved = self.joint.run(_some(problem, others))
            each = [_first(images) for images in solved.images]
            for number in sorted({len(images) for images in each}):
                which = [index for index, images in enumerate(each) if len(images) == number]
                images = torch.stack([each[position] for position in which])
                shares = torch.ones(len(which), device=images.device)
                starts.append(_Start([others[place] for place in which], images, shares, solved.cost))
        return starts

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the distance to the uploaded vectors, each by as many images as it is a mean of.

        Where the upload hides the number, by all images that differ: a solution of fewer repeats them.
        """
        apart, counts = vector_distance(problem), self._counts(problem)

        def of(images: Tensor) -> Tensor:
            each = [
                _first(shown) if count is None else shown[:count] for shown, count in zip(images, counts, strict=True)
            ]
            return torch.cat([apart(shown[None], torch.tensor([index])) for index, shown in enumerate(each)])

        return of

    def _counts(self, problem: AttackProblem) -> list[int | None]:
        """Return the number of images to search for of each target; None where the upload hides it."""
        counts: list[int | None] = []
        for target in problem.targets:
            if CLASS_MEANS.first(observation_of(problem.observations, target).upload) is None:
                counts.append(1)
                continue
            count = uploaded_count(problem.observations, target)
            counts.append(None if count is None else min(count, self.most))
        return counts

    def _solve(self, problem: AttackProblem, begin: Tensor, denoiser: Denoiser) -> Reconstruction:
        """Fit images to each target from ``(T, M, c, h, w)`` on."""
        distance, number = vector_distance(problem), begin.shape[1]

        def solve(rows: Sequence[Row], tick: Callable[[int], None]) -> Solved:
            start = begin[[row.position for row in rows]]
            prior = LearnedImages(start, denoiser, self.denoiser.noise, self.prior)
            apart = by_target(rows, distance, number)
            return fit_rows(rows, prior, apart, self.schedule, tick, count=number, numerics=problem.numerics)

        channels, height, width = problem.knowledge.image_shape
        return solve_rows(
            problem,
            solve,
            restarts=1,
            iterations=self.iterations,
            bytes_per_row=4 * number * (200 * max(channels, 16) + 20 * self.denoiser.width) * height * width,
            features=uploaded_vectors(problem),
        )

    def _worth(self, problem: AttackProblem, client: int, denoiser: Denoiser) -> float:
        """Return the share of the way from decoded to fitted images, learned once on images held out of the decoder."""
        images, extractor = problem.knowledge.public_images, problem.knowledge.extractors[client]
        defended = defenses_of(problem, [client])[0]
        assert images is not None  # the denoiser was trained on them

        def learn() -> float:
            kept = divided(Pairs([], images), derive_seed(problem.seed, "decoder", 0))[1]
            known = kept.images[:TRIED].to(problem.device)
            with torch.no_grad():
                vectors = extractor(known)
                vectors = vectors if defended is None else defended(vectors, derive_seed(problem.seed, "learned worth"))
            upload = Representations(vectors.cpu(), torch.zeros(len(known), dtype=torch.long))
            seen = (Observation(problem.targets[0].round, client, (upload,), ()),)
            trial = replace(problem, observations=seen, targets=list_targets(seen, upload.kind), progress=None)
            decoded = _decoded(trial)
            return worth(decoded, self._solve(trial, decoded, denoiser).images, known[:, None])

        return problem.trained.get(
            ("learned worth", self, problem.seed, Same(extractor), Same(images), Same(defended)), learn
        )


@dataclass(frozen=True)
class _Start:
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


def _part(progress: Progress | None, before: int, units: int, planned: int) -> Progress | None:
    """Return the listener to which a stage of so many ``units`` reports its own progress."""
    if progress is None:
        return None
    return lambda done, all_done: progress(before + units * done // max(1, all_done), planned)


def _decoded(problem: AttackProblem) -> Tensor:
    """Return the targets' images ``(T, 1, c, h, w)`` as the decoder gives them."""
    return DecoderInversion(refine=0).run(replace(problem, progress=None)).images


def _between(problem: AttackProblem, start: _Start, solved: Reconstruction) -> Reconstruction:
    """Return images as far between the first and the fitted ones as their shares say, and their distances."""
    if bool((start.shares == 1).all()):
        return solved
    images = torch.lerp(start.images, solved.images, start.shares.view(-1, 1, 1, 1, 1))
    with torch.no_grad():
        apart = vector_distance(problem)(images, torch.arange(len(images)))
    return replace(solved, images=images, objective=apart[:, None])


def _some(problem: AttackProblem, places: Sequence[int]) -> AttackProblem:
    return replace(problem, targets=tuple(problem.targets[position] for position in places))


def _first(images: Tensor) -> Tensor:
    """Return the images ``(M, c, h, w)`` that are shown before they are repeated in turn."""
    again = next((index for index in range(1, len(images)) if torch.equal(images[index], images[0])), len(images))
    return images[:again]
