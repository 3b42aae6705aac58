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

    def of(self, rows: Tensor) -> Frame:
        """Return that of some rows (int64 positions on the CPU)."""
        return Frame(self.centres[rows.to(self.centres.device)], self.spectrum)


def frame_of(knowledge: Knowledge, trained: Trained, labels: Tensor) -> Frame:
    """Return the frame of images with these labels ``(N, M)``, negative where none is known.

    Where the card grants images of the same data set, the spectrum and the centres are those of their classes. Else the
    spectrum is that of images in general, around grey.
    """
    device, spectrum = labels.device, spectrum_for(knowledge, trained).to(labels.device)
    own = knowledge.public_images if has_own_images(knowledge) else None
    if own is None:
        return Frame(torch.full((*labels.shape, *knowledge.image_shape), _GREY, device=device), spectrum)
    return Frame(centres_of(own, knowledge.public_labels, labels.cpu()).to(device), spectrum)


def spectrum_for(knowledge: Knowledge, trained: Trained) -> Spectrum:
    """Return the spectrum of what an attacker knows, computed once for a run.

    It is that of images of the same data set around their class means, where the card grants enough, else of images in
    general.
    """
    own, classes, shape = knowledge.public_images, knowledge.public_labels, knowledge.image_shape
    if own is None or not has_own_images(knowledge):
        return trained.get(("spectrum", shape), lambda: general_spectrum(shape))
    return trained.get(("spectrum", Same(own), Same(classes)), lambda: spectrum_of(own, classes))


def has_own_images(knowledge: Knowledge) -> bool:
    """True where the card grants images of the same data set, and enough of them to learn from."""
    own = knowledge.public_images if knowledge.card.attacker_data == "same_domain" else None
    return own is not None and len(own) >= LEAST_IMAGES
