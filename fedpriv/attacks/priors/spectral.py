"""Spectral prior: images in coordinates of a spectrum, held near what is likely beforehand, ever less so.

Steps of Adam are alike in all coordinates of unit variance, so that coarse shapes are found before fine ones; the mean
square of the coordinates is how unlikely an image is to a Gaussian (:mod:`fedpriv.attacks.priors.spectrum`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from fedpriv.attacks.priors.frames import Frame
from fedpriv.attacks.priors.variation import total_variation
from fedpriv.util.last import Last

_DROPS = (3 / 8, 5 / 8, 7 / 8)
"""Shares of the iterations after which penalties lose weight."""


@dataclass(frozen=True)
class SpectralSettings:
    """Penalties of a search in coordinates of a spectrum.

    Attributes:
        unlikely: first weight of the mean square of an image's coordinates.
        total_variation: first weight of :func:`fedpriv.attacks.priors.variation.total_variation` beside it.
        decay: what both are multiplied by after 3/8, 5/8 and 7/8 of the iterations.
        start_noise: standard deviation of the coordinates to start from.
    """

    unlikely: Annotated[float, Ge(0)] = 0.05
    total_variation: Annotated[float, Ge(0)] = 0.03
    decay: Annotated[float, Ge(0), Le(1)] = 0.2
    start_noise: Annotated[float, Ge(0)] = 0.02


def drawn_points(generators: Sequence[torch.Generator], frame: Frame, deviation: float) -> Tensor:
    """Return coordinates ``(N, c, h, w)`` to start from, of normal noise that one CPU generator a row draws."""
    shape = frame.centres.shape[2:]
    noise = torch.stack([torch.randn(shape, generator=generator) for generator in generators])
    return (deviation * noise).to(frame.centres.device)


class SpectralPrior:
    """The coordinates of N rows: a prior for :func:`fedpriv.attacks.optim.fitting.fit`.

    Args:
        start: ``(N, c, h, w)`` coordinates to begin with.
        frame: of N rows of one image.
        settings: what holds images back.
    """

    def __init__(self, start: Tensor, frame: Frame, settings: SpectralSettings) -> None:
        self._whole, self._frame, self._settings = frame, frame, settings
        self._centres: Last[Tensor, Tensor] = Last(lambda rows: frame.centres[rows.to(frame.centres.device), 0])
        self.parameters = [start.clone().requires_grad_()]
        self._share = 1.0

    def prepare(self, progress: float) -> Hashable:
        """Return the number of times that penalties have lost weight."""
        passed = sum(progress >= share for share in _DROPS)
        self._share = self._settings.decay**passed
        return passed

    def shown(self, moving: Tensor) -> Tensor:
        """Return the images ``(N, c, h, w)``; there is no noise."""
        return self.clean()

    def clean(self) -> Tensor:
        """Return the images ``(N, c, h, w)``, in [0, 1]."""
        return self._frame.images(self.parameters[0].unsqueeze(1))[:, 0]

    def penalty(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the weighted total variation of each image and how unlikely it is, ``(n,)``."""
        points = self._whole.spectrum.points(images - self._centres(rows))
        unlikely = points.square().flatten(1).mean(1)
        smooth = total_variation(images, 1.0, self._share * self._settings.total_variation)
        return smooth + self._share * self._settings.unlikely * unlikely

    def project(self) -> None:
        """Leave coordinates where they are: images are clamped as they are shown."""

    def compile(self) -> None:
        """Leave everything as it is: there is no network."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, ``rows`` being int64 positions on the CPU."""
        there = rows.to(self.parameters[0].device)
        self._frame = self._frame.of(rows)
        self.parameters = [self.parameters[0].detach()[there].requires_grad_()]
