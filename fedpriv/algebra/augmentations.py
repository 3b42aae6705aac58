"""The augmentations of Automatic Transformation Search: policies, and what each does to an image.

Source: Gao, Guo, Zhang, Qiu, Wen, Liu (ATS), CVPR 2021, and the authors' table of fifty augmentations. What changes images
imports kornia and torchvision's transforms, which are seconds in loading.
"""

from __future__ import annotations

import math

from torch import Tensor

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

_MOVES = {"translate-x": 150 / 331, "translate-y": 150 / 331, "shear-y": 0.3, "rotate": 30.0}
"""Largest magnitudes: share of the side, slope, degrees."""
_ENHANCEMENTS = ("contrast", "brightness", "color", "sharpness")
_CHANGE = 0.5
"""Largest change of an enhancement's factor."""


def read_policy(text: str) -> tuple[tuple[int, ...], ...]:
    """Return the policies that the option ``policy`` of defense ``transform`` names.

    >>> read_policy("3-1-7+43-18-18")
    ((3, 1, 7), (43, 18, 18))
    """
    policies = []
    for part in text.split("+"):
        numbers = part.strip().split("-")
        if not all(number.isdecimal() and int(number) < len(AUGMENTATIONS) for number in numbers):
            raise UserError(
                f"options of defense transform: policy: expected numbers of augmentations, 0 to {len(AUGMENTATIONS) - 1}, "
                f"joined by - and, between policies, +, for example {PUBLISHED}; got {text!r}"
            )
        policies.append(tuple(map(int, numbers)))
    return tuple(policies)


def signed(number: int) -> bool:
    """True if an augmentation has a sign."""
    what = AUGMENTATIONS[number][0]
    return what in _ENHANCEMENTS or (what in _MOVES and what != "rotate")


def margins(height: int, width: int) -> tuple[int, int]:
    """Return by how many pixels images are moved up or down, and across, when they are cropped: an eighth of the side."""
    return math.ceil(height / 8), math.ceil(width / 8)


def augmented(image: Tensor, number: int, sign: int) -> Tensor:
    """Return an image ``(c, h, w)`` changed by one of the augmentations, 0..49, with a sign of 1 or -1."""
    from kornia import enhance
    from torchvision.transforms.v2 import functional as ops

    what, magnitude = AUGMENTATIONS[number]
    share = magnitude / 9
    if what in _MOVES:
        return _moved(image, what, (sign if signed(number) else 1) * share * _MOVES[what])
    changes = {
        "contrast": ops.adjust_contrast,
        "brightness": ops.adjust_brightness,
        "color": ops.adjust_saturation,
        "sharpness": enhance.sharpness,
        "equalize": ops.equalize,
        "autocontrast": ops.autocontrast,
        "invert": enhance.invert,
        "posterize": lambda image: ops.posterize(image, round(8 - 4 * share)),
        "solarize": lambda image: ops.solarize(image, 1 - share),
    }
    factors = (1 + sign * share * _CHANGE,) if what in _ENHANCEMENTS else ()
    changed: Tensor = changes[what](image, *factors)
    return changed


def _moved(image: Tensor, what: str, amount: float) -> Tensor:
    from torchvision.transforms.v2 import functional as ops

    height, width = image.shape[1:]
    shift = [
        round(amount * width) if what == "translate-x" else 0,
        round(amount * height) if what == "translate-y" else 0,
    ]
    shear = [0.0, math.degrees(math.atan(amount)) if what == "shear-y" else 0.0]
    turn, bilinear = amount if what == "rotate" else 0.0, ops.InterpolationMode.BILINEAR
    moved: Tensor = ops.affine(image, angle=turn, translate=shift, scale=1.0, shear=shear, interpolation=bilinear)
    return moved
