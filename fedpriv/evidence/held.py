"""The images that each client holds: the truth that inferences are asked about. For scorers only; no attack imports this."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.datasets.types import Samples
from fedpriv.evidence.traces import used_images
from fedpriv.federation.prepared import Federation
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.wire.kinds import TRAINED

Index = NDArray[np.int64]


@dataclass(frozen=True)
class HeldImages:
    """All images there are, and whose they are.

    Attributes:
        samples: those of clients, and those that nobody has; no image twice.
        held: client -> indices ``(n,)`` of its training images.
        used: client -> those of them that went into the attacked upload; of a client that is not there all did.
        held_out: client -> indices of its own images that it did not train on; empty where nobody brings any.
        device: where candidates are handed over.
    """

    samples: Samples
    held: Mapping[int, Index]
    used: Mapping[int, Index] = field(default_factory=dict)
    held_out: Mapping[int, Index] = field(default_factory=dict)
    device: torch.device = torch.device("cpu")

    def labels(self, client: int) -> Tensor:
        """Return the classes ``(n,)`` of a client's training images."""
        return self.samples.labels[torch.as_tensor(self.held[client])].cpu()


def held_in_run(federation: Federation) -> HeldImages:
    """Return who holds what in a run; a client's test images are its held-out images."""
    clients = dict(enumerate(federation.data.clients))
    held = {client: np.asarray(data.train_index) for client, data in clients.items()}
    held_out = {client: np.asarray(data.test_index) for client, data in clients.items()}
    samples = federation.data.dataset.samples
    return HeldImages(samples, held, held_out=held_out, device=federation.server.device)


def used_in_rounds(
    run: RunDirectory, truth: HeldImages, kind: str, rounds: Iterable[int], clients: Iterable[int]
) -> dict[int, Index]:
    """Return the images that went into some rounds' uploads of trained weights; nothing of other kinds, where all did."""
    if kind not in TRAINED:
        return {}
    there, numbers = run.captured_rounds(), sorted(rounds)
    found = {}
    for k in clients:
        steps = [used_images(run, number, k) for number in numbers if k in there[number]]
        found[k] = truth.held[k][torch.cat(steps).unique().numpy()]
    return found
