"""The gradient of a fully connected layer as far as an update says it, and what each image of a batch had part in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.gradients.label_masks import LabelSlopes
from fedpriv.attacks.gradients.separation import inputs_of, rank_of, separate
from fedpriv.attacks.gradients.sparse_directions import MOST, MOST_BY_LABELS
from fedpriv.attacks.inputs.updates import Tangent

EXPLAINED = 1e-2
"""A batch is explained when what it leaves of the layer's gradient is below this share."""

DRAWS = 20_000
"""Sets of outputs that are tried to tell the images of a batch apart."""

SEPARABLE = 12
"""Batches of more images are not told apart by such trying, which grows like 2^n."""


@dataclass(frozen=True)
class Parts:
    """The images of one step at a linear layer, in no particular order.

    Attributes:
        derivatives: ``(n, m)`` of the loss of each image at the layer's outputs.
        inputs: ``(n, k)`` what each put into the layer.
        explained: whether they leave next to nothing of the layer's gradient.
        attested: whether each shows by itself that it is no mixture, by how often it vanishes.
    """

    derivatives: Tensor
    inputs: Tensor
    explained: bool
    attested: bool


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

    def taken_apart(self, count: int, draw: torch.Generator, by_label: LabelSlopes | None = None) -> Parts | None:
        """Return the parts of one step, an image each; None where there are not as many parts as images.

        The mean loss's share of each image is what it put into the bias's gradient, so derivatives are n times that.

        Args:
            count: n images of one step.
            draw: draws the sets of outputs that tell them apart (:func:`fedpriv.attacks.gradients.separation.separate`).
            by_label: what labels make of the outputs that are positive, or None.
        """
        if count == 1:
            errors, attested = self.bias[:, None], 1
        elif count > (MOST if by_label is None else MOST_BY_LABELS):
            return None
        else:
            parts = separate(self.rows, self.bias, count, draw, DRAWS if count <= SEPARABLE else 0, by_label)
            found = parts.errors.shape[1]
            if found != count and (by_label is None or found < rank_of(self.rows)):
                return None
            errors, attested = parts.errors, parts.attested
        inputs = inputs_of(errors, self.weight, self.left)
        # Of an image that the network is sure of the gradient says nothing: a part of zeros stands for it.
        silent = (0, 0, 0, count - errors.shape[1])
        derivatives, inputs = (functional.pad(values, silent) for values in (count * errors.T, inputs))
        explained = self.unexplained(inputs) < EXPLAINED
        return Parts(derivatives.float(), inputs.float(), explained, attested == count)


def linear_gradient(gradient: Mapping[str, Tensor], project: Any, layer: str) -> LinearGradient:
    """Return the gradient of a layer as an update says it.

    Args:
        gradient: by name of the parameter, already projected where the upload is truncated.
        project: the projection, of truncated uploads a :class:`fedpriv.attacks.inputs.updates.Tangent`.
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
