"""Data sets, partitions, and the samples that clients hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.util.errors import UserError
from fedpriv.util.registry import Registry

if TYPE_CHECKING:
    from fedpriv.datasets.types import Dataset

DATASETS = Registry(
    "data set",
    {
        "fashion": "fedpriv.datasets.sources:load_fashion",
        "digits": "fedpriv.datasets.sources:load_digits",
        "plane": "fedpriv.datasets.sources:load_plane",
        "cifar10": "fedpriv.datasets.sources:load_cifar10",
        "cifar100": "fedpriv.datasets.sources:load_cifar100",
        "fashion-mnist": "fedpriv.datasets.sources:load_fashion_mnist",
        "mnist": "fedpriv.datasets.sources:load_mnist",
        "tiny-imagenet": "fedpriv.datasets.image_files:load_tiny_imagenet",
        "folder": "fedpriv.datasets.image_files:load_folder",
    },
    group="fedpriv.datasets",
    contract="fedpriv.util.registry:refuse_no_callable",
)


@dataclass(frozen=True)
class SourceOptions:
    """The place of the data, and the part of it to keep."""

    data_dir: Path | None = (
        None  # folder that holds the data, or into which it is downloaded; the embedded set needs none
    )
    download: bool = False  # fetch the data into ``data_dir`` when it is not there, where the source allows it
    image_size: int | None = None  # height and width in pixels to which images are brought (central square, bilinear)
    per_class: int | None = None  # how many images of each class to keep, the first in stored order of the merged set
    seed: int = 0  # the run's, for data that is drawn rather than read

    def __post_init__(self) -> None:
        if self.image_size is not None and self.image_size < 1:
            raise UserError(f"image size is {self.image_size}: it must be at least 1 pixel", keys=("image_size",))
        if self.per_class is not None and self.per_class < 1:
            raise UserError(f"images per class is {self.per_class}: it must be at least 1", keys=("per_class",))

    def folder(self, name: str, content: str) -> Path:
        """Return ``data_dir``, or raise a UserError that says that ``name`` needs one, and what it should hold."""
        if self.data_dir is None:
            raise UserError(f"data set {name!r} needs data_dir, the folder that holds {content}", keys=("data_dir",))
        return Path(self.data_dir)


def load_dataset(name: str, options: SourceOptions | None = None) -> Dataset:
    """Load a data set by its registry name.

    Images are as stored (uint8, or float32 in [0, 1]), training part first.
    """
    from fedpriv.datasets.types import Dataset, first_per_class, resized

    options = options or SourceOptions()
    dataset: Dataset = DATASETS.load(name)(options)
    if not isinstance(dataset, Dataset):
        raise UserError(f"data set {name!r}: expected a fedpriv.datasets.types.Dataset, got {type(dataset).__name__}")
    index = first_per_class(dataset.samples.labels.numpy(), options.per_class)
    kept = dataset if len(index) == len(dataset.samples) else dataset.only(index)
    return resized(kept, options.image_size)
