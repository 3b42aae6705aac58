"""Data sets, partitions, and the samples that clients hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpriv.datasets.sources.options import SourceOptions
from fedpriv.util.errors import UserError
from fedpriv.util.registry import Registry

if TYPE_CHECKING:
    from fedpriv.datasets.types import Dataset

__all__ = ["DATASETS", "PARTITIONS", "SourceOptions", "load_dataset"]

DATASETS = Registry(
    "data set",
    {
        "fashion": "fedpriv.datasets.sources.embedded:load_fashion",
        "digits": "fedpriv.datasets.sources.embedded:load_digits",
        "plane": "fedpriv.datasets.sources.plane:load_plane",
        "cifar10": "fedpriv.datasets.sources.torchvision_sets:load_cifar10",
        "cifar100": "fedpriv.datasets.sources.torchvision_sets:load_cifar100",
        "fashion-mnist": "fedpriv.datasets.sources.torchvision_sets:load_fashion_mnist",
        "mnist": "fedpriv.datasets.sources.torchvision_sets:load_mnist",
        "tiny-imagenet": "fedpriv.datasets.sources.tiny_imagenet:load_tiny_imagenet",
        "folder": "fedpriv.datasets.sources.folder:load_folder",
    },
    group="fedpriv.datasets",
    contract="fedpriv.util.registry:refuse_no_callable",
)

PARTITIONS = Registry(
    "partition",
    {
        "dirichlet": "fedpriv.datasets.federated:by_dirichlet",
        "pathological": "fedpriv.datasets.federated:by_pathology",
        "iid": "fedpriv.datasets.federated:by_chance",
        "long_tail": "fedpriv.datasets.federated:by_long_tail",
    },
    contract="fedpriv.util.registry:refuse_no_callable",
)


def load_dataset(name: str, options: SourceOptions | None = None) -> Dataset:
    """Load a data set by its registry name.

    Every source passes through here, so ``per_class``, ``channels`` and ``image_size`` mean the same for all of them.

    Args:
        name: a key of :data:`DATASETS`.
        options: where the data is and what to keep of it; the defaults suit the embedded set.

    Returns:
        The images as stored (uint8, or float32 in [0, 1]), training part first.

    Raises:
        UserError: unknown name, data that is missing, or data that cannot be read.
    """
    from fedpriv.datasets.shaping import keep_first_per_class, shape_images
    from fedpriv.datasets.types import Dataset

    options = options or SourceOptions()
    dataset: Dataset = DATASETS.load(name)(options)
    if not isinstance(dataset, Dataset):
        raise UserError(f"data set {name!r}: expected a fedpriv.datasets.types.Dataset, got {type(dataset).__name__}")
    return shape_images(keep_first_per_class(dataset, options.per_class), options.channels, options.image_size)
