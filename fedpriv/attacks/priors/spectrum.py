"""Images as a Gaussian draws them: cosines over the plane, each in units of its own standard deviation.

Images differ most in slow changes and little in quick ones (Field, "Relations between the statistics of natural images and
the response properties of cortical cells", J. Opt. Soc. Am. A 1987: the power of a frequency falls about as its square).
In coordinates that are all of unit variance a search by first derivatives is scaled as images are, so that it finds coarse
shapes first and needs few steps; and the squared length of a point is, up to a factor, how unlikely its image is to a
Gaussian of this spectrum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

PIXEL = 0.25
"""Standard deviation of a pixel of images in general, of a range of one."""

_POWER, _COLOUR = 2.25, 0.06
"""Of images in general: the power with which the variance falls with the frequency, and the share of a colour difference's
variance in that of brightness."""

_LEAST = 1e-6
"""Variance of a coordinate at least, in pixel values squared times the number of pixels over that of coordinates."""

_LEAST_SIDE = 16
"""Pixels of a side from which images have a spectrum to speak of."""

_OPPONENT = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (1.0, -2.0, 1.0))
"""Brightness, red against blue, green against both."""


@dataclass(frozen=True)
class Spectrum:
    """Standard deviations of an image's coordinates, and the coordinates.

    Attributes:
        deviations: ``(c, h, w)`` of each coordinate: channel, vertical and horizontal frequency.
        colours: ``(c, c)`` orthonormal, a row for each channel of coordinates.
        down: ``(h, h)`` orthonormal cosines, a row for each vertical frequency.
        across: ``(w, w)`` the same of horizontal ones.
    """

    deviations: Tensor
    colours: Tensor
    down: Tensor
    across: Tensor

    def images(self, points: Tensor) -> Tensor:
        """Return the offsets ``(..., c, h, w)``, in pixel values, of points of that shape from the image in the middle."""
        planes = self.down.T @ (points * self.deviations) @ self.across
        return (self.colours.T @ planes.flatten(-2)).view(points.shape)

    def points(self, offsets: Tensor) -> Tensor:
        """Return the points whose images are these ``(..., c, h, w)`` offsets from the image in the middle."""
        planes = (self.colours @ offsets.flatten(-2)).view(offsets.shape)
        return self.down @ planes @ self.across.T / self.deviations

    def to(self, device: torch.device) -> Spectrum:
        """Return the same on a device."""
        parts = self.deviations, self.colours, self.down, self.across
        return Spectrum(*(part.to(device) for part in parts))


def has_spectrum(image_shape: tuple[int, int, int]) -> bool:
    """True where images ``(c, h, w)`` are large enough to have a spectrum to speak of."""
    return min(image_shape[1:]) >= _LEAST_SIDE


def general_spectrum(image_shape: tuple[int, int, int]) -> Spectrum:
    """Return the spectrum of images of which nothing is known, ``(c, h, w)``, with pixel values in [0, 1]."""
    channels, height, width = image_shape
    vertical, horizontal = torch.arange(height).view(-1, 1) / height, torch.arange(width) / width
    frequency = (vertical.square() + horizontal.square()).sqrt() + 1 / max(height, width)
    variance = frequency.pow(-_POWER).expand(channels, -1, -1).clone()
    colours = torch.eye(channels)
    if channels == len(_OPPONENT):
        colours = torch.nn.functional.normalize(torch.tensor(_OPPONENT), dim=1)
        variance[1:] *= _COLOUR
    variance *= PIXEL**2 * math.prod(image_shape) / variance.sum()
    return Spectrum(variance.sqrt(), colours, cosines(height), cosines(width))


def spectrum_of(images: Tensor, labels: Tensor | None) -> Spectrum:
    """Return the spectrum of images ``(n, c, h, w)`` around their class means, or their mean where no labels are given."""
    height, width = images.shape[2:]
    offsets = images - centres_of(images, labels, torch.zeros(len(images)) if labels is None else labels)
    planes = offsets.transpose(0, 1).flatten(1).double()
    colours = torch.linalg.eigh(planes @ planes.T).eigenvectors.flip(1).T.to(images)
    down, across = cosines(height).to(images), cosines(width).to(images)
    coordinates = down @ (colours @ offsets.flatten(2)).view(offsets.shape) @ across.T
    return Spectrum((coordinates.square().mean(0) + _LEAST).sqrt(), colours, down, across)


def centres_of(images: Tensor, labels: Tensor | None, wanted: Tensor) -> Tensor:
    """Return for classes ``(...)`` the mean image of each ``(..., c, h, w)``, that of all for those of which there is none.

    Args:
        images: ``(n, c, h, w)``, with n at least 1.
        labels: ``(n,)`` their classes; None where they are not known.
        wanted: classes; negative for one that is not known.
    """
    found = images.mean(0).expand(*wanted.shape, *images.shape[1:]).clone()
    for label in () if labels is None else labels.unique().tolist():
        found[wanted == label] = images[labels == label].mean(0)
    return found


def cosines(size: int) -> Tensor:
    """Return the orthonormal cosines ``(size, size)`` (DCT-II), a row for each frequency, the constant first."""
    frequency, place = torch.arange(size, dtype=torch.float64).view(-1, 1), torch.arange(size, dtype=torch.float64)
    found = torch.cos(math.pi * (place + 0.5) * frequency / size) * math.sqrt(2 / size)
    found[0] /= math.sqrt(2)
    return found.float()
