"""Small image files, and a loader's refusals."""

import pytest

from fedpriv.datasets import SourceOptions, load_dataset
from fedpriv.util.errors import UserError


def refused(name, message, **options):
    """Loading must be refused in one line that matches ``message``."""
    with pytest.raises(UserError, match=message) as caught:
        load_dataset(name, SourceOptions(**options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def first_pixels(dataset):
    return dataset.samples.images[:, 0, 0, 0].tolist()
