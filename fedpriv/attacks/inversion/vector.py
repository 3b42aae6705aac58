"""Inversion of vectors and class outputs: find images whose representation, or output, is the one that was uploaded.

``||g(x') - r||^2 / ||r||^2`` is minimised over images x' under a prior, with the client's extractor g (white box) or a
substitute (shadow). A prototype or an entangled vector is fitted as if it were one image's, as in published evaluations.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor
from torch.nn.functional import linear, one_hot

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.inputs.outputs import DISTANCES, Match, output_distance, uploaded_output
from fedpriv.attacks.inputs.targets import OwnExtractors, require_extractors, target_feature
from fedpriv.attacks.observation import Needs, Reconstruction, TargetId
from fedpriv.attacks.priors.dip import DeepImagePrior, Hourglass, bytes_of_generator
from fedpriv.attacks.priors.spectral import PixelPrior, SpectralPrior, drawn_points, frame_of, has_spectrum
from fedpriv.attacks.search.candidates import Row, Solved, TargetDistance, Tick, fit_rows, ladder, solve_rows
from fedpriv.attacks.search.fit import Prior, Schedule
from fedpriv.models import ImageShape
from fedpriv.uploads.kinds import CLASS_OUTPUTS, VECTORS
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import Last

FITS = 3e-3
"""Relative feature distance at which an image counts as found: images 20 dB from the true one lie farther, nine in ten."""


def uploaded_vectors(problem: AttackProblem) -> Tensor:
    """Return the uploaded vector of each target ``(T, d)``, on the device."""
    return torch.stack([target_feature(problem.observations, target).to(problem.device) for target in problem.targets])


def vector_distance(problem: AttackProblem, match: Match = "vector") -> TargetDistance:
    """Return the distance of the representation of a row's image from its target's uploaded vector."""
    require_extractors(problem.knowledge, problem.targets)
    vectors, extracted = uploaded_vectors(problem), OwnExtractors(problem.knowledge)
    clients = torch.tensor([target.client for target in problem.targets])

    @Last
    def goals(places: Tensor) -> tuple[Tensor, Tensor]:
        return clients[places], vectors[places.to(vectors.device)]

    def distance(images: Tensor, places: Tensor) -> Tensor:
        owners, goal = goals(places)
        return DISTANCES[match](extracted(images.flatten(0, 1), owners), goal)

    return distance


@dataclass(frozen=True, kw_only=True)
class FittedInversion(Attack):
    """Fit one image a row by Adam; a subclass says under which prior, and to what.

    Attributes:
        iterations: most steps of a row.
        restarts: rows a target; the one with the lowest objective is kept.
        learning_rate: Adam's step size.
        tolerance: objective below which a row is finished, and converged.
        patience: steps without 1 % gain after which a row is finished.
        fits: distance to what was observed, penalties aside, at which a row counts as converged; no option.
    """

    iterations: Annotated[int, Ge(1)] = 800
    restarts: Annotated[int, Ge(1)] = 1
    learning_rate: Annotated[float, Gt(0)] = 5e-3
    tolerance: Annotated[float, Ge(0)] = 5e-4
    patience: Annotated[int, Ge(1)] = 300
    fits: ClassVar[float] = 0.0

    unit = "upload"
    budget = "iterations"
    needs = Needs(extractor=("white_box", "shadow"))

    @property
    def schedule(self) -> Schedule:
        """The optimisation of a row: Adam until the row is near enough or stands still."""
        rate, stop = self.learning_rate, self.tolerance
        return Schedule(self.iterations, rate, tolerance=stop, patience=self.patience, fits=self.fits)

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
        distance, places = self.distance(problem), torch.arange(len(problem.targets))
        return lambda images: distance(images[:, :1], places)

    def plan(self, image_shape: ImageShape) -> tuple[Schedule, int]:
        """Return the optimisation of a row of images of this shape, and the rows of a target that begin."""
        return self.schedule, self.restarts

    def run(self, problem: AttackProblem) -> Reconstruction:
        shape, distance = problem.knowledge.image_shape, self.distance(problem)
        (schedule, starts), size = self.plan(shape), self.bytes_per_image(shape)

        def solve(rows: Sequence[Row], tick: Tick) -> Solved:
            positions = torch.tensor([row.position for row in rows])
            places: Last[Tensor, Tensor] = Last(lambda which: positions[which])

            def apart(pictures: Tensor, which: Tensor) -> Tensor:
                return distance(pictures[:, None], places(which))

            return fit_rows(rows, self.prior(problem, rows), apart, schedule, tick, restarts=starts)

        steps, whole = schedule.iterations, bool(schedule.halvings)
        return solve_rows(problem, solve, restarts=starts, iterations=steps, bytes_per_row=size, together=whole)


@dataclass(frozen=True, kw_only=True)
class DipFitting(FittedInversion):
    """The same under deep image priors.

    Attributes:
        average: decay of the running mean of the images.
        generator: shape of each generator network; see :mod:`fedpriv.attacks.priors.dip`.
    """

    average: Annotated[float, Ge(0), Lt(1)] = 0.99
    generator: Hourglass = Hourglass()

    @property
    def schedule(self) -> Schedule:
        return replace(super().schedule, average=self.average)

    def prior(self, problem: AttackProblem, rows: Sequence[Row]) -> Prior:
        draws = [row.generator(problem.seed) for row in rows]
        return DeepImagePrior(draws, problem.knowledge.image_shape, self.generator, problem.device)

    def bytes_per_image(self, image_shape: ImageShape) -> int:
        return bytes_of_generator(self.generator, image_shape)


@dataclass(frozen=True, kw_only=True)
class VectorInversion(FittedInversion):
    """Inversion of one vector an image: everything but the prior and the schedule.

    Attributes:
        match: what of the vector is believed: ``vector``, ``direction``, ``nonzero`` or ``pruned``; see
            :data:`fedpriv.attacks.inputs.outputs.Match`.
    """

    match: Match = "vector"

    targets = VECTORS
    most_targets = 6

    def run(self, problem: AttackProblem) -> Reconstruction:
        return replace(super().run(problem), features=uploaded_vectors(problem))

    def distance(self, problem: AttackProblem) -> TargetDistance:
        return vector_distance(problem, self.match)


@dataclass(frozen=True, kw_only=True)
class DipInversion(DipFitting, VectorInversion):
    """Inversion under a deep image prior (Ulyanov et al. 2018, their feature inversion, resized to small images)."""

    iterations: Annotated[int, Ge(1)] = 300
    learning_rate: Annotated[float, Gt(0)] = 3e-2
    tolerance: Annotated[float, Ge(0)] = 2e-4
    fits = FITS
    generator: Hourglass = Hourglass(channels=(8, 16, 32), input_channels=16)

    name = "dip"
    summary = "an image with the uploaded representation, drawn by an untrained network"
    version = 4
    most_targets = 24


_LONG, _SMALL, _OF_PIXELS = 300, 32 * 32, 2 / 3
"""Steps of a search over pixels from which on, and pixels up to which, it takes its full first step; the step size over
pixels, as a share of that in coordinates of a spectrum."""

_TRIED, _NOISE = 60, 0.1
"""Steps in which something can be seen of where a start leads; standard deviation of its pixels around mid-grey."""


@dataclass(frozen=True, kw_only=True)
class PixelInversion(VectorInversion):
    """Inversion over the image itself (Mahendran and Vedaldi 2015), without a network that draws it.

    The paper searches pixels under total variation. Here coordinates are those of images' spectrum, around the class mean of
    auxiliary images, else grey (:mod:`fedpriv.attacks.priors.spectral`); starts compete by successive halving.

    Attributes:
        iterations: evaluations of the objective a target, of all its starts together.
        restarts: starts a target; fewer where the iterations are too few to choose among so many.
        patience: steps without 1 % gain after which a start ends.
        learning_rate: Adam's first step size in a search of 300 steps or more of up to 32 x 32 pixels, in proportion less
            in a shorter one or for larger images; it falls to zero along half a cosine.
        tolerance: relative feature distance plus penalties below which a candidate is finished, and converged.
        coordinates: ``spectrum``, or ``pixels`` as in the paper; ``auto`` takes pixels for images of fewer than 16 x 16.
    """

    iterations: Annotated[int, Ge(1)] = 3000
    restarts: Annotated[int, Ge(1)] = 4
    learning_rate: Annotated[float, Gt(0)] = 0.3
    patience: Annotated[int, Ge(1)] = 3000
    fits = FITS
    coordinates: Literal["auto", "spectrum", "pixels"] = "auto"

    name = "pixels"
    summary = "an image with the uploaded representation, searched under a simple prior"
    version = 6

    def framed(self, image_shape: ImageShape) -> bool:
        """True where coordinates of images of this shape are those of a spectrum."""
        return has_spectrum(image_shape) if self.coordinates == "auto" else self.coordinates == "spectrum"

    def plan(self, image_shape: ImageShape) -> tuple[Schedule, int]:
        """Return Adam with a step size that falls to zero, and the rows of a target of which fewer and fewer go on."""
        rungs = ladder(self.restarts, self.iterations, _TRIED)
        *ends, steps = accumulate(rung.iterations for rung in rungs)
        rate = self.learning_rate * min(1.0, steps / _LONG)
        if not self.framed(image_shape):
            rate = _OF_PIXELS * rate * min(1.0, _SMALL / (image_shape[1] * image_shape[2]))
        halvings = tuple(end / steps for end in ends)
        schedule = replace(self.schedule, iterations=steps, anneal=True, learning_rate=rate, halvings=halvings)
        return schedule, rungs[0].rows

    def prior(self, problem: AttackProblem, rows: Sequence[Row]) -> Prior:
        """Return coordinates around what is likely of each row's class, or pixels that total variation holds back."""
        draws, image_shape = [row.generator(problem.seed) for row in rows], problem.knowledge.image_shape
        if not self.framed(image_shape):
            noise = torch.stack([torch.randn(image_shape, generator=draw) for draw in draws])
            return PixelPrior((0.5 + _NOISE * noise).clamp(0, 1).to(problem.device))
        labels = torch.tensor([[row.target.label] for row in rows], device=problem.device)
        frame = frame_of(problem.knowledge, problem.trained, labels)
        return SpectralPrior(drawn_points(draws, frame), frame)

    def bytes_per_image(self, image_shape: ImageShape) -> int:
        """Estimate the memory of one image's way through an extractor and back."""
        channels, height, width = image_shape
        return 4 * 200 * max(channels, 16) * height * width


