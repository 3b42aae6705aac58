"""Inversion of vectors: find an image whose representation is the one that was uploaded.

``||g(x') - r||^2 / ||r||^2`` is minimised over images x' under a prior, with the client's extractor g in hand (white
box) or a substitute of the attacker's own (shadow). A prototype or an entangled vector is fitted as if it were one
image's; that is what published evaluations do, and it understates what such an upload gives away.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.inputs.extractors import OwnExtractors, require_extractors
from fedpriv.attacks.inputs.targets import target_feature
from fedpriv.attacks.observation import Needs, Reconstruction
from fedpriv.attacks.priors.dip import DeepImagePrior, Hourglass, bytes_of_generator
from fedpriv.attacks.priors.pixels import PixelPrior, PixelSettings
from fedpriv.attacks.priors.spectral import SpectralPrior, SpectralSettings, drawn_points, frame_of, has_spectrum
from fedpriv.attacks.search.candidates import Row, Solved, TargetDistance, by_target, fit_rows, ladder, solve_rows
from fedpriv.attacks.search.fit import Prior, Schedule
from fedpriv.attacks.search.objectives import DISTANCES, Match, squared_length
from fedpriv.util.seeds import Last
from fedpriv.wire.kinds import VECTORS, Kinds

ImageShape = tuple[int, int, int]

FITS = 3e-3
"""Relative feature distance at which an image counts as found: such a search did not stop for lack of steps.

