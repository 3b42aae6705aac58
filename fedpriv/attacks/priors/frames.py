"""The coordinates in which the images of rows are searched: of a spectrum, around an image that is likely beforehand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.observation import Knowledge
from fedpriv.attacks.priors.learned import LEAST_IMAGES
from fedpriv.attacks.priors.spectrum import Spectrum, centres_of, general_spectrum, spectrum_of
from fedpriv.attacks.trained import Same, Trained

_GREY = 0.5


@dataclass(frozen=True)
class Frame:
    """N rows of M images, each around its own centre.

    Attributes:
        centres: ``(N, M, c, h, w)`` images in [0, 1].
        spectrum: in which points are.
    """

    centres: Tensor
    spectrum: Spectrum

    def drawn(self, points: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the images of points ``(N, M, c, h, w)``, of some rows where they are named, wherever their pixels lie."""
        centres = self.centres if rows is None else self.centres[rows]
        return centres + self.spectrum.images(points)

    def images(self, points: Tensor) -> Tensor:
        """Return images in [0, 1], whose derivative is that of images wherever their pixels lie: none gets stuck outside."""
        found = self.drawn(points)
        return found + (found.clamp(0, 1) - found).detach()

    def points(self, images: Tensor) -> Tensor:
        """Return the points of images."""
        return self.spectrum.points(images - self.centres)


def frame_of(knowledge: Knowledge, trained: Trained, labels: Tensor) -> Frame:
    """Return the frame of images with these labels ``(N, M)``, negative where none is known.

    Where the card grants images of the same data set, the spectrum and the centres are those of their classes. Else the
    spectrum is that of images in general, around grey.
    """
    device = labels.device
    own = knowledge.public_images if has_own_images(knowledge) else None
    if own is None:
        shape = knowledge.image_shape
        spectrum = trained.get(("spectrum", shape), lambda: general_spectrum(shape))
        return Frame(torch.full((*labels.shape, *shape), _GREY, device=device), spectrum.to(device))
    classes = knowledge.public_labels
    spectrum = trained.get(("spectrum", Same(own), Same(classes)), lambda: spectrum_of(own, classes))
    return Frame(centres_of(own, classes, labels.cpu()).to(device), spectrum.to(device))


def has_own_images(knowledge: Knowledge) -> bool:
    """True where the card grants images of the same data set, and enough of them to learn from."""
    own = knowledge.public_images if knowledge.card.attacker_data == "same_domain" else None
    return own is not None and len(own) >= LEAST_IMAGES
