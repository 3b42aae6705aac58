"""The augmentations of Automatic Transformation Search: what each does to an image, and what can be undone of it.

Source: Gao, Guo, Zhang, Qiu, Wen, Liu (ATS), CVPR 2021, and the authors' table of fifty augmentations.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as ops

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

SHIFT, SHEAR, TURN, ENHANCE = 150 / 331, 0.3, 30.0, 0.5
"""Largest magnitudes: share of the side, slope, degrees, and change of an enhancement's factor."""

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


def augmented(image: Tensor, number: int, sign: int) -> Tensor:
    """Return an image ``(c, h, w)`` changed by one of the augmentations, 0..49, with a sign of 1 or -1."""
    what, magnitude = AUGMENTATIONS[number]
    return _DONE_BY[what](image, magnitude / 9, sign)


def signed(number: int) -> bool:
    """True if an augmentation has a sign."""
    return AUGMENTATIONS[number][0] in _SIGNED


def undone(image: Tensor, number: int, sign: int) -> tuple[Tensor, Tensor, float]:
    """Return an image ``(c, h, w)`` as it was before an augmentation, the pixels ``(h, w)`` known, and a contradiction.

    Shifts, shears, turns, contrast, brightness and inversion are undone but for what was cut off; the others are left as
    they are. The contradiction is the sum of squares of pixels that the augmentation would have left black.
    """
    what, magnitude = AUGMENTATIONS[number]
    share = magnitude / 9
    known = torch.ones_like(image[:1])
    if what in _MOVED_BACK:
        back = _MOVED_BACK[what]
        forth = _DONE_BY[what](known, share, sign)
        left = float(((1 - forth) * image).square().sum())
        return back(image, share, sign), back(known, share, sign)[0] > 0.5, left
    if what == "invert":
        image = ops.invert(image)
    elif what == "brightness":
        image = image / (1 + sign * share * ENHANCE)
    elif what == "contrast":
        factor = 1 + sign * share * ENHANCE
        grey = ops.rgb_to_grayscale(image) if len(image) == 3 else image
        image = (image - (1 - factor) * grey.mean()) / factor
    return image, known[0] > 0, 0.0


def margins(height: int, width: int) -> tuple[int, int]:
    """Return by how many pixels images are moved up or down, and across, when they are cropped at random."""
    return math.ceil(height / _MARGIN), math.ceil(width / _MARGIN)


def _affine(image: Tensor, *, across: float = 0.0, down: float = 0.0, turn: float = 0.0, slope: float = 0.0) -> Tensor:
    height, width = image.shape[1:]
    bilinear = ops.InterpolationMode.BILINEAR
    shear = [0.0, math.degrees(math.atan(slope))]
    shift = [round(across * width), round(down * height)]
    moved: Tensor = ops.affine(image, angle=turn, translate=shift, scale=1.0, shear=shear, interpolation=bilinear)
    return moved


_DONE_BY: dict[str, Callable[[Tensor, float, int], Tensor]] = {
    "translate-x": lambda image, share, sign: _affine(image, across=sign * share * SHIFT),
    "translate-y": lambda image, share, sign: _affine(image, down=sign * share * SHIFT),
    "shear-y": lambda image, share, sign: _affine(image, slope=sign * share * SHEAR),
    "rotate": lambda image, share, sign: _affine(image, turn=share * TURN),
    "contrast": lambda image, share, sign: ops.adjust_contrast(image, 1 + sign * share * ENHANCE),
    "brightness": lambda image, share, sign: ops.adjust_brightness(image, 1 + sign * share * ENHANCE),
    "color": lambda image, share, sign: ops.adjust_saturation(image, 1 + sign * share * ENHANCE),
    "sharpness": lambda image, share, sign: ops.adjust_sharpness(image, 1 + sign * share * ENHANCE),
    "posterize": lambda image, share, sign: ops.posterize(image, round(8 - 4 * share)),
    "solarize": lambda image, share, sign: ops.solarize(image, 1 - share),
    "equalize": lambda image, share, sign: ops.equalize(image),
    "autocontrast": lambda image, share, sign: ops.autocontrast(image),
    "invert": lambda image, share, sign: ops.invert(image),
}
"""The effect of an augmentation on an image ``(c, h, w)``, with a magnitude in [0, 1] and a sign."""

_MOVED_BACK: dict[str, Callable[[Tensor, float, int], Tensor]] = {
    "translate-x": lambda image, share, sign: _affine(image, across=-sign * share * SHIFT),
    "translate-y": lambda image, share, sign: _affine(image, down=-sign * share * SHIFT),
    "shear-y": lambda image, share, sign: _affine(image, slope=-sign * share * SHEAR),
    "rotate": lambda image, share, sign: _affine(image, turn=-share * TURN),
}

_SIGNED = ("translate-x", "translate-y", "shear-y", "contrast", "brightness", "color", "sharpness")
