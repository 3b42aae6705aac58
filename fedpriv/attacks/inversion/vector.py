"""Distances of images from the vectors that were uploaded, each by its own client's extractor.

Inversion of vectors: find an image whose representation is the one that was uploaded.

``||g(x') - r||^2 / ||r||^2`` is minimised over images x' under a prior, with the client's extractor g in hand (white
box) or a substitute of the attacker's own (shadow). A prototype or an entangled vector is fitted as if it were one
image's; that is what published evaluations do, and it understates what such an upload gives away.


Inversion under a generator that the user hands over: the code is searched for whose image has the uploaded vector.
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
from fedpriv.attacks.priors.dip import DeepImagePrior, Hourglass
from fedpriv.attacks.priors.generator import GeneratedImages, load_generator
from fedpriv.attacks.priors.pixels import PixelPrior, PixelSettings
from fedpriv.attacks.priors.spectral import SpectralPrior, SpectralSettings, drawn_points, frame_of, has_spectrum
from fedpriv.attacks.search.candidates import Row, Solved, fit_rows, solve_rows
from fedpriv.attacks.search.fit import Distance, Prior, Schedule
from fedpriv.attacks.search.halving import Rung, ladder
from fedpriv.attacks.search.objectives import DISTANCES, Match, squared_length
from fedpriv.util.errors import UserError
from fedpriv.util.last import Last
from fedpriv.wire.kinds import VECTORS, Kinds


def vector_distance(
    problem: AttackProblem, match: Match = "vector", kinds: Kinds = VECTORS
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the distance of the mean representation of a row's images from its target's uploaded vector.

    (images ``(n, M, c, h, w)``, places ``(n,)`` int64 of their targets, on the CPU) -> ``(n,)``. Each upload holds one
    payload of the kinds.

    Raises:
        UserError: when an extractor is missing, or a target is not there.
    """
    knowledge, targets = problem.knowledge, problem.targets
    require_extractors(knowledge, targets)
    wanted = torch.stack([target_feature(problem.observations, one, kinds).to(problem.device) for one in targets])
    owners, extracted = torch.tensor([target.client for target in targets]), OwnExtractors(knowledge)

    @Last
    def own(places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        aims = wanted[places.to(wanted.device)]
        return owners[places], aims, squared_length(aims)

    repeated: dict[int, Last[Tensor, Tensor]] = {}

    def distance(images: Tensor, places: Tensor) -> Tensor:
        number = images.shape[1]
        whose, aims, squares = own(places)
        if number > 1:
            each = repeated.setdefault(number, Last(lambda owners: owners.repeat_interleave(number)))
            features = extracted(images.flatten(0, 1), each(whose)).unflatten(0, (-1, number)).mean(1)
        else:
            features = extracted(images.flatten(0, 1), whose)
        return DISTANCES[match](features, aims, squares)

    return distance


ImageShape = tuple[int, int, int]

FITS = 3e-3
"""Relative feature distance at which an image counts as found: such a search did not stop for lack of steps.

An image 25 dB of PSNR from the one that a vector was computed from lies farther than this more often than not, and of
images 20 dB from it nine in ten do (``docs/attacks/dip.md``). So nearer than this is nearer than a success is likely to be.
"""


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
    """The same under deep image priors, until a row is near enough or stands still.

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

    def prior_of(self, generators: Sequence[torch.Generator], image_shape: ImageShape, device: torch.device) -> Prior:
        """Return generator networks, one an image."""
        return DeepImagePrior(generators, image_shape, self.generator, device)

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
    def prior_of(self, generators: Sequence[torch.Generator], image_shape: ImageShape, device: torch.device) -> Prior:
        """Return a prior over as many images as there are generators."""

    def prior_of_rows(self, problem: AttackProblem, rows: Sequence[Row]) -> Prior:
        """Return the prior over the images of rows."""
        generators = [row.generator(problem.seed) for row in rows]
        return self.prior_of(generators, problem.knowledge.image_shape, problem.device)

    @abstractmethod
    def bytes_per_image(self, image_shape: ImageShape) -> int:
        """Estimate the memory that a row takes."""

    @abstractmethod
    def distance(self, problem: AttackProblem) -> Distance:
        """Return (images ``(n, c, h, w)``, places of their targets ``(n,)``) -> ``(n,)`` distances to what was observed."""

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the distance of each target's image to what was observed of it."""
        apart, places = self.distance(problem), torch.arange(len(problem.targets))
        return lambda images: apart(images[:, 0], places)

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
        image_shape, apart = problem.knowledge.image_shape, self.distance(problem)
        schedule, starts = self.schedule_at(image_shape), self.starts

        def solve(rows: Sequence[Row], tick: Callable[[int], None]) -> Solved:
            prior = self.prior_of_rows(problem, rows)
            positions = torch.tensor([row.position for row in rows])
            places: Last[Tensor, Tensor] = Last(lambda which: positions[which])
            return fit_rows(
                rows,
                prior,
                lambda images, which: apart(images, places(which)),
                schedule,
                tick,
                restarts=starts,
                numerics=problem.numerics,
            )

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
        seen, device = problem.observations, problem.device
        return torch.stack([target_feature(seen, target).to(device) for target in problem.targets])

    def distance(self, problem: AttackProblem) -> Distance:
        """Return the distance of representations to the uploaded vectors."""
        apart = vector_distance(problem, self.match)
        return lambda images, places: apart(images.unsqueeze(1), places)


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


def bytes_of_generator(shape: Hourglass, image_shape: ImageShape) -> int:
    """Estimate the memory that one image's generator takes while it is fitted."""
    _, height, width = image_shape
    channels = shape.channels
    pairs = zip((*channels[1:], channels[-1]), channels, strict=True)
    # Weights with gradient and Adam's moments, and every map once forward and once backward.
    weights = 4 * sum((2 * before + after + 200) * 9 * after for before, after in pairs)
    maps = 2 * 12 * height * width * (shape.input_channels + channels[0])
    return 4 * (weights + maps)


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
    objectives ends, and the last one takes what is left (successive halving: :mod:`fedpriv.attacks.search.halving`).

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
    def _rungs(self) -> tuple[Rung, ...]:
        """Parts of the budget of a target."""
        return ladder(self.restarts, self.iterations, self.trial, _TRIED)

    @property
    def starts(self) -> int:
        """Rows of a target that begin."""
        return self._rungs[0].rows

    @property
    def schedule(self) -> Schedule:
        """Adam with a step size that falls to zero, until a row is near enough, stands still or others are ahead of it."""
        ends = list(accumulate(rung.iterations for rung in self._rungs))
        steps = ends[-1]
        rate = self.learning_rate * min(1.0, steps / _LONG)
        halvings = tuple(end / steps for end in ends[:-1])
        return replace(super().schedule, iterations=steps, anneal=True, learning_rate=rate, halvings=halvings)

    def schedule_at(self, image_shape: ImageShape) -> Schedule:
        """The same in smaller steps for the pixels of larger images, of each of which a representation says less."""
        plain = self.schedule
        if self.framed(image_shape):
            return plain
        _, height, width = image_shape
        return replace(plain, learning_rate=_OF_PIXELS * plain.learning_rate * min(1.0, _SMALL / (height * width)))

    def prior_of(self, generators: Sequence[torch.Generator], image_shape: ImageShape, device: torch.device) -> Prior:
        """Return pixels that total variation holds back."""
        return PixelPrior(generators, image_shape, self.pixels, device)

    def prior_of_rows(self, problem: AttackProblem, rows: Sequence[Row]) -> Prior:
        """Return coordinates around what is likely of each row's class, or pixels."""
        if not self.framed(problem.knowledge.image_shape):
            return super().prior_of_rows(problem, rows)
        labels = torch.tensor([[row.target.label] for row in rows], device=problem.device)
        frame = frame_of(problem.knowledge, problem.trained, labels)
        start = drawn_points([row.generator(problem.seed) for row in rows], frame, self.spectrum.start_noise)
        return SpectralPrior(start, frame, self.spectrum)

    def bytes_per_image(self, image_shape: ImageShape) -> int:
        """Estimate the memory of one image's way through an extractor and back."""
        channels, height, width = image_shape
        return 4 * 200 * max(channels, 16) * height * width


@dataclass(frozen=True, kw_only=True)
class GeneratorInversion(VectorInversion):
    """Inversion over the codes of a pretrained generator.

    Attributes:
        source: where the generator is: ``package.module:NAME`` of a ``torch.nn.Module`` or of a function that returns one,
            the name of an entry point under ``fedpriv.generators``, or the path of a TorchScript file. From codes ``(n, k)``
            to images in [0, 1].
        code: numbers k in a code, drawn from N(0, 1) to begin with.
        decay: share by which codes shrink in each step.
        learning_rate: Adam's first step size; it falls to zero along half a cosine.
    """

    iterations: Annotated[int, Ge(1)] = 300
    restarts: Annotated[int, Ge(1)] = 5
    learning_rate: Annotated[float, Gt(0)] = 0.1
    fits: Annotated[float, Ge(0)] = FITS
    source: str = ""
    code: Annotated[int, Ge(1)] = 128
    decay: Annotated[float, Ge(0), Lt(1)] = 1e-3

    name = "pretrained"
    summary = "an image of the uploaded vector, drawn by a pretrained generator that the user hands over"
    only_by_name = True

    @property
    def schedule(self) -> Schedule:
        """Adam with a step size that falls to zero, until a row is near enough or stands still."""
        return replace(super().schedule, anneal=True)

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Fit a code to each target.

        Raises:
            UserError: where there is no generator, or one of other images.
        """
        if not self.source:
            raise UserError(f"attack {self.name!r} needs source=FILE or source=PACKAGE.MODULE:NAME, and code=K")
        return super().run(problem)

    def prior_of(self, generators: Sequence[torch.Generator], image_shape: ImageShape, device: torch.device) -> Prior:
        """Return codes that the network makes images of."""
        network = load_generator(self.source, self.code, image_shape, device)
        return GeneratedImages(generators, network, self.code, self.decay, device)

    def bytes_per_image(self, image_shape: ImageShape) -> int:
        """Estimate the memory of one image's way through a generator and an extractor and back."""
        channels, height, width = image_shape
        return 4 * 1000 * max(channels, 16) * height * width
