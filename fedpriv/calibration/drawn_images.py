"""Folders of small drawn images: a data set whose private images can be exchanged for others of the same classes."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from fedpriv.util.seeds import generator

SIDE = 12
"""Of the images, in pixels: the least that the networks here make something of."""

CLASSES, EACH = 4, 100
"""Classes, and images of each."""

_COARSE = 3
"""Images are drawn at so many times fewer pixels a side, and smoothed."""


def write_images(folder: Path, images: int, patterns: int) -> Path:
    """Write a data set of grey images as a folder with one folder a class, and return it.

    An image is grey 0.5, the pattern of its class and what is its own, each of standard deviation 0.18. Numbers and order
    of labels are always the same, so that whatever depends on labels and a seed, such as who holds which image, is the same
    for any two of these folders.

    Args:
        folder: to make.
        images: seed of what is an image's own.
        patterns: seed of what images of a class have in common.
    """
    common = _smooth(CLASSES, patterns, "patterns")
    for label in range(CLASSES):
        place = folder / f"class{label}"
        place.mkdir(parents=True)
        drawn = 0.5 + 0.13 * (common[label] + _smooth(EACH, images, "images", label))
        for number, image in enumerate((drawn.clamp(0, 1) * 255).round().to(torch.uint8)):
            Image.fromarray(image.numpy()).save(place / f"{number:03}.png")
    return folder


def _smooth(number: int, *seed: int | str) -> Tensor:
    """Draw ``(number, SIDE, SIDE)`` smooth images of mean 0 and standard deviation near 1.4."""
    coarse = torch.randn(number, 1, SIDE // _COARSE, SIDE // _COARSE, generator=generator(*seed))
    finer = torch.nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    return 1.4 * finer.squeeze(1)
