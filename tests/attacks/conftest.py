"""Fixtures that tests of attacks share."""

import pytest
import torch

from fedpriv.datasets import SourceOptions, load_dataset
from fedpriv.datasets.types import as_unit
from fedpriv.util.seeds import generator


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def digits():
    """Images ``(n, 1, 8, 8)`` in [0, 1] and their classes, in a drawn order."""
    samples = load_dataset("digits", SourceOptions(None, False, None, None)).samples
    order = torch.randperm(len(samples), generator=generator(0, "shuffle"))
    return as_unit(samples.images)[order], samples.labels[order]
