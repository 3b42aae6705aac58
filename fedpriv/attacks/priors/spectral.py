"""Spectral prior: images in coordinates of a spectrum, held near what is likely beforehand, ever less so.

Images differ most in slow changes and little in quick ones (Field, "Relations between the statistics of natural images and
the response properties of cortical cells", J. Opt. Soc. Am. A 1987: the power of a frequency falls about as its square).
Coordinates are cosines over the plane, each in units of its own standard deviation, so all are of unit variance: a search by
first derivatives is scaled as images are, finds coarse shapes first and needs few steps. The mean square of the coordinates
is, up to a factor, how unlikely the image is to a Gaussian of this spectrum. Pixels under total variation alone: Mahendran
and Vedaldi, "Understanding deep image representations by inverting them" (CVPR 2015).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.contract import Same, Trained
from fedpriv.attacks.observation import Knowledge
from fedpriv.attacks.search.fit import Prior
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import Last

LEAST_IMAGES = 16
"""Images of its own below which an attacker has nothing to train on."""

PIXEL = 0.25
"""Standard deviation of a pixel of images in general, of a range of one."""

_POWER = 2.25  # with which the variance of images in general falls with the frequency
_COLOUR = 0.06  # share of a colour difference's variance in that of brightness
_LEAST = 1e-6  # variance of a coordinate at least, in pixel values squared
_LEAST_SIDE = 16  # pixels of a side from which images have a spectrum to speak of
_UNLIKELY, _SMOOTH = 0.05, 0.03  # first weights of coordinates' mean square and of total variation in a search
_VARIATION = 0.02  # weight of total variation in a search over pixels
DECAY = 0.2  # what weights of penalties are multiplied by after 3/8, 5/8 and 7/8 of the iterations
_START = 0.02  # standard deviation of coordinates to start from
_OPPONENT = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (1.0, -2.0, 1.0))  # brightness, red against blue, green against both


@dataclass(frozen=True)
class Spectrum:
    """Standard deviations ``(c, h, w)`` of an image's coordinates (channel, vertical and horizontal frequency), and these.

    ``colours`` ``(c, c)``, ``down`` ``(h, h)`` and ``across`` ``(w, w)`` are orthonormal, a row for each coordinate.
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
    """Return for wanted classes ``(...)`` the mean image of each ``(..., c, h, w)``, that of all for unknown ones."""
    centres = images.mean(0).expand(*wanted.shape, *images.shape[1:]).clone()
    for label in () if labels is None else labels.unique().tolist():
        centres[wanted == label] = images[labels == label].mean(0)
    return centres


def cosines(size: int) -> Tensor:
    """Return the orthonormal cosines ``(size, size)`` (DCT-II), a row for each frequency, the constant first."""
    frequency, position = torch.arange(size, dtype=torch.float64).view(-1, 1), torch.arange(size, dtype=torch.float64)
    rows = torch.cos(math.pi * (position + 0.5) * frequency / size) * math.sqrt(2 / size)
    rows[0] /= math.sqrt(2)
    return rows.float()


