"""Inversion under a prior that the attacker learned on its own images, one image a vector.

``||g(x) - r||^2 / ||r||^2`` is minimised over pixels that a denoiser holds back, from the image that a decoder gives: pixels
find the details of an image that is there in outline, and do not find it from afar. How far to go from the decoded towards
the fitted image is learned for each client on images of the attacker's own.

The prior is ``weight * ||x - D(x)||^2 / s^2`` per pixel, with D a denoiser of noise s and its derivative as if D(x) were
constant: each step moves the image towards what D makes of it (Romano, Elad and Milanfar, "The little engine that could:
regularization by denoising", SIAM J. Imaging Sci. 2017).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.attacks.contract import Attack, AttackProblem, Objective, Same
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.decoder import TRIED, DecoderInversion, Pairs, decoder_seed, defenses_of, divided, worth
from fedpriv.attacks.inversion.vector import FITS, Fitting, fit_targets, uploaded_vectors, vector_distance
from fedpriv.attacks.observation import Needs, Observation, Reconstruction, ThreatModel
from fedpriv.attacks.priors.spectral import PixelPrior, images_to_train_on
from fedpriv.attacks.search.candidates import Row
from fedpriv.attacks.search.fit import Adam, Prior, Schedule, cooling
from fedpriv.models.split import fastest_order
from fedpriv.uploads.kinds import CLASS_MEANS, SEPARATE
from fedpriv.uploads.payloads import Representations
from fedpriv.util.seeds import derive_seed, generator, global_seed

WIDTH, _NOISE = 24, 0.03
"""Channels of a denoiser's finest maps (coarser ones have two and four times as many); standard deviation of its noise."""

_STEPS, _BATCH, _RATE = 200, 16, 2e-3
"""Of its training by Adam: steps at most, images a step, and first step size, which falls to zero along half a cosine."""

_STRANGE = 0.006
"""Weight of what a denoiser changes, squared, in units of its noise, in a search for one image."""


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
    needs = Needs(extractor=("white_box",), attacker_data=("same_domain",))

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
        solved = fit_targets(problem, prior, vector_distance(problem), self.schedule, size)
        return replace(solved, features=uploaded_vectors(problem))

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


class Denoiser(nn.Module):
    """A network that takes noise off images ``(n, c, h, w)``; starts as the identity.

    Three resolutions, joined by sums: convolutions of 3 x 3, halved by stride and doubled by repeating. It gives the noise,
    in units of its standard deviation, which is taken from the image.
    """

    def __init__(self, channels: int, width: int = WIDTH) -> None:
        super().__init__()

        def convolution(before: int, after: int, stride: int = 1) -> nn.Conv2d:
            return nn.Conv2d(before, after, 3, stride=stride, padding=1)

        self.fine = nn.Sequential(convolution(channels, width), nn.ReLU(), convolution(width, width), nn.ReLU())
        self.halve = nn.Sequential(convolution(width, 2 * width, 2), nn.ReLU(), convolution(2 * width, 2 * width))
        self.quarter = nn.Sequential(convolution(2 * width, 4 * width, 2), nn.ReLU(), convolution(4 * width, 4 * width))
        self.narrow = convolution(4 * width, 2 * width)
        self.mix = convolution(2 * width, 2 * width)
        self.widen = convolution(2 * width, width)
        self.noise = convolution(width, channels)
        for value in self.noise.parameters():
            nn.init.zeros_(value)

    def forward(self, images: Tensor) -> Tensor:
        """Return the images with less noise."""
        fine = self.fine(4 * (images - 0.5))
        middle = self.halve(fine).relu()
        coarse = self.narrow(self.quarter(middle).relu()).relu()
        middle = self.mix(functional.interpolate(coarse, size=middle.shape[-2:]) + middle).relu()
        fine = (functional.interpolate(self.widen(middle), size=fine.shape[-2:]) + fine).relu()
        cleaner: Tensor = images - _NOISE * self.noise(fine)
        return cleaner


def train_denoiser(images: Tensor, iterations: int, seed: int) -> Denoiser:
    """Train a denoiser on images ``(n, c, h, w)`` in [0, 1], half of them mirrored, by Adam on the mean squared error."""
    with global_seed(derive_seed(seed, "denoiser weights")):
        network = Denoiser(images.shape[1]).to(images.device)
    draws = generator(seed, "denoiser pairs")
    with fastest_order(network, functional.mse_loss) as ordered:
        optimiser = Adam(network.parameters(), _RATE, fused=True)
        for step in range(iterations):
            clean = images[torch.randint(len(images), (_BATCH,), generator=draws).to(images.device)]
            clean = torch.cat([clean[::2], clean[1::2].flip(3)])
            noise = _NOISE * torch.randn(clean.shape, generator=draws).to(images.device)
            optimiser.pace(_RATE * cooling(step / iterations))
            optimiser.descend(functional.mse_loss(network(ordered(clean + noise)), clean) / _NOISE**2)
    return network.eval().requires_grad_(False)


def own_denoiser(attack: str, problem: AttackProblem, search: int) -> Denoiser:
    """Return the denoiser of a run, trained once on the attacker's own images for all attacks; refuse too few images.

    It is trained for as many steps as the ``search`` has iterations at most: a small budget does not go to training alone.
    """
    images, seed = images_to_train_on(attack, problem.knowledge), derive_seed(problem.seed, "denoiser")
    steps = min(_STEPS, search)
    key = ("denoiser", steps, seed, Same(images), problem.device)
    return problem.trained.get(key, lambda: train_denoiser(images.to(problem.device), steps, seed))


def strangeness(images: Tensor, denoiser: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the mean of ``(x - D(x))^2 / noise^2`` of each image ``(N, c, h, w)``: ``(N,)``; D(x) has no derivative."""
    with torch.no_grad():
        cleaner = denoiser(images)
    return (images - cleaner).square().flatten(1).mean(1) / _NOISE**2


class LearnedImages(PixelPrior):
    """Pixels that a denoiser and total variation hold back, from images ``(N, c, h, w)`` on."""

    def __init__(self, start: Tensor, denoiser: Callable[[Tensor], Tensor]) -> None:
        super().__init__(start, 0.01)
        self._denoiser = denoiser

    def penalty(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the weighted strangeness and total variation of each image ``(n,)``."""
        return _STRANGE * strangeness(images, self._denoiser) + super().penalty(images, rows)
