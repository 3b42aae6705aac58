"""Policies of Automatic Transformation Search: which augmentations follow each other, by their numbers.

What each does to an image is in ``fedpriv.algebra.augmentations``, which takes a library that is seconds in loading.

Source: Gao, Guo, Zhang, Qiu, Wen, Liu (ATS), CVPR 2021, and the authors' table of fifty augmentations.
"""

from __future__ import annotations

import math

from fedpriv.util.errors import UserError

AUGMENTATIONS: tuple[tuple[str, int], ...] = (
    *(("invert", 7), ("contrast", 6), ("rotate", 2), ("translate-x", 9), ("sharpness", 1)),
    *(("sharpness", 3), ("shear-y", 2), ("translate-y", 2), ("autocontrast", 5), ("equalize", 2)),
    *(("shear-y", 5), ("posterize", 5), ("color", 3), ("brightness", 5), ("sharpness", 9)),
    *(("brightness", 9), ("equalize", 5), ("equalize", 1), ("contrast", 7), ("sharpness", 5)),
    *(("color", 5), ("translate-x", 5), ("equalize", 7), ("autocontrast", 8), ("translate-y", 3)),
    *(("sharpness", 6), ("brightness", 6), ("color", 8), ("solarize", 0), ("invert", 0)),
    *(("equalize", 0), ("autocontrast", 0), ("equalize", 8), ("equalize", 4), ("color", 5)),
    *(("equalize", 5), ("autocontrast", 4), ("solarize", 4), ("brightness", 3), ("color", 0)),
    *(("solarize", 1), ("autocontrast", 0), ("translate-y", 3), ("translate-y", 3), ("autocontrast", 1)),
    *(("solarize", 1), ("equalize", 5), ("invert", 0), ("translate-y", 3), ("autocontrast", 1)),
)
"""The fifty augmentations of the authors' code in its order: what is done, and a magnitude of 0..9."""

PUBLISHED = "3-1-7+43-18-18"
"""The hybrid policy that the paper's search found on CIFAR-100."""

_MARGIN = 8
"""A side is padded by an eighth before it is cropped again: 4 pixels of 32, as the authors do."""


def read_policy(text: str, where: str) -> tuple[tuple[int, ...], ...]:
    """Return the policies that a text like ``3-1-7+43-18-18`` names.

    >>> read_policy("3-1-7+43-18-18", "policy")
    ((3, 1, 7), (43, 18, 18))
    """
    policies = []
    for part in text.split("+"):
        numbers = part.strip().split("-")
        if not all(number.isdecimal() and int(number) < len(AUGMENTATIONS) for number in numbers):
            raise UserError(
                f"{where}: policy: expected numbers of augmentations, 0 to {len(AUGMENTATIONS) - 1}, "
                f"joined by - and, between policies, +, for example {PUBLISHED}; got {text!r}"
            )
        policies.append(tuple(map(int, numbers)))
    return tuple(policies)


def signed(number: int) -> bool:
    """True if an augmentation has a sign."""
    return AUGMENTATIONS[number][0] in _SIGNED


def margins(height: int, width: int) -> tuple[int, int]:
    """Return by how many pixels images are moved up or down, and across, when they are cropped at random."""
    return math.ceil(height / _MARGIN), math.ceil(width / _MARGIN)


_SIGNED = ("translate-x", "translate-y", "shear-y", "contrast", "brightness", "color", "sharpness")