An image 25 dB of PSNR from the one that a vector was computed from lies farther than this more often than not, and of
images 20 dB from it nine in ten do (``docs/attacks/dip.md``). So nearer than this is nearer than a success is likely to be.
"""


def uploaded_vectors(problem: AttackProblem, kinds: Kinds = VECTORS) -> Tensor:
    """Return the uploaded vector of each target ``(T, d)``, on the device.

    Raises:
        UserError: when a target is not there.
    """
    seen = problem.observations
    return torch.stack([target_feature(seen, target, kinds).to(problem.device) for target in problem.targets])


def vector_distance(problem: AttackProblem, match: Match = "vector", kinds: Kinds = VECTORS) -> TargetDistance:
    """Return the distance of the mean representation of a row's images from its target's uploaded vector.

    Each upload holds one payload of the kinds.

    Raises:
        UserError: when an extractor is missing, or a target is not there.
    """
    knowledge, targets = problem.knowledge, problem.targets
    require_extractors(knowledge, targets)
    vectors = uploaded_vectors(problem, kinds)
    clients, extracted = torch.tensor([target.client for target in targets]), OwnExtractors(knowledge)

    @Last
    def goals(places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        goal = vectors[places.to(vectors.device)]
        return clients[places], goal, squared_length(goal)

    repeated: dict[int, Last[Tensor, Tensor]] = {}

    def distance(images: Tensor, places: Tensor) -> Tensor:
        number = images.shape[1]
        owners, goal, squares = goals(places)
        if number > 1:
            owners = repeated.setdefault(number, Last(lambda whose: whose.repeat_interleave(number)))(owners)
        features = extracted(images.flatten(0, 1), owners)
        if number > 1:
            features = features.unflatten(0, (-1, number)).mean(1)
        return DISTANCES[match](features, goal, squares)

    return distance


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """Hyperparameters of fitting images by Adam.

    Attributes:
        iterations: most steps of a row.
        restarts: rows a target; the one with the lowest objective is kept.
        learning_rate: Adam's step size.
        tolerance: objective below which a row is finished, and converged.
        patience: steps without 1 % gain after which a row is finished.
        fits: distance to what was observed, penalties aside, at which a row counts as converged; it goes on all the same.
    """

    iterations: Annotated[int, Ge(1)] = 800
    restarts: Annotated[int, Ge(1)] = 1
    learning_rate: Annotated[float, Gt(0)] = 5e-3
    tolerance: Annotated[float, Ge(0)] = 5e-4
    patience: Annotated[int, Ge(1)] = 300
    fits: Annotated[float, Ge(0)] = 0.0

    @property
    def schedule(self) -> Schedule:
        """The optimisation of a row: Adam until the row is near enough or stands still."""
        return Schedule(
            self.iterations, self.learning_rate, tolerance=self.tolerance, patience=self.patience, fits=self.fits
        )


@dataclass(frozen=True, kw_only=True)
class DipFitting(Fitting):
    """The same under deep image priors.

    Attributes:
        average: decay of the running mean of the images.
        generator: shape of each generator network; see :mod:`fedpriv.attacks.priors.dip`.
    """

    average: Annotated[float, Ge(0), Lt(1)] = 0.99
    generator: Hourglass = Hourglass()

    @property
    def schedule(self) -> Schedule:
        """Adam with a running mean of the images."""
        return replace(super().schedule, average=self.average)

    def prior(self, problem: AttackProblem, rows: Sequence[Row]) -> Prior:
        """Return generator networks, one a row."""
        draws = [row.generator(problem.seed) for row in rows]
        return DeepImagePrior(draws, problem.knowledge.image_shape, self.generator, problem.device)

    def bytes_per_image(self, image_shape: ImageShape) -> int:
        """Estimate the memory of one generator network while it is fitted."""
        return bytes_of_generator(self.generator, image_shape)


@dataclass(frozen=True, kw_only=True)
class FittedInversion(Fitting, Attack):
    """Fit one image a row; a subclass says under which prior, and to what."""

    unit = "upload"
    budget = "iterations"
    needs = Needs(extractor=("white_box", "shadow"))

    @abstractmethod
    def prior(self, problem: AttackProblem, rows: Sequence[Row]) -> Prior:
        """Return the prior over the images of rows."""

    @abstractmethod
    def bytes_per_image(self, image_shape: ImageShape) -> int:
        """Estimate the memory that a row takes."""

    @abstractmethod
    def distance(self, problem: AttackProblem) -> TargetDistance:
        """Return the distance of images ``(n, 1, c, h, w)`` to what was observed of their targets."""

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the distance of each target's image to what was observed of it."""
        distance, places = self.distance(problem), torch.arange(len(problem.targets))
        return lambda images: distance(images[:, :1], places)

    def schedule_at(self, image_shape: ImageShape) -> Schedule:
        """Return the optimisation of a row of images of this shape."""
        return self.schedule

    @property
    def starts(self) -> int:
        """Rows of a target that begin."""
        return self.restarts

    def vectors(self, problem: AttackProblem) -> Tensor | None:
        """Return the vectors ``(T, d)`` that images are fitted to, where these were observed."""
        return None

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Fit an image to what was observed of each target."""
        image_shape, distance = problem.knowledge.image_shape, self.distance(problem)
        schedule, starts = self.schedule_at(image_shape), self.starts

        def solve(rows: Sequence[Row], tick: Callable[[int], None]) -> Solved:
            prior, apart = self.prior(problem, rows), by_target(rows, distance)
            return fit_rows(rows, prior, apart, schedule, tick, restarts=starts, numerics=problem.numerics)

        return solve_rows(
            problem,
            solve,
            restarts=starts,
            iterations=schedule.iterations,
            bytes_per_row=self.bytes_per_image(image_shape),
            features=self.vectors(problem),
            together=bool(schedule.halvings),
        )


@dataclass(frozen=True, kw_only=True)
class VectorInversion(FittedInversion):
    """Inversion of one vector an image: everything but the prior and the schedule.

    Attributes:
        match: what of the vector is believed: ``vector``, ``direction``, ``nonzero`` or ``pruned``; see
            :data:`fedpriv.attacks.search.objectives.Match`.
    """

    match: Match = "vector"

    targets = VECTORS
    most_targets = 6

    def vectors(self, problem: AttackProblem) -> Tensor:
        """Return the uploaded vectors."""
        return uploaded_vectors(problem)

    def distance(self, problem: AttackProblem) -> TargetDistance:
        """Return the distance of representations to the uploaded vectors."""
        return vector_distance(problem, self.match)


@dataclass(frozen=True, kw_only=True)
class DipInversion(DipFitting, VectorInversion):
    """Inversion under a deep image prior (Ulyanov et al. 2018, their feature inversion, resized to small images)."""

    iterations: Annotated[int, Ge(1)] = 400
    learning_rate: Annotated[float, Gt(0)] = 2e-2
    tolerance: Annotated[float, Ge(0)] = 2e-4
    fits: Annotated[float, Ge(0)] = FITS

    name = "dip"
    summary = "an image of the uploaded representation, drawn by an untrained network"
    version = 3


_LONG, _SMALL = 300, 32 * 32
"""Steps of a search over pixels from which on, and pixels up to which, it takes its full first step."""

_OF_PIXELS = 2 / 3
"""Step size over pixels, as a share of that in coordinates of a spectrum."""

_TRIED = 60
"""Steps of a start, while its step size is large, in which something can be seen of where it leads."""


@dataclass(frozen=True, kw_only=True)
class PixelInversion(VectorInversion):
    """Inversion over the image itself (Mahendran and Vedaldi 2015), without a network that draws it.

    The paper searches pixels under total variation. Here coordinates are those of images' spectrum, around the class mean
    of the attacker's own images where the card grants some of the same data set, else around grey
    (:mod:`fedpriv.attacks.priors.spectral`).

    All starts of a target begin on one course of Adam; with a share of the budget each, the half of them with the higher
    objectives ends, and the last one takes what is left (successive halving: :mod:`fedpriv.attacks.search.candidates`).

    Attributes:
        iterations: evaluations of the objective a target, of all its starts together.
        restarts: starts a target; fewer where the budget is too small to tell so many apart.
        trial: share of the iterations in which it is found out which start goes on.
        patience: steps without 1 % gain after which a start ends. Before its step size falls, a search may stand still.
        learning_rate: Adam's first step size in a search of 300 steps or more, in proportion less in a shorter one, which
            would end in the noise of steps too large for it, over pixels two thirds, and in proportion less for images of
            more than 32 x 32 of them; it falls to zero along half a cosine.
        tolerance: relative feature distance plus penalties below which a row is finished, and converged.
        coordinates: ``spectrum`` or ``pixels``, as in the paper; ``auto`` takes pixels where ``pixels`` is given, and for
            images of fewer than 16 x 16 of them, which have no spectrum to speak of.
        spectrum: what holds coordinates of a spectrum back.
        pixels: what holds pixels back.
    """

    iterations: Annotated[int, Ge(1)] = 3000
    restarts: Annotated[int, Ge(1)] = 4
    trial: Annotated[float, Ge(0), Lt(1)] = 0.2
    learning_rate: Annotated[float, Gt(0)] = 0.3
    patience: Annotated[int, Ge(1)] = 3000
    fits: Annotated[float, Ge(0)] = FITS
    coordinates: Literal["auto", "spectrum", "pixels"] = "auto"
    spectrum: SpectralSettings = SpectralSettings()
    pixels: PixelSettings = PixelSettings()

    name = "pixels"
    summary = "an image of the uploaded representation, searched itself under a simple prior"
    version = 6

    def framed(self, image_shape: ImageShape) -> bool:
        """True where coordinates of images of this shape are those of a spectrum."""
        if self.coordinates != "auto":
            return self.coordinates == "spectrum"
        return self.pixels == PixelSettings() and has_spectrum(image_shape)

    @property
    def starts(self) -> int:
        """Rows of a target that begin."""
        return ladder(self.restarts, self.iterations, self.trial, _TRIED)[0].rows

    @property
    def schedule(self) -> Schedule:
        """Adam with a step size that falls to zero, until a row is near enough, stands still or others are ahead of it."""
        rungs = ladder(self.restarts, self.iterations, self.trial, _TRIED)
        *ends, steps = accumulate(rung.iterations for rung in rungs)
        rate = self.learning_rate * min(1.0, steps / _LONG)
        halvings = tuple(end / steps for end in ends)
        return replace(super().schedule, iterations=steps, anneal=True, learning_rate=rate, halvings=halvings)

    def schedule_at(self, image_shape: ImageShape) -> Schedule:
        """The same in smaller steps for the pixels of larger images, of each of which a representation says less."""
        plain = self.schedule
        if self.framed(image_shape):
            return plain
        _, height, width = image_shape
        return replace(plain, learning_rate=_OF_PIXELS * plain.learning_rate * min(1.0, _SMALL / (height * width)))

    def prior(self, problem: AttackProblem, rows: Sequence[Row]) -> Prior:
        """Return coordinates around what is likely of each row's class, or pixels that total variation holds back."""
        draws, image_shape = [row.generator(problem.seed) for row in rows], problem.knowledge.image_shape
        if not self.framed(image_shape):
            noise = torch.stack([torch.randn(image_shape, generator=draw) for draw in draws])
            start = (0.5 + self.pixels.start_noise * noise).clamp(0, 1).to(problem.device)
            return PixelPrior(start, self.pixels.total_variation)
        labels = torch.tensor([[row.target.label] for row in rows], device=problem.device)
        frame = frame_of(problem.knowledge, problem.trained, labels)
        return SpectralPrior(drawn_points(draws, frame, self.spectrum.start_noise), frame, self.spectrum)

    def bytes_per_image(self, image_shape: ImageShape) -> int:
        """Estimate the memory of one image's way through an extractor and back."""
        channels, height, width = image_shape
        return 4 * 200 * max(channels, 16) * height * width
