"""TinyImageNet in its original layout."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedpriv.datasets.sources.image_files import LabelledFile, images_in, read_dataset, subfolders
from fedpriv.datasets.sources.options import SourceOptions
from fedpriv.datasets.types import Dataset
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.foreign import LISTING, read_text

FOLDER = "tiny-imagenet-200"
URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"


def load_tiny_imagenet(options: SourceOptions) -> Dataset:
    """Load TinyImageNet (Le and Yang, 2015): colour images of 64x64 pixels, up to 200 classes.

    Reads ``wnids.txt`` (class order), ``words.txt`` (class names), ``train/<wnid>/images/`` and the validation part
    through ``val/val_annotations.txt``: its images lie in one folder, so a reader that takes folders for classes would
    give all of them the first label. Classes of ``wnids.txt`` without a training folder are left out.
    """
    root = options.folder("tiny-imagenet", f"{FOLDER}/ ({argument('download')} cannot fetch it; {URL})")
    root = root if os.path.isfile(root / "wnids.txt") else root / FOLDER
    if not os.path.isfile(root / "wnids.txt"):
        raise UserError(
            f"tiny-imagenet not found: looked for {root / 'wnids.txt'}; {argument('download')} cannot fetch it: "
            f"unpack {URL} there",
            keys=("data_dir",),
        )
    wnids = _present_classes(root)
    label = {wnid: number for number, wnid in enumerate(wnids)}
    files = [
        LabelledFile(path, label[wnid], True) for wnid in wnids for path in images_in(_images_of(root / "train" / wnid))
    ]
    files += _validation_files(root / "val", label)
    return read_dataset("tiny-imagenet", files, _class_names(root, wnids), options, channels=3)


def _images_of(folder: Path) -> Path:
    """Return the ``images`` folder of a class."""
    if not (folder / "images").is_dir():
        raise UserError(f"no images/ in {folder}: expected train/<wnid>/images/*.JPEG")
    return folder / "images"


def _lines(path: Path) -> list[str]:
    """Return the lines of a text file."""
    return read_text(path, LISTING, f"tiny-imagenet is incomplete or damaged: {path}").splitlines()


def _present_classes(root: Path) -> list[str]:
    """Return the classes of ``wnids.txt`` that have a training folder, in that file's order."""
    listed = [line.strip() for line in _lines(root / "wnids.txt") if line.strip()]
    if not (root / "train").is_dir():
        raise UserError(f"tiny-imagenet is incomplete: {root / 'train'} is not there")
    folders = {path.name for path in subfolders(root / "train")}
    if unknown := sorted(folders - set(listed)):
        raise UserError(f"{root / 'train' / unknown[0]} is a class that {root / 'wnids.txt'} does not list")
    present = [wnid for wnid in dict.fromkeys(listed) if wnid in folders]
    if not present:
        raise UserError(f"no class folders in {root / 'train'}: expected train/<wnid>/images/*.JPEG")
    return present


def _class_names(root: Path, wnids: Sequence[str]) -> list[str]:
    """Return the first word of each class, with the class's id behind it where two classes share a word."""
    words = dict(line.split("\t", 1) for line in _lines(root / "words.txt") if "\t" in line)
    first = [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    uses = Counter(first)
    return [name if uses[name] == 1 else f"{name} ({wnid})" for name, wnid in zip(first, wnids, strict=True)]


def _validation_files(folder: Path, label: dict[str, int]) -> list[LabelledFile]:
    """Return the annotated validation files in order of their names."""
    annotations = folder / "val_annotations.txt"
    found: dict[str, LabelledFile] = {}
    for number, line in enumerate(_lines(annotations), start=1):
        if not line.strip():
            continue
        where = f"{annotations} line {number}"
        fields = line.split("\t")
        if len(fields) < 2:
            raise UserError(f"{where}: expected a file name, a tab and a class id, not {line[:60]!r}")
        name, wnid = fields[0].strip(), fields[1].strip()
        if wnid not in label:
            raise UserError(f"{where}: image {name} is of class {wnid}, which has no folder in train/")
        if name in found:
            raise UserError(f"{where}: image {name} is annotated twice")
        path = folder / "images" / name
        if name != os.path.basename(name) or not os.path.isfile(path):
            raise UserError(f"{where}: image {path} is not there")
        found[name] = LabelledFile(path, label[wnid], False)
    return [found[name] for name in sorted(found)]
