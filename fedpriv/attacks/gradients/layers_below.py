"""The images of a step told apart at the last fully connected layer, and from there down to the first.

Where a layer's inputs and derivatives are known of an image, and the inputs came out of another fully connected layer
through a ReLU, its derivatives there are those times the weights between, where the inputs are positive, and zero elsewhere.
So every image that is told apart at a layer is told apart at the one below, and helps to tell the others apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.attacks.gradients.behind_layer import cross_entropy_slopes, label_slopes, logits_behind, values_between
from fedpriv.attacks.gradients.label_masks import LabelSlopes
from fedpriv.attacks.gradients.linear_gradient import linear_gradient
from fedpriv.attacks.gradients.separation import Separation, inputs_of, separate
from fedpriv.attacks.gradients.sparse_directions import MOST_BY_LABELS
from fedpriv.attacks.inputs.updates import Weights

_AGREES = 1e-5
"""Cosine distance of a derivative from what an image's own inputs and a label make of it, below which it is an image's.
Rounding makes 1e-6, a mixture of two images hardly less than 1e-4."""

_ACTIVE = 1e-4
"""Share of the largest input from which on one was positive; what is solved for is never quite zero."""


@dataclass(frozen=True)
class LabelledStep:
    """One step of a cross-entropy, with labels.

    Attributes:
        model: architecture.
        weights: all parameters that the loss takes.
        gradient: of those that were sent.
        project: as of :func:`fedpriv.attacks.gradients.linear_gradient.linear_gradient`.
        layers: names of fully connected layers, in order, none of them the head; weight and bias were sent.
        labels: ``(n,)``.
        image_shape: (channels, height, width).
        learning_rate: by which the update was divided.
    """

    model: nn.Module
    weights: Weights
    gradient: Mapping[str, Tensor]
    project: Any
    layers: tuple[str, ...]
    labels: Tensor
    image_shape: tuple[int, int, int]
    learning_rate: float

    def separated(self, layer: str, draw: torch.Generator, draws: int) -> Separation:
        """Return the columns at a layer, told apart from the last one down.

        Args:
            layer: one of the layers.
            draw: draws masks and starts; on the CPU.
            draws: as of :func:`fedpriv.attacks.gradients.separation.separate`, at this layer.
        """
        way, columns = self.layers[self.layers.index(layer) :], None
        for below, name in zip(reversed(way[:-1]), reversed(way[1:]), strict=True):
            columns = self._columns_below(name, below, self._at(name, draw, 0, columns))
        return self._at(layer, draw, draws, columns)

    def _at(self, layer: str, draw: torch.Generator, draws: int, columns: Tensor | None) -> Separation:
        known, count = linear_gradient(self.gradient, self.project, layer), len(self.labels)
        by_label = self._slopes(layer) if layer == self.layers[-1] and count <= MOST_BY_LABELS else None
        return separate(known.rows, known.bias, count, draw, draws, by_label, columns)

    def _behind(self, layer: str) -> Callable[[Tensor], Tensor]:
        return logits_behind(self.model, self.weights, layer, self.image_shape)

    def _slopes(self, layer: str) -> LabelSlopes | None:
        bias, behind = self.weights[f"{layer}.bias"], self._behind(layer)
        return label_slopes(behind, bias, self.labels, self.gradient, behind(bias.unsqueeze(0)).shape[1])

    def _columns_below(self, layer: str, below: str, parts: Separation) -> Tensor | None:
        """Return columns ``(m, s)`` at the layer below of those images that are surely told apart at this one."""
        if not parts.errors.shape[1] or not self._rectified(below, layer):
            return None
        known, weight = linear_gradient(self.gradient, self.project, layer), self.weights[f"{layer}.weight"]
        inputs = inputs_of(parts.errors, known.weight, known.left)
        outputs = functional.linear(inputs.to(weight), weight, self.weights[f"{layer}.bias"])
        made = cross_entropy_slopes(self._behind(layer), outputs, int(self.labels.max()) + 1).cpu().double()
        apart = 1 - functional.cosine_similarity(parts.errors.T.unsqueeze(1), made, dim=2)
        sure = apart.amin(1) < _AGREES
        active = inputs > _ACTIVE * inputs.amax(1, keepdim=True)
        return (((parts.errors.T @ weight.double().cpu()) * active)[sure]).T

    def _rectified(self, below: str, above: str) -> bool:
        """True where what goes into one layer is what came out of another, rectified."""
        bias = self.weights[f"{below}.bias"]
        probe = torch.randn(4, len(bias), generator=torch.Generator().manual_seed(0)).to(bias)
        found = values_between(self.model, self.weights, below, above, probe, self.image_shape)
        return found.shape == probe.shape and torch.allclose(found, probe.relu(), 1e-4, 1e-5)
