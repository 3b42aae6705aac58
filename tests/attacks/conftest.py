"""Fixtures that tests of attacks share."""

import pytest
import torch

from fedpriv.datasets import SourceOptions, load_dataset
from fedpriv.datasets.types import as_unit
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
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


@pytest.fixture(scope="session")
def classifier(digits):
    """A client's model, trained on the first 900 digits."""
    made = build_model(Blueprint("small-cnn", (1, 8, 8), 10, 64), 0).train()
    optimiser, rng = torch.optim.Adam(made.parameters(), lr=2e-3), generator(0, "client")
    for index in (part for _ in range(6) for part in torch.randperm(900, generator=rng).split(30)):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(made(digits[0][index]), digits[1][index]).backward()
        optimiser.step()
    made.eval().requires_grad_(False)
    assert (made(digits[0][900:]).argmax(1) == digits[1][900:]).float().mean() > 0.9
    return made
