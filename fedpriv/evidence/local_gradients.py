"""Gradients of a batch as clients' local training computes them behind its defenses, for shadow clients of an attacker.

Which defenses of local training run is part of the protocol; what they draw is drawn anew.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedpriv.federation.defense import GradientTransform, Work, guarded
from fedpriv.federation.method import GuardedTraining
from fedpriv.federation.prepared import Federation


@dataclass(frozen=True)
class GuardedGradient:
    """The gradient of one batch of a client.

    Attributes:
        guards: of local training, innermost first.
        expected: images that a batch holds on average where that is random, else None.
    """

    guards: tuple[GradientTransform, ...]
    expected: float | None

    def __call__(self, network: nn.Module, images: Tensor, labels: Tensor, rng: torch.Generator) -> None:
        """Add the gradient of images ``(b, c, h, w)`` of classes ``(b,)`` to ``.grad`` of parameters that require one."""

        def loss(some: Tensor, answers: Tensor) -> Tensor:
            return cross_entropy(network(some), answers)

        moved = tuple(parameter for parameter in network.parameters() if parameter.requires_grad)
        work = Work(network, loss, moved, self.expected, rng)
        guarded(self.guards)(work, images, labels)


def guarded_gradients(federation: Federation, clients: Collection[int]) -> dict[int, GuardedGradient]:
    """Return client -> gradient of a batch, of clients whose local training passes through defenses."""
    found: dict[int, GuardedGradient] = {}
    for setup in federation.clients:
        training = setup.training
        if setup.client in clients and isinstance(training, GuardedTraining) and training.guards:
            expected = float(min(training.batch_size, len(setup.train))) if training.poisson else None
            found[setup.client] = GuardedGradient(training.guards, expected)
    return found