@dataclass(frozen=True, kw_only=True)
class ClassInversion(DipFitting):
    """Find an image that the client's own model answers as an uploaded class output says, under a deep image prior.

    No single image can come out of the mean output u_c of a class; what the model takes the class to look like can. Its
    answer f(g(x)) is compared by KL(u_c || softmax f(g(x))) where outputs are softmax vectors, else by relative squared
    distance. This is the attack of Fredrikson, Jha and Ristenpart ("Model inversion attacks that exploit confidence
    information", CCS 2015) under a prior.

    Attributes:
        match: ``outputs`` matches the uploaded numbers; ``class``, which class ids alone allow, certainty of the class.
    """

    iterations: Annotated[int, Ge(1)] = 300
    tolerance: Annotated[float, Ge(0)] = 1e-3
    patience: Annotated[int, Ge(1)] = 150
    match: Literal["outputs", "class"] = "outputs"

    name = "class-inversion"
    version = 3
    summary = "an image to which the client's model gives the outputs uploaded for a class"
    targets = CLASS_OUTPUTS

    def distance(self, problem: AttackProblem) -> TargetDistance:
        device, targets = problem.device, problem.targets
        outputs = [self._output(problem, target) for target in targets]
        values = torch.stack([output for output, _ in outputs]).to(device)
        softmax = torch.tensor([of_softmax for _, of_softmax in outputs], device=device)
        clients, answers = torch.tensor([target.client for target in targets]), whole_models(problem)

        @Last
        def goals(places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            there = places.to(device)
            return clients[places], values[there], softmax[there]

        def distance(images: Tensor, places: Tensor) -> Tensor:
            owners, goal, of_softmax = goals(places)
            logits = answers(images[:, 0], owners)
            as_softmax = output_distance(logits, goal, softmax=True)
            return torch.where(of_softmax, as_softmax, output_distance(logits, goal, softmax=False))

        return distance

    def _output(self, problem: AttackProblem, target: TargetId) -> tuple[Tensor, bool]:
        n_classes = problem.knowledge.n_classes
        if self.match == "outputs":
            return uploaded_output(problem.observations, target)
        if not 0 <= target.label < n_classes:
            raise UserError(f"attack {self.name!r} with match=class: no class is named for target {target.index}")
        return one_hot(torch.tensor(target.label), n_classes).float(), True


def whole_models(problem: AttackProblem) -> OwnExtractors:
    """Return clients' extractors with their heads behind: images to logits, or refuse where one is missing."""
    knowledge = problem.knowledge
    require_extractors(knowledge, problem.targets)
    for client in sorted(set(problem.clients) - set(knowledge.heads)):
        raise UserError(f"no head of client {client} was handed over; attack 'class-inversion' needs the whole model")

    def model(client: int) -> Callable[[Tensor], Tensor]:
        weight, bias = (value.to(problem.device) for value in knowledge.heads[client])
        return lambda images: linear(knowledge.extractors[client](images), weight, bias)

    return OwnExtractors(replace(knowledge, extractors={client: model(client) for client in problem.clients}))
