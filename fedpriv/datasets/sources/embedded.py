"""The data set that needs no download: scikit-learn's digits."""

from __future__ import annotations

import torch

from fedpriv.datasets.sources.options import SourceOptions
from fedpriv.datasets.types import Dataset, Samples


def load_digits(options: SourceOptions) -> Dataset:
    """Load 1,797 real 8x8 grey images of handwritten digits that are part of scikit-learn.

    The source is the UCI optical recognition of handwritten digits data (Alpaydin and Kaynak, 1998); pixels are counts
    0..16, stored here as float32 in [0, 1]. It has no test part of its own. ``data_dir`` and ``download`` are not
    needed.
    """
    from sklearn.datasets import load_digits as read

    bunch = read()
    images = torch.from_numpy(bunch.images).float().div_(16).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    return Dataset("digits", Samples(images, labels), tuple(str(digit) for digit in range(10)), len(labels))