@dataclass(frozen=True)
class Frame:
    """N rows of M images, each around its own centre ``(N, M, c, h, w)``, in coordinates of a spectrum."""

    centres: Tensor
    spectrum: Spectrum

    def drawn(self, points: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the images of points ``(N, M, c, h, w)``, of some rows where they are named, wherever their pixels lie."""
        centres = self.centres if rows is None else self.centres[rows]
        return centres + self.spectrum.images(points)

    def images(self, points: Tensor) -> Tensor:
        """Return images in [0, 1], whose derivative is that of images wherever their pixels lie: none gets stuck outside."""
        drawn = self.drawn(points)
        return drawn + (drawn.clamp(0, 1) - drawn).detach()

    def points(self, images: Tensor) -> Tensor:
        return self.spectrum.points(images - self.centres)


def frame_of(knowledge: Knowledge, trained: Trained, labels: Tensor) -> Frame:
    """Return the frame of images with these labels ``(N, M)``, negative where none is known.

    Where the card grants images of the same data set, the spectrum and the centres are those of their classes. Else the
    spectrum is that of images in general, around grey.
    """
    device, images = labels.device, knowledge.public_images
    spectrum = spectrum_for(knowledge, trained).to(device)
    if images is None or not has_own_images(knowledge):
        return Frame(torch.full((*labels.shape, *knowledge.image_shape), 0.5, device=device), spectrum)
    return Frame(centres_of(images, knowledge.public_labels, labels.cpu()).to(device), spectrum)


def spectrum_for(knowledge: Knowledge, trained: Trained) -> Spectrum:
    """Return the spectrum of images of the same data set, where the card grants enough, else of images in general."""
    current, classes, shape = knowledge.public_images, knowledge.public_labels, knowledge.image_shape
    if current is None or not has_own_images(knowledge):
        return trained.get(("spectrum", shape), lambda: general_spectrum(shape))
    return trained.get(("spectrum", Same(current), Same(classes)), lambda: spectrum_of(current, classes))


def has_own_images(knowledge: Knowledge) -> bool:
    """True where the card grants images of the same data set, and enough of them to learn from."""
    current = knowledge.public_images if knowledge.card.attacker_data == "same_domain" else None
    return current is not None and len(current) >= LEAST_IMAGES


def drops(progress: float) -> int:
    """Return the number of times that penalties have lost weight: after 3/8, 5/8 and 7/8 of the iterations."""
    return sum(progress >= share for share in (3 / 8, 5 / 8, 7 / 8))


def drawn_points(generators: Sequence[torch.Generator], frame: Frame) -> Tensor:
    """Return coordinates ``(N, c, h, w)`` to start from, of normal noise that one CPU generator a row draws."""
    shape = frame.centres.shape[2:]
    noise = torch.stack([torch.randn(shape, generator=generator) for generator in generators])
    return (_START * noise).to(frame.centres.device)


class SpectralPrior(Prior):
    """The coordinates ``(N, c, h, w)`` of N rows of one image in a frame; images are clamped as they are shown."""

    def __init__(self, start: Tensor, frame: Frame) -> None:
        self._frame = frame
        self._centres: Last[Tensor, Tensor] = Last(lambda rows: frame.centres[rows.to(frame.centres.device), 0])
        self.parameters = [start.clone().requires_grad_()]
        self._share = 1.0

    def prepare(self, progress: float) -> Hashable:
        passed = drops(progress)
        self._share = DECAY**passed
        return passed

    def clean(self) -> Tensor:
        return self._frame.images(self.parameters[0].unsqueeze(1))[:, 0]

    def penalty(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the weighted total variation of each image and how unlikely it is, ``(n,)``."""
        points = self._frame.spectrum.points(images - self._centres(rows))
        unlikely = points.square().flatten(1).mean(1)
        return self._share * (_SMOOTH * total_variation(images)) + self._share * _UNLIKELY * unlikely

    def keep(self, rows: Tensor) -> None:
        centres = self._frame.centres
        self._frame = Frame(centres[rows.to(centres.device)], self._frame.spectrum)


def images_to_train_on(attack: str, knowledge: Knowledge) -> Tensor:
    """Return the attacker's own images; refuse too few to train on."""
    images = knowledge.public_images
    if images is None or len(images) < LEAST_IMAGES:
        raise UserError(
            f"attack {attack!r} got {0 if images is None else len(images)} images to train on; expected at least "
            f"{LEAST_IMAGES} (train the run with auxiliary=0.5, or name a larger foreign data set)"
        )
    return images


def total_variation(images: Tensor) -> Tensor:
    """Return the mean over positions of ``sqrt((right - here)^2 + (below - here)^2)`` of each image ``(N, c, h, w)``.

    Differences over the last row and column count as zero; channels are summed. (kornia's is another one: the sum of
    absolute differences, without a root over both directions.)
    """
    across, down = images.diff(dim=-1).square(), images.diff(dim=-2).square()
    values = functional.pad(across, (0, 1)) + functional.pad(down, (0, 0, 0, 1))
    # The derivative of a root is infinite at zero; flat places are common.
    lengths: Tensor = (values + 1e-8).sqrt() - 1e-8**0.5
    return lengths.sum(1).mean((1, 2))


class PixelPrior(Prior):
    """The pixels of N rows, from images ``(N, c, h, w)`` on, under total variation."""

    def __init__(self, start: Tensor) -> None:
        self.parameters = [start.clone().requires_grad_()]

    def clean(self) -> Tensor:
        return self.parameters[0]

    def penalty(self, images: Tensor, rows: Tensor) -> Tensor:
        return _VARIATION * total_variation(images)

    @torch.no_grad()
    def project(self) -> None:
        self.parameters[0].clamp_(0, 1)
