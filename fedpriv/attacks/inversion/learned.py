"""Inversion under a prior that the attacker learned on its own images, one image a vector.

``||g(x) - r||^2 / ||r||^2`` is minimised over pixels that a denoiser holds back (:mod:`fedpriv.attacks.priors.pixels`),
from the image that a decoder gives: pixels find the details of an image that is there in outline, and do not find it from
afar. How far to go from the decoded towards the fitted image is learned for each client on images of the attacker's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem, Objective, Same
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.decoder import TRIED, DecoderInversion, Pairs, decoder_seed, defenses_of, divided, worth
from fedpriv.attacks.inversion.vector import FITS, Fitting, fit_targets, uploaded_vectors, vector_distance
from fedpriv.attacks.observation import Needs, Observation, Reconstruction, ThreatModel
from fedpriv.attacks.priors.pixels import WIDTH, Denoiser, LearnedImages, own_denoiser
from fedpriv.attacks.search.candidates import Row
from fedpriv.attacks.search.fit import Prior, Schedule
from fedpriv.uploads.kinds import CLASS_MEANS, SEPARATE
from fedpriv.uploads.payloads import Representations
from fedpriv.util.seeds import derive_seed


@dataclass(frozen=True, kw_only=True)
class LearnedInversion(Fitting, Attack):
    """Fit an image to each vector under a denoiser, from where a decoder leads.

    A class mean is fitted as if it were of one image, like a representation.

    Attributes:
        learning_rate: Adam's first step size; it falls to zero along half a cosine.
    """

    iterations: Annotated[int, Ge(1)] = 300
    learning_rate: Annotated[float, Gt(0)] = 0.05
    fits = FITS

    name = "learned"
    summary = "an image with the uploaded representation, under a trained denoiser"
    version = 4
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

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Train, unless that is done, and fit; refuse missing extractors, images or targets, and too few images."""
        denoiser = own_denoiser(self.name, problem, self.iterations)
        worths = {client: self._worth(problem, client, denoiser) for client in problem.clients}
        decoded = _decoded(problem)
        solved = self._solve(problem, decoded, denoiser)
        shares = torch.tensor([worths[target.client] for target in problem.targets], device=problem.device)
        if bool((shares == 1).all()):
            return solved
        images = torch.lerp(decoded, solved.images, shares.view(-1, 1, 1, 1, 1))
        with torch.no_grad():
            apart = vector_distance(problem)(images, torch.arange(len(images)))
        return replace(solved, images=images, objective=apart[:, None])

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the distance to the uploaded vectors."""
        distance, places = vector_distance(problem), torch.arange(len(problem.targets))
        return lambda images: distance(images[:, :1], places)

    def _solve(self, problem: AttackProblem, begin: Tensor, denoiser: Denoiser) -> Reconstruction:
        """Fit an image to each target from ``(T, 1, c, h, w)`` on."""

        def prior(rows: Sequence[Row]) -> Prior:
            start = begin[[row.position for row in rows], 0]
            return LearnedImages(start, denoiser)

        channels, height, width = problem.knowledge.image_shape
        size = 4 * (200 * max(channels, 16) + 20 * WIDTH) * height * width
        vectors = uploaded_vectors(problem)
        return fit_targets(problem, prior, vector_distance(problem), self.schedule, size, features=vectors)

    def _worth(self, problem: AttackProblem, client: int, denoiser: Denoiser) -> float:
        """Return the share of the way from decoded to fitted images, learned once on images held out of the decoder."""
        images, extractor = problem.knowledge.public_images, problem.knowledge.extractors[client]
        defended = defenses_of(problem, [client])[0]
        assert images is not None  # the denoiser was trained on them

        def learn() -> float:
            known = divided(Pairs([], images), decoder_seed(problem))[1].images[:TRIED].to(problem.device)
            with torch.no_grad():
                vectors = defended(extractor(known), derive_seed(problem.seed, "learned worth"))
            upload = Representations(vectors.cpu(), torch.zeros(len(known), dtype=torch.long))
            seen = (Observation(problem.targets[0].round, client, (upload,), ()),)
            trial = replace(problem, observations=seen, targets=list_targets(seen, upload.kind), progress=None)
            decoded = _decoded(trial)
            return worth(decoded, self._solve(trial, decoded, denoiser).images, known[:, None])

        key = ("learned worth", self, problem.seed, Same(extractor), Same(images), Same(defended))
        return problem.trained.get(key, learn)


def _decoded(problem: AttackProblem) -> Tensor:
    """Return the targets' images ``(T, 1, c, h, w)`` as the decoder gives them."""
    return DecoderInversion(refine_steps=0).run(replace(problem, progress=None)).images
