"""From a list of image files to tensors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from fedpriv.datasets.shaping import first_per_class
from fedpriv.datasets.sources.brought import GREY_MODES, Brought
from fedpriv.datasets.sources.foreign_image import SUFFIXES, opened
from fedpriv.datasets.sources.options import SourceOptions
from fedpriv.datasets.types import Dataset, Samples
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.foreign import entries
from fedpriv.util.memory import require


@dataclass(frozen=True)
class LabelledFile:
    """One image file, the class it belongs to, and whether it is of the source's training part."""

    path: Path
    label: int
    official_train: bool


def images_in(folder: Path) -> list[Path]:
    """Return the image files directly in a folder in order of their names."""
    found = [path for path in entries(folder) if path.suffix.lower() in SUFFIXES and not os.path.isdir(path)]
    if not found:
        raise UserError(f"no images in {folder}: expected files such as .png or .jpg")
    return found


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder in order of their names, hidden ones left out."""
    return [path for path in entries(folder) if os.path.isdir(path)]


def read_dataset(
    name: str, files: Sequence[LabelledFile], class_names: Sequence[str], options: SourceOptions, channels: int | None
) -> Dataset:
    """Decode files into a data set, training part first.

    Args:
        name: registry name of the data set.
        files: what to decode; the training part must come before the rest.
        class_names: one name per label.
        options: ``per_class`` is applied before decoding, so that images that are not kept cost nothing.
        channels: number of channels where the options name none; None means grey if every file is grey, else colour.
    """
    labels = np.array([file.label for file in files], dtype=np.int64)
    kept = [files[int(position)] for position in first_per_class(labels, options.per_class)]
    wanted = options.channels or channels or (1 if all(_is_grey(file.path) for file in kept) else 3)
    brought = Brought()
    images = _decode([file.path for file in kept], wanted, options.image_size, brought)
    kept_labels = torch.tensor([file.label for file in kept], dtype=torch.int64)
    n_train = sum(file.official_train for file in kept)
    done = brought.words(wanted, options.image_size)
    return Dataset(name, Samples(images, kept_labels), tuple(class_names), n_train, done)


def _decode(paths: Sequence[Path], channels: int, size: int | None, brought: Brought) -> Tensor:
    """Return ``(n, channels, height, width)`` bytes; every image must have the size of the first."""
    first = _pixels(paths[0], channels, size, brought)
    _, height, width = first.shape
    require(
        len(paths) * first.numel(),
        f"{len(paths):,} images of {width}x{height} pixels",
        lambda free: (
            f"{free // first.numel():,} such images fit: take fewer with {argument('per_class')}, "
            f"or smaller ones with {argument('image_size')}"
        ),
    )
    images = torch.empty((len(paths), *first.shape), dtype=torch.uint8)
    for position, path in enumerate(paths):
        pixels = first if position == 0 else _pixels(path, channels, size, brought)
        if pixels.shape != first.shape:
            here, there = (f"{shape[2]}x{shape[1]}" for shape in (pixels.shape, first.shape))
            raise UserError(
                f"{path} is {here} pixels but {paths[0]} is {there}; {argument('image_size')} brings all to one size"
            )
        images[position] = pixels
    return images


def _pixels(path: Path, channels: int, size: int | None, brought: Brought) -> Tensor:
    """Return one image as ``(channels, height, width)`` bytes, and count what is done to it."""
    with opened(path) as image:
        brought.note(image, channels, size)
        picture = image.convert("L" if channels == 1 else "RGB")
        if size is not None:
            picture = ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)
        array = np.array(picture, dtype=np.uint8)
    return torch.from_numpy(array.reshape(*array.shape[:2], channels)).permute(2, 0, 1)


def _is_grey(path: Path) -> bool:
    """True if a file's header says that it has no colour."""
    with opened(path) as image:
        return image.mode in GREY_MODES
