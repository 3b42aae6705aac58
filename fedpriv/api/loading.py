"""The verb ``load``: images of a data set for training loops of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.api.named_code import verb
from fedpriv.datasets import SourceOptions, load_dataset
from fedpriv.util.errors import UserError, shown

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Images:
    """The images of a data set, its training part first.

    Attributes:
        images: ``(n, c, h, w)`` float32 in [0, 1].
        labels: ``(n,)`` int64, the class of each.
        classes: the name of each class.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)


@verb()
def load(
    name: str,
    *,
    data_dir: str | Path | None = None,
    image_size: int | None = None,
    per_class: int | None = None,
    download: bool = False,
    seed: int = 0,
) -> Images:
    """Load the images of a data set as floats, with their classes, for training loops of your own.

    >>> import fedpriv
    >>> data = fedpriv.load("fashion")
    >>> data.images.shape, data.classes[int(data.labels[0])]
    (torch.Size([2000, 1, 28, 28]), 'Ankle boot')

    Args:
        name: a name of ``fedpriv list datasets``, or ``folder:PATH``, a folder with one folder a class.
        data_dir: folder that holds the data set.
        image_size: resize images to this side in pixels.
        per_class: keep only the first so many images of each class.
        download: fetch the data set if it is missing.
        seed: of points of the plane.
    """
    from fedpriv.datasets.types import as_unit

    if not isinstance(name, str):
        raise UserError(f"name={shown(name)}: expected a name of `fedpriv list datasets`, or folder:PATH")
    kind, colon, path = name.partition(":")
    if kind == "folder" and colon:
        name, data_dir = kind, path
    options = SourceOptions(None if data_dir is None else Path(data_dir), download, image_size, per_class, seed)
    dataset = load_dataset(name, options)
    return Images(as_unit(dataset.samples.images), dataset.samples.labels, dataset.class_names)
