"""Stochastic gradient descent over lists of tensors at once, to the last bit that of ``torch.optim.SGD``.

Of what torch's optimiser offers, local training needs step size, momentum and weight decay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


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
    velocity: dict[nn.Parameter, Tensor] = field(default_factory=dict)

    def forget_gradients(self) -> None:
        """Take the gradients off all parameters."""
        for part in self.parts:
            for parameter in part.parameters:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        for part in self.parts:
            moved: list[nn.Parameter] = [one for one in part.parameters if one.grad is not None]
            gradients = [one.grad for one in moved if one.grad is not None]
            if not moved:
                continue
            if self.weight_decay:
                gradients = list(torch._foreach_add(gradients, [*moved], alpha=self.weight_decay))
            if self.momentum:
                gradients = self._with_momentum(moved, gradients)
            torch._foreach_add_([*moved], gradients, alpha=-(part.learning_rate or self.learning_rate))

    def _with_momentum(self, moved: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the velocities of parameters after taking in their gradients."""
        first = [one not in self.velocity for one in moved]
        for parameter, gradient, new in zip(moved, gradients, first, strict=True):
            if new:
                self.velocity[parameter] = gradient.clone()
        older = [self.velocity[one] for one, new in zip(moved, first, strict=True) if not new]
        if older:
            torch._foreach_mul_(older, self.momentum)
            torch._foreach_add_(older, [one for one, new in zip(gradients, first, strict=True) if not new])
        return [self.velocity[one] for one in moved]


def velocity_of(module: nn.Module, known: Mapping[str, Tensor]) -> dict[nn.Parameter, Tensor]:
    """Return velocities by parameter from velocities by name, copied; of names that the module lacks, none."""
    return {one: known[name].clone() for name, one in module.named_parameters() if name in known}


def velocity_by_name(module: nn.Module, velocity: Mapping[nn.Parameter, Tensor]) -> dict[str, Tensor]:
    """Return a copy of every velocity by its parameter's name in a module."""
    return {
        name: velocity[one].clone(memory_format=torch.contiguous_format)
        for name, one in module.named_parameters()
        if one in velocity
    }
