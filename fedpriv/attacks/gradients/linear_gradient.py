"""The gradient of a fully connected layer as far as an update says it, and what each image of a batch had part in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedpriv.attacks.gradients.separation import MOST, inputs_of, separate
from fedpriv.attacks.read.updates import Tangent

EXPLAINED = 1e-2
"""A batch is explained when what it leaves of the layer's gradient is below this share."""

DRAWS = 20_000
"""Sets of outputs that are tried to tell the images of a batch apart."""

SEPARABLE = 12
"""Batches of more images are not told apart by such trying, which grows like 2^n."""


@dataclass(frozen=True)
class LinearGradient:
    """The gradient of a linear layer, float64 on the CPU.

    Attributes:
        weight: ``(m, k)`` of its weight.
        bias: ``(m,)`` of its bias.
        left: factor that the columns of a truncated layer are known along, or None.
        onto: ``(k, r)``, its rows likewise.
    """

    weight: Tensor
    bias: Tensor
    left: Tensor | None
    onto: Tensor | None

    @property
    def rows(self) -> Tensor:
        """Of a truncated layer all rows are known along V, and all columns along U."""
        return self.weight if self.onto is None else self.weight @ self.onto

    def unexplained(self, inputs: Tensor) -> float:
        """Return the share of the rows that is no combination of inputs ``(n, k)``."""
        seen = inputs if self.onto is None else inputs @ self.onto
        left_over = self.rows - self.rows @ torch.linalg.pinv(seen) @ seen
        return float(left_over.norm() / self.rows.norm().clamp(min=1e-300))

    def derivatives(self, count: int, draw: torch.Generator) -> Tensor | None:
        """Return the loss's derivatives at the layer's outputs ``(n, m)`` float32, an image each, in no particular order.

        The mean loss's share of each image is what it put into the bias's gradient, so they are n times that.

        Args:
            count: n images of one step.
            draw: draws the sets of outputs that tell them apart (:func:`fedpriv.attacks.gradients.separation.separate`).

        Returns:
            None where they are not all told apart, or do not explain the gradient.
        """
        if count == 1:
            return self.bias[None].float()
        if count > MOST:
            return None
        parts = separate(self.rows, self.bias, count, draw, DRAWS if count <= SEPARABLE else 0)
        if parts.attested != count or self.unexplained(inputs_of(parts.errors, self.weight, self.left)) >= EXPLAINED:
            return None
        return (count * parts.errors.T).float()


def linear_gradient(gradient: Mapping[str, Tensor], project: Any, layer: str) -> LinearGradient:
    """Return the gradient of a layer as an update says it.

    Args:
        gradient: by name of the parameter, already projected where the upload is truncated.
        project: the projection, of truncated uploads a :class:`fedpriv.attacks.read.updates.Tangent`.
        layer: name of the layer.
    """
    name = f"{layer}.weight"
    tangent = project if isinstance(project, Tangent) else Tangent()
    right = tangent.right.get(name)
    return LinearGradient(
        gradient[name].double().cpu(),
        gradient[f"{layer}.bias"].double().cpu(),
        tangent.left.get(name),
        None if right is None else right.double().cpu().T,
    )
