"""Transformed inputs: train on images that a policy of augmentations has changed, so that these are what leaks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad
from torchvision.transforms.v2 import functional as ops

from fedpriv.federation.defense import Defense, GradientTransform, ProtectionPlan, Step, Work
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


@dataclass(frozen=True)
class Transform(Defense):
    """Train on augmented images: each image in each step by one of the policies, chosen at random.

    A policy is a row of augmentations, by their numbers in the table of the authors' code (0..49), one after the
    other; a hybrid one is several, of which every image gets one. The published hybrid is 3-1-7+43-18-18: shift to the
    side by 45 %, contrast by a third more or less, shift up or down by 10 %; or shift up or down by 15 %, contrast by 39
    % twice. Signs are drawn anew each time. Before the policy, images are padded by an eighth of their side with black,
    cropped at random and mirrored with probability 1/2, as the authors do (``crop``).

    Departs from the authors' code in computing on numbers in [0, 1] instead of bytes. Policies are taken as given; the
    search for them is not here. Nothing is guaranteed: the transformed image leaks as before. Attacks are scored
    against the image as the client holds it. Evaluation is on images as they are.

    Attributes:
        policy: for example ``3-1-7+43-18-18``.
        crop: whether to crop and mirror first.
    """

    policy: str = PUBLISHED
    crop: bool = True

    name: ClassVar[str] = "transform"
    source: ClassVar[str] = "Gao, Guo, Zhang, Qiu, Wen, Liu (ATS), CVPR 2021"
    unanswered: ClassVar[str] = "no attack of this package undoes the transformations"

    def __post_init__(self) -> None:
        read_policy(self.policy)

    def guard(self, plan: ProtectionPlan) -> GradientTransform:
        """Return the transform of every batch."""
        policies = read_policy(self.policy)
        return lambda step: transformed_step(step, policies, crop=self.crop)


def read_policy(text: str) -> tuple[tuple[int, ...], ...]:
    """Return the policies that a text like ``3-1-7+43-18-18`` names.

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


def transformed_step(step: Step, policies: tuple[tuple[int, ...], ...], *, crop: bool) -> Step:
    """Return the step on transformed images."""

    def transformed(work: Work, images: Tensor, labels: Tensor) -> Tensor:
        changed = [transform(image, policies, work.rng, crop=crop) for image in images]
        return step(work, torch.stack(changed) if changed else images, labels)

    return transformed


def transform(image: Tensor, policies: tuple[tuple[int, ...], ...], rng: torch.Generator, *, crop: bool) -> Tensor:
    """Return an image ``(c, h, w)`` in [0, 1], cropped and mirrored if asked, then changed by a policy that is drawn."""
    if crop:
        image = cropped(image, rng)
    for number in policies[_draw(len(policies), rng)]:
        what, magnitude = AUGMENTATIONS[number]
        image = _DONE_BY[what](image, magnitude / 9, _draw(2, rng) * 2 - 1)
    return image.clamp(0, 1)


def cropped(image: Tensor, rng: torch.Generator) -> Tensor:
    """Return an image ``(c, h, w)`` moved by up to an eighth of each side, black coming in, and mirrored or not."""
    height, width = image.shape[1:]
    down, across = math.ceil(height / _MARGIN), math.ceil(width / _MARGIN)
    top, left = _draw(2 * down + 1, rng), _draw(2 * across + 1, rng)
    moved = pad(image, (across, across, down, down))[:, top : top + height, left : left + width]
    return moved.flip(2) if _draw(2, rng) else moved


def _draw(number: int, rng: torch.Generator) -> int:
    return int(torch.randint(number, (1,), generator=rng))


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
