"""Gradient descent by torch's own function: ``torch.optim.SGD`` imports a compiler, a second or two of every process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd


@dataclass(frozen=True)
class Part:
    """Parameters that are trained at a step size of their own, or at that of the training.

    Attributes:
        parameters: to move.
        learning_rate: their step size; None for the training's.
    """

    parameters: tuple[nn.Parameter, ...]
    learning_rate: float | None = None


@dataclass(frozen=True)
class Sgd:
    """Moves parameters against their gradients: v = momentum v + g, p = p - rate v, where g = gradient + weight_decay p.

    Attributes:
        parts: parameters with their step sizes.
        learning_rate: of parts that have none of their own.
        momentum: of the velocity, which begins as the first gradient.
        weight_decay: of the squared norm, halved.
        velocity: parameter -> what earlier steps left, same shape; changed by every step where there is momentum.
    """

    parts: Sequence[Part]
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    velocity: dict[Tensor, Tensor] = field(default_factory=dict)

    def forget_gradients(self) -> None:
        """Take the gradients off all parameters."""
        for part in self.parts:
            for parameter in part.parameters:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        for part in self.parts:
            moved: list[Tensor] = [one for one in part.parameters if one.grad is not None]
            velocities = [self.velocity.get(one) for one in moved]
            sgd(
                moved,
                [one.grad for one in moved if one.grad is not None],
                velocities,
                foreach=True,
                weight_decay=self.weight_decay,
                momentum=self.momentum,
                lr=part.learning_rate or self.learning_rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
            self.velocity.update((one, now) for one, now in zip(moved, velocities, strict=True) if now is not None)


def velocity_of(module: nn.Module, known: Mapping[str, Tensor]) -> dict[Tensor, Tensor]:
    """Return velocities by parameter from velocities by name, copied; of names that the module lacks, none."""
    return {one: known[name].clone() for name, one in module.named_parameters() if name in known}


def velocity_by_name(module: nn.Module, velocity: Mapping[Tensor, Tensor]) -> dict[str, Tensor]:
    """Return a copy of every velocity by its parameter's name in a module."""
    return {
        name: velocity[one].clone(memory_format=torch.contiguous_format)
        for name, one in module.named_parameters()
        if one in velocity
    }
