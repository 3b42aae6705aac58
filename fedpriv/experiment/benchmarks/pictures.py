"""Images for comparisons in which it does not matter what they show: random ones, or those of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.datasets.sources.options import SourceOptions

if TYPE_CHECKING:
    from torch import Tensor

    from fedpriv.datasets.types import Dataset

CLASSES, SIDE = 10, 32
"""As CIFAR-10 has them."""

RANDOM = "fedpriv.experiment.benchmarks.pictures:random_images"
"""Name of the data set of random images."""

_MOST = 400


def random_images(options: SourceOptions) -> Dataset:
    """Return images of noise ``(n, 3, 32, 32)``, uint8, as many of each of ten classes as are asked for (400)."""
    import torch

    from fedpriv.datasets.types import Dataset, Samples
    from fedpriv.util.seeds import generator

    n = CLASSES * (options.per_class or _MOST)
    made = generator(options.seed, "benchmark images")
    images = torch.randint(0, 256, (n, 3, SIDE, SIDE), generator=made, dtype=torch.uint8)
    names = tuple(f"class {number}" for number in range(CLASSES))
    return Dataset("random", Samples(images, torch.arange(n) % CLASSES), names, n)


def some_images(folder: str | None, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images ``(count, 3, 32, 32)`` in [0, 1] and their labels, drawn by the seed: random ones, or a folder's."""
    import torch

    from fedpriv.datasets import load_dataset
    from fedpriv.datasets.types import as_unit
    from fedpriv.util.errors import UserError
    from fedpriv.util.seeds import generator

    name, place = (RANDOM, None) if folder is None else ("folder", Path(folder))
    dataset = load_dataset(name, SourceOptions(place, image_size=SIDE, per_class=count, channels=3, seed=seed))
    if len(dataset.samples) < count:
        raise UserError(f"{folder}: holds {len(dataset.samples)} images; expected {count} at least")
    order = torch.randperm(len(dataset.samples), generator=generator(seed, "order"))[:count]
    return as_unit(dataset.samples.images[order]), dataset.samples.labels[order]
