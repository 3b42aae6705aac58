"""Representations of a stored run's clients, by the private models that its newest checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fedpriv.federation.local_training import class_means, represent
from fedpriv.federation.prepared import Federation
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.federation.states import put

Of = Literal["images", "prototypes"]
KINDS: tuple[Of, ...] = get_args(Of)
MOST_IMAGES = 1000
"""Test images of all clients together that are represented; of more, evenly spaced ones."""


@dataclass(frozen=True)
class Representations:
    """Vectors of one round's private models.

    Attributes:
        of: ``images``, test images one by one, or ``prototypes``, means of a client's training images of a class.
        features: ``(n, d)`` float32.
        classes: ``(n,)`` int64.
        clients: ``(n,)`` int64, whose model and whose images.
        round: after whose local training.
    """

    of: Of
    features: Tensor
    classes: Tensor
    clients: Tensor
    round: int


def stored_representations(federation: Federation, directory: RunDirectory, of: Of) -> Representations | str:
    """Represent images of every client by its own model as local training left it, in evaluation mode.

    Clients that no round has sampled are left out: their models are untrained. The representation is that of the private
    model, whatever a method fuses it with when it predicts.

    Args:
        federation: made of the run's configuration.
        directory: of the run.
        of: what is represented.

    Returns:
        The representations, or a line that says why there are none.
    """
    round_ = directory.newest_checkpoint()
    if round_ is None:
        return "the run has no checkpoint"
    absent = federation.unsampled(round_)
    members = [setup for setup in federation.clients if setup.client not in absent]
    total = sum(len(federation.tests[setup.client]) for setup in members)
    every = max(1, -(-total // MOST_IMAGES))
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    for setup in members:
        state = directory.client_state(round_, setup.client)
        if not any(name.startswith("model.") for name in state):
            return "its clients keep no private model"
        put(setup.model, state, "model")
        own = federation.tests[setup.client] if of == "images" else setup.train
        if of == "images":
            own = own.subset(torch.arange(0, len(own), every))
        features, classes = represent(setup.model, own.images), own.labels
        if of == "prototypes":
            features, classes, _ = class_means(features, classes)
        rows.append((features.cpu(), classes.cpu(), torch.full((len(classes),), setup.client)))
    features, classes, clients = (torch.cat(part) for part in zip(*rows, strict=True))
    return Representations(of, features, classes, clients, round_)
