"""Inversion under a generator that the user hands over: the code is searched for whose image has the uploaded vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.invert.inversion import FITS, ImageShape, VectorInversion
from fedpriv.attacks.observation import Reconstruction
from fedpriv.attacks.optim.fitting import Prior
from fedpriv.attacks.optim.schedule import Schedule
from fedpriv.attacks.priors.generated import GeneratedImages, load_generator
from fedpriv.util.errors import UserError


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
