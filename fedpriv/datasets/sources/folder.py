"""Any folder of images with one folder per class."""

from __future__ import annotations

import os
from pathlib import Path

from fedpriv.datasets.sources.image_files import LabelledFile, images_in, read_dataset, subfolders
from fedpriv.datasets.sources.options import SourceOptions
from fedpriv.datasets.types import Dataset
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError

LAYOUT = "train/ and test/ (or val/) with one folder per class, or one folder per class"
BESIDE = ("test", "val", "valid", "validation")
"""Names of the parts beside ``train/``; where there are several, all of them are taken."""


def load_folder(options: SourceOptions) -> Dataset:
    """Load images from ``data_dir``: ``train/`` and ``test/`` with one folder per class, or class folders alone.

    ``val/``, ``valid/`` and ``validation/`` are taken as ``test/`` is.

    Classes are the folder names in sorted order, images are in the order of their file names. With class folders alone
    every image counts as training part. Images are grey if all files are, else colour.
    """
    root = options.folder("folder", LAYOUT)
    if not os.path.isdir(root):
        raise UserError(
            f"image folder not found: looked for {root}; it cannot be downloaded: give {argument('data_dir')}",
            keys=("data_dir",),
        )
    found = {path.name: path for path in subfolders(root)}
    if not found:
        raise UserError(f"no folders in {root}: expected {LAYOUT}")
    beside = [name for name in BESIDE if name in found]
    alone = "test" in found or set(found) <= set(BESIDE)  # "valid" may be a class
    if not beside if "train" in found else alone:
        there, missing = ("train", "test") if "train" in found else (beside[0], "train")
        raise UserError(
            f"{root} has {there}/ but no {missing}/; to use only {there}/ give {argument('data_dir')} {root / there}"
        )
    parts = [(root, True)]
    if "train" in found:
        parts = [(found["train"], True), *((found[name], False) for name in beside)]
    class_names = [path.name for path in subfolders(parts[0][0])]
    if not class_names:
        raise UserError(f"no class folders in {parts[0][0]}: expected {LAYOUT}")
    label = {name: number for number, name in enumerate(class_names)}
    files = [file for place, train in parts for file in _files_of(place, train, label)]
    return read_dataset("folder", files, class_names, options, channels=None)


def _files_of(place: Path, train: bool, label: dict[str, int]) -> list[LabelledFile]:
    """Return the files of one part, class by class."""
    files = []
    for folder in subfolders(place):
        if folder.name not in label:
            raise UserError(f"{folder} is a class that {place.parent / 'train'} does not have")
        files += [LabelledFile(path, label[folder.name], train) for path in images_in(folder)]
    return files
