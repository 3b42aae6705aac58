"""Data sets of image files: folders of classes, TinyImageNet, and the one place where an image from outside is opened."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from fedpriv.datasets import SourceOptions
from fedpriv.datasets.types import Dataset, Samples, first_per_class
from fedpriv.util.compute import require
from fedpriv.util.errors import UserError
from fedpriv.util.foreign import IMAGE, LISTING, entries, open_file, read_text, reason

FORMATS: Final = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Decoders that may run: no file under another name reaches one that starts programs, as that for PostScript does."""
SUFFIXES: Final = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
MOST_PIXELS: Final = 64_000_000
"""Pixels of one image: a photograph of 8000x8000, which takes 0.9 GB while it is read and its colours are converted."""

LAYOUT = "train/ and test/ (or val/) with one folder per class, or one folder per class"
BESIDE = ("test", "val", "valid", "validation")
"""Names of the parts beside ``train/``; where there are several, all of them are taken."""

TINY_FOLDER = "tiny-imagenet-200"
TINY_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"

logging.getLogger("PIL").addHandler(logging.NullHandler())
"""Or Pillow's words about a file that it cannot read would be printed beside the error."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """Open an image file, of an animation the first picture."""
    with open_file(path, IMAGE) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd metadata
        try:
            with Image.open(file, formats=FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise Image.DecompressionBombError(f"{image.width}x{image.height} pixels")
                if image.mode.startswith(("I", "F")):
                    raise UserError(
                        f"{path} has pixels of more than 8 bits (mode {image.mode}): convert it to 8 bits per channel"
                    )
                yield image
        except UserError:
            raise
        except Image.DecompressionBombError as error:
            raise UserError(
                f"cannot read image {path}: too many pixels; an image may have {MOST_PIXELS:,}, make it smaller"
            ) from error
        except UnidentifiedImageError as error:  # which names the open file, not the path
            raise UserError(f"cannot read image {path}: it is none of {', '.join(FORMATS)}") from error
        except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, MemoryError, ...
            raise UserError(f"cannot read image {path}: {reason(error)}") from error


LabelledFile = tuple[Path, int]  # an image file and its class


def _images_in(folder: Path) -> list[Path]:
    """Return the image files directly in a folder in order of their names."""
    results = [path for path in entries(folder) if path.suffix.lower() in SUFFIXES and not os.path.isdir(path)]
    if not results:
        raise UserError(f"no images in {folder}: expected files such as .png or .jpg")
    return results


def _subfolders(folder: Path) -> list[Path]:
    return [path for path in entries(folder) if os.path.isdir(path)]


def _read_dataset(
    name: str, files: Sequence[LabelledFile], class_names: Sequence[str], options: SourceOptions, channels: int | None
) -> Dataset:
    """Decode files, training part first; ``channels`` None means grey if every file is grey, else colour."""
    kept = [files[i] for i in first_per_class(np.array([label for _, label in files]), options.per_class)]
    wanted = channels or (1 if all(_is_grey(path) for path, _ in kept) else 3)
    first, _ = _pixels(kept[0][0], wanted, options.image_size)
    (_, height, width), each = first.shape, first.numel()
    require(
        len(kept) * each,
        f"{len(kept):,} images of {width}x{height} pixels",
        lambda free: f"{free // each:,} such images fit: take fewer with per_class, or smaller ones with image_size",
    )
    images, changed = torch.empty((len(kept), *first.shape), dtype=torch.uint8), 0
    for position, (path, _) in enumerate(kept):
        pixels, converted = _pixels(path, wanted, options.image_size)
        if pixels.shape != first.shape:
            raise UserError(
                f"{path} is {pixels.shape[2]}x{pixels.shape[1]} pixels but {kept[0][0]} is {width}x{height}; "
                f"image_size brings all to one size"
            )
        images[position] = pixels
        changed += converted
    labels = torch.tensor([label for _, label in kept], dtype=torch.int64)
    shape = f"{width}x{height} {'grey' if wanted == 1 else 'colour'}"
    brought = f"{changed:,} of {len(kept):,} images scaled, cropped or converted to {shape}" if changed else ""
    return Dataset(name, Samples(images, labels), tuple(class_names), brought)


def _pixels(path: Path, channels: int, size: int | None) -> tuple[Tensor, bool]:
    """Return one image as ``(channels, height, width)`` bytes, and True if it is stored otherwise."""
    mode = "L" if channels == 1 else "RGB"
    with opened(path) as image:
        resized = size is not None and image.size != (size, size)
        changed = image.mode != mode or "transparency" in image.info or resized
        picture = image.convert(mode)
        if size is not None:
            picture = ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)
        array = np.array(picture, dtype=np.uint8)
    return torch.from_numpy(array.reshape(*array.shape[:2], channels)).permute(2, 0, 1), changed


def _is_grey(path: Path) -> bool:
    with opened(path) as image:
        return image.mode in ("1", "L", "LA")


def load_folder(options: SourceOptions) -> Dataset:
    """Load images from ``data_dir``: ``train/`` and ``test/`` with one folder per class, or class folders alone.

    ``val/``, ``valid/`` and ``validation/`` are taken as ``test/`` is. Classes and images are in order of their names.
    Images are grey if all files are, else colour.
    """
    root = options.folder("folder", LAYOUT)
    if not os.path.isdir(root):
        text = f"image folder not found: looked for {root}; it cannot be downloaded: give data_dir"
        raise UserError(text, keys=("data_dir",))
    results = {path.name: path for path in _subfolders(root)}
    if not results:
        raise UserError(f"no folders in {root}: expected {LAYOUT}")
    beside = [name for name in BESIDE if name in results]
    alone = "test" in results or set(results) <= set(BESIDE)  # "valid" may be a class
    if not beside if "train" in results else alone:
        there, missing = ("train", "test") if "train" in results else (beside[0], "train")
        raise UserError(f"{root} has {there}/ but no {missing}/; to use only {there}/ give data_dir {root / there}")
    parts = [results[name] for name in ("train", *beside)] if "train" in results else [root]
    class_names = [path.name for path in _subfolders(parts[0])]
    if not class_names:
        raise UserError(f"no class folders in {parts[0]}: expected {LAYOUT}")
    files = []
    for position in parts:
        for folder in _subfolders(position):
            if folder.name not in class_names:
                raise UserError(f"{folder} is a class that {position.parent / 'train'} does not have")
            label = class_names.index(folder.name)
            files += [(path, label) for path in _images_in(folder)]
    return _read_dataset("folder", files, class_names, options, channels=None)


def load_tiny_imagenet(options: SourceOptions) -> Dataset:
    """Load TinyImageNet (Le and Yang, 2015): colour images of 64x64 pixels, up to 200 classes.

    Reads ``wnids.txt`` (class order), ``words.txt`` (class names), ``train/<wnid>/images/`` and the validation part
    through ``val/val_annotations.txt``: its images lie in one folder, so a reader that takes folders for classes would
    give all of them the first label. Classes of ``wnids.txt`` without a training folder are left out.
    """
    root = options.folder("tiny-imagenet", f"{TINY_FOLDER}/ (download cannot fetch it; {TINY_URL})")
    root = root if os.path.isfile(root / "wnids.txt") else root / TINY_FOLDER
    if not os.path.isfile(root / "wnids.txt"):
        text = f"looked for {root / 'wnids.txt'}; download cannot fetch it: unpack {TINY_URL} there"
        raise UserError(f"tiny-imagenet not found: {text}", keys=("data_dir",))
    wnids = _present_classes(root)
    files = []
    for number, wnid in enumerate(wnids):
        folder = root / "train" / wnid / "images"
        if not folder.is_dir():
            raise UserError(f"no images/ in {folder.parent}: expected train/<wnid>/images/*.JPEG")
        files += [(path, number) for path in _images_in(folder)]
    files += _validation_files(root / "val", wnids)
    words = dict(line.split("\t", 1) for line in _lines(root / "words.txt") if "\t" in line)
    first = [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    uses = Counter(first)
    names = [name if uses[name] == 1 else f"{name} ({wnid})" for name, wnid in zip(first, wnids, strict=True)]
    return _read_dataset("tiny-imagenet", files, names, options, channels=3)


def _lines(path: Path) -> list[str]:
    return read_text(path, LISTING, f"tiny-imagenet is incomplete or damaged: {path}").splitlines()


def _present_classes(root: Path) -> list[str]:
    """Return the classes of ``wnids.txt`` that have a training folder, in that file's order."""
    listed = [line.strip() for line in _lines(root / "wnids.txt") if line.strip()]
    if not (root / "train").is_dir():
        raise UserError(f"tiny-imagenet is incomplete: {root / 'train'} is not there")
    folders = {path.name for path in _subfolders(root / "train")}
    if unknown := sorted(folders - set(listed)):
        raise UserError(f"{root / 'train' / unknown[0]} is a class that {root / 'wnids.txt'} does not list")
    present = [wnid for wnid in dict.fromkeys(listed) if wnid in folders]
    if not present:
        raise UserError(f"no class folders in {root / 'train'}: expected train/<wnid>/images/*.JPEG")
    return present


def _validation_files(folder: Path, wnids: Sequence[str]) -> list[LabelledFile]:
    """Return the annotated validation files in order of their names."""
    annotations, results = folder / "val_annotations.txt", {}
    for number, line in enumerate(_lines(annotations), start=1):
        if not line.strip():
            continue
        where = f"{annotations} line {number}"
        name, _, rest = line.partition("\t")
        name, wnid = name.strip(), rest.split("\t")[0].strip()
        if not wnid:
            raise UserError(f"{where}: expected a file name, a tab and a class id, not {line[:60]!r}")
        if wnid not in wnids:
            raise UserError(f"{where}: image {name} is of class {wnid}, which has no folder in train/")
        if name in results:
            raise UserError(f"{where}: image {name} is annotated twice")
        path = folder / "images" / name
        if name != os.path.basename(name) or not os.path.isfile(path):
            raise UserError(f"{where}: image {path} is not there")
        results[name] = path, wnids.index(wnid)
    return [results[name] for name in sorted(results)]
