"""The augmentations of Automatic Transformation Search: what each does to an image, and what can be undone of it.

Source: Gao, Guo, Zhang, Qiu, Wen, Liu (ATS), CVPR 2021, and the authors' table of fifty augmentations.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as ops

from fedpriv.algebra.augmentation_policy import AUGMENTATIONS

SHIFT, SHEAR, TURN, ENHANCE = 150 / 331, 0.3, 30.0, 0.5
"""Largest magnitudes: share of the side, slope, degrees, and change of an enhancement's factor."""


def augmented(image: Tensor, number: int, sign: int) -> Tensor:
    """Return an image ``(c, h, w)`` changed by one of the augmentations, 0..49, with a sign of 1 or -1."""
    what, magnitude = AUGMENTATIONS[number]
    return _DONE_BY[what](image, magnitude / 9, sign)


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
