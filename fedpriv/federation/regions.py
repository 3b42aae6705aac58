"""Decision regions: what the classifier of each client says of every point of the plane, where samples are points.

After the last round, a run on samples of two numbers keeps ``regions.safetensors`` for the page about it, which draws what
FedRE's figure 2 shows: what the model that each client has after the broadcast (of methods that broadcast a head, the global
classifier on the client's own extractor) says at a grid of points, and the samples. Nothing that attacks reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedpriv.datasets.types import Dataset, FederatedData, as_unit
from fedpriv.federation.method import ClientSetup, Method, State
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.util.errors import UserError
from fedpriv.util.files import checked_tensors, write_bytes
from fedpriv.wire.payloads import Message

FILE = "regions.safetensors"
SIDE = 121
"""Points of the grid along each axis, from 0 to 1."""

MOST_CLIENTS = 4
"""Clients whose regions are kept, the first ones: so many share a picture."""


@dataclass(frozen=True)
class Regions:
    """Decision regions of the first clients, and the samples.

    Attributes:
        classes: ``(clients, SIDE, SIDE)``: the class said at each point; rows go up the second axis.
        confidence: likewise, the largest softmax of what the classifier says, in [1/C, 1].
        points: ``(n, 2)`` samples of those clients, in [0, 1].
        labels: ``(n,)`` their classes.
        holders: ``(n,)`` the client that holds each.
        tests: ``(n,)`` True for those it tests with.
        n_classes: number of classes C.
    """

    classes: np.ndarray
    confidence: np.ndarray
    points: np.ndarray
    labels: np.ndarray
    holders: np.ndarray
    tests: np.ndarray
    n_classes: int


def of_points(dataset: Dataset) -> bool:
    """True where samples are points of the plane: two numbers each."""
    return dataset.samples.images[:1].numel() == 2


def save_regions(
    run: RunDirectory,
    data: FederatedData,
    method: Method,
    setups: Sequence[ClientSetup],
    states: Sequence[State],
    broadcast: Message,
) -> None:
    """Keep the decision regions of a finished federation on samples of two numbers; of others, nothing.

    Args:
        run: where to.
        data: who holds what.
        method: predicts.
        setups: of all clients.
        states: theirs, after the last round.
        broadcast: that the last round ended with.
    """
    if not of_points(data.dataset):
        return
    axis = torch.linspace(0, 1, SIDE)
    rows, columns = torch.meshgrid(axis, axis, indexing="ij")
    grid = torch.stack([columns, rows], -1).reshape(-1, *data.dataset.image_shape)
    classes, confidence = [], []
    for setup, state in zip(setups[:MOST_CLIENTS], states, strict=False):
        updated = method.apply_broadcast(setup, state, broadcast)
        said = method.predict(setup, updated, grid.to(setup.train.images.device)).float().softmax(1).cpu()
        top = said.max(1)
        classes.append(top.indices.view(SIDE, SIDE).to(torch.int32))
        confidence.append(top.values.view(SIDE, SIDE))
    indices, holders, tests = [], [], []
    for number, client in enumerate(data.clients[:MOST_CLIENTS]):
        for index, test in ((client.train_index, False), (client.test_index, True)):
            indices.append(torch.as_tensor(index))
            holders.append(torch.full((len(index),), number, dtype=torch.int32))
            tests.append(torch.full((len(index),), test))
    kept = data.dataset.samples.subset(torch.cat(indices))
    held: dict[str, Tensor] = {
        "classes": torch.stack(classes),
        "confidence": torch.stack(confidence),
        "points": as_unit(kept.images).flatten(1).contiguous(),
        "labels": kept.labels,
        "holders": torch.cat(holders),
        "tests": torch.cat(tests),
        "n_classes": torch.tensor(data.dataset.n_classes),
    }
    write_bytes(run.path / FILE, save(held))


def load_regions(run: RunDirectory) -> Regions | None:
    """Read back the decision regions of a run; None where its samples are no points.

    Raises:
        UserError: when the file is damaged.
    """
    path = run.path / FILE
    if not path.is_file():
        return None
    try:
        held = {name: value.numpy() for name, value in load_file(checked_tensors(path)).items()}
        found = Regions(
            **{name: value for name, value in held.items() if name != "n_classes"}, n_classes=int(held["n_classes"])
        )
        if found.classes.shape != found.confidence.shape or found.points.shape != (len(found.labels), 2):
            raise ValueError("shapes do not fit")
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{path}: damaged ({error}); train the run again") from error
    return found
