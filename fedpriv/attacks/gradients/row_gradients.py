"""Gradients of many candidates that share one network's weights, from one pass for all of them, and distances of them.

A layer's gradient is a product of what went into the layer and the derivative at what came out of it: both are read
off a pass over all images as one batch, products are formed by candidate. Of linear layers not even the product is formed
where its inner products follow from those of its factors (for single images ``<d a', G> = d' G a``).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call
from torch.nn import functional

from fedpriv.attacks.gradients.update import RANDOM, Tangent, Weights, mean_loss

_TINY = 1e-30


class Factors(NamedTuple):
    """The gradient ``(R, O, I)`` of a linear layer's weight: ``(R, n, I)`` inputs, ``(R, n, O)`` derivatives."""

    inputs: Tensor
    deltas: Tensor


Gradients = Mapping[str, Tensor | Factors]
"""Gradients of R candidates by the parameter's name, ``(R, ...)``."""


def formed(value: Tensor | Factors) -> Tensor:
    """Return a gradient as one tensor ``(R, ...)``."""
    return torch.bmm(value.deltas.mT, value.inputs) if isinstance(value, Factors) else value


def tangent_part(value: Tensor | Factors, tangent: Tangent, name: str) -> Tensor | Factors:
    """Return a gradient as far as a truncated upload tells of it: of factors ``d' a`` it is ``d' a - d'_o a_o``.

    ``d_o`` and ``a_o`` are orthogonal to the upload's singular vectors, so no matrix is formed.
    """
    if name not in tangent.left:
        return value
    if not isinstance(value, Factors):
        return tangent({name: value})[name]
    left, right = tangent.left[name], tangent.right[name]
    deltas = value.deltas - torch.bmm(torch.bmm(value.deltas, left), left.mT)
    inputs = value.inputs - torch.bmm(torch.bmm(value.inputs, right.mT), right)
    return Factors(torch.cat([value.inputs, inputs], 1), torch.cat([value.deltas, -deltas], 1))


def cosine_distance(gradients: Gradients, target: Weights, norms: Tensor) -> Tensor:
    """Return one minus the cosine of each candidate's gradient and its target ``(R,)`` over the names in ``target``.

    All parameters are one vector; the target's norms are ``norms`` ``(R,)``. Source: Geiping et al. 2020, equation 4.
    """
    inner, squares = [], []
    for name, aim in target.items():
        value = gradients.get(name)
        if value is None:  # a layer that was not passed
            continue
        if isinstance(value, Factors):
            inner.append((value.deltas * torch.bmm(value.inputs, aim.mT)).sum((1, 2)))
            (_, count, width), height = value.inputs.shape, value.deltas.shape[2]
            if count * (width + height) < width * height:
                alike = torch.bmm(value.inputs, value.inputs.mT) * torch.bmm(value.deltas, value.deltas.mT)
                squares.append(alike.sum((1, 2)))
                continue
        else:
            inner.append((value * aim).flatten(1).sum(1))
        squares.append(formed(value).square().flatten(1).sum(1))
    # The root's derivative is infinite at zero, which a dead network's gradient is.
    lengths = torch.stack(squares).sum(0).clamp_min(_TINY).sqrt()
    return 1 - torch.stack(inner).sum(0) / (lengths * norms.clamp_min(_TINY))


def squared_distance(gradients: Gradients, target: Weights, norms: Tensor) -> Tensor:
    """Return the squared L2 distance ``(R,)`` over the names that are in ``target`` (DLG, Zhu et al. 2019, equation 4)."""
    apart = [(formed(gradients[name]) - value).flatten(1) for name, value in target.items()]
    return torch.stack([torch.linalg.vecdot(part, part) for part in apart]).sum(0)


class RowNorm(nn.Module):
    """Batch norm in training mode over the images of one candidate; it remembers what it normalised."""

    rows = 1

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.normalised = self.mean = self.variance = torch.empty(0)

    def forward(self, maps: Tensor) -> Tensor:
        """Return maps ``(R n, C, h, w)`` normalised by row."""
        by_row = maps.unflatten(0, (self.rows, -1))
        variance, mean = torch.var_mean(by_row, (1, 3, 4), correction=0, keepdim=True)
        self.mean, self.variance = mean.flatten(1), variance.flatten(1)
        self.normalised = ((by_row - mean) * (variance + self.eps).rsqrt()).flatten(0, 1)
        return self.normalised * self.weight[:, None, None] + self.bias[:, None, None]


class RowLinear(nn.Module):
    """A linear layer whose weight ``(O, I)`` all candidates share, or ``(R, O, I)``, one of each candidate's own."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, values: Tensor) -> Tensor:
        """Return the layer's outputs of values ``(R n, I)``."""
        if self.weight.dim() == 2:
            return functional.linear(values, self.weight, self.bias)
        result = torch.bmm(values.unflatten(0, (len(self.weight), -1)), self.weight.mT)
        return (result if self.bias is None else result + self.bias.unsqueeze(1)).flatten(0, 1)


class _Passage(NamedTuple):
    """One pass through a layer. Its output may have been overwritten since; the output's place in the graph stays."""

    name: str
    layer: nn.Module
    inputs: Tensor
    version: int
    place: GradientEdge
    output: Tensor


class RowGradients:
    """The loss of :class:`fedpriv.attacks.gradients.update.StepModel`, for all candidates that share weights in one pass."""

    def __init__(self, model: nn.Module, image_shape: tuple[int, int, int], device: torch.device) -> None:
        self._model = copy.deepcopy(model).requires_grad_(False)
        for parent in list(self._model.modules()):
            for name, child in list(parent.named_children()):
                if type(child) is nn.BatchNorm2d and child.affine:
                    setattr(parent, name, RowNorm(child))
                elif type(child) is nn.Linear:
                    setattr(parent, name, RowLinear(child))
            if hasattr(parent, "inplace"):
                setattr(parent, "inplace", False)  # noqa: B010 - what came out of a layer is needed as it was
        self._model.to(device).train()
        self._passages: list[_Passage] = []
        self._norms = {name: layer for name, layer in self._model.named_modules() if isinstance(layer, RowNorm)}
        for name, layer in self._model.named_modules():
            if isinstance(layer, RANDOM):
                layer.eval()
            if any(True for _ in layer.parameters(recurse=False)):
                layer.register_forward_hook(functools.partial(self._note, name))
        self.supported = self._is_supported(image_shape, device)

    def _note(self, name: str, layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        inputs = layer.normalised if isinstance(layer, RowNorm) else given[0]
        if output.requires_grad:
            self._passages.append(_Passage(name, layer, inputs, inputs._version, get_gradient_edge(output), output))

    def _is_supported(self, image_shape: tuple[int, int, int], device: torch.device) -> bool:
        layers = [layer for layer in self._model.modules() if any(True for _ in layer.parameters(recurse=False))]
        if not all(
            isinstance(layer, (RowLinear, RowNorm)) or (isinstance(layer, nn.Conv2d) and _padding(layer) is not None)
            for layer in layers
        ):
            return False
        weights: Weights = dict(self._model.named_parameters())
        kind = next(iter(weights.values())).dtype
        self._through(torch.zeros(2, *image_shape, device=device, dtype=kind).requires_grad_(), weights, 1)
        once = sorted(id(passage.layer) for passage in self._passages) == sorted(id(layer) for layer in layers)
        supported = once and all(passage.inputs._version == passage.version for passage in self._passages)
        self._passages.clear()
        return supported

    def _through(self, images: Tensor, weights: Weights, rows: int) -> Tensor:
        self._passages.clear()
        for norm in self._norms.values():
            norm.rows = rows
        logits: Tensor = functional_call(self._model, weights, (images,))
        return logits

    def __call__(
        self, weights: Weights, images: Tensor, labels: Tensor, readout: str = ""
    ) -> tuple[dict[str, Tensor | Factors], Tensor]:
        """Return the gradients of each candidate's mean loss, differentiable in the images, and the readout's inputs.

        Images are ``(R, n, c, h, w)`` of labels ``(R, n, C)``; linear layers may have a candidate's own weights.
        """
        rows = len(images)
        differentiate = torch.is_grad_enabled() and images.requires_grad
        if not differentiate:  # the pass needs a graph all the same
            images = images.detach().requires_grad_()
        with torch.enable_grad():
            output = self._through(images.flatten(0, 1), weights, rows)
            passages = list(self._passages)
            self._passages.clear()
            if readout:
                last = next(index for index, passage in enumerate(passages) if passage.name == readout)
                output, passages = passages[last].output, passages[: last + 1]
            loss = rows * mean_loss(output, labels.flatten(0, 1), readout)
            places = [passage.place for passage in passages]
            deltas = torch.autograd.grad(loss, places, create_graph=differentiate, allow_unused=True)
        gradients: dict[str, Tensor | Factors] = {}
        for passage, delta in zip(passages, deltas, strict=True):
            if delta is not None:
                gradients.update(_layer_gradient(passage, delta, rows))
        return gradients, passages[-1].inputs.flatten(1).unflatten(0, (rows, -1))

    def statistics_distance(
        self, weights: Weights, images: Tensor, target: Mapping[str, tuple[Tensor, Tensor]]
    ) -> Tensor:
        """Return ``sum_l |mean_l - mu_l| + |variance_l - sigma^2_l|`` (L2 norms over channels) ``(R,)``.

        Of images ``(R, n, c, h, w)``, with means and variances ``(R, C)`` by the name of the batch norm.
        """
        self._through(images.flatten(0, 1), weights, len(images))
        self._passages.clear()
        apart = [(norm.mean - target[name][0], norm.variance - target[name][1]) for name, norm in self._norms.items()]
        # Less the tiny summand the derivative at zero would be infinite.
        return torch.stack([(part.square().sum(1) + 1e-12).sqrt() for both in apart for part in both]).sum(0)


def _padding(layer: nn.Conv2d) -> list[int] | None:
    """Return the zeros on either side of each axis; None where it is not zeros, or not as many on both sides."""
    if layer.padding_mode != "zeros":
        return None
    if not isinstance(layer.padding, str):
        return list(layer.padding)
    sides = zip(layer.kernel_size, layer.dilation, strict=True)
    whole = [0 if layer.padding == "valid" else dilation * (side - 1) for side, dilation in sides]
    return None if any(number % 2 for number in whole) else [number // 2 for number in whole]


def _layer_gradient(passage: _Passage, delta: Tensor, rows: int) -> dict[str, Tensor | Factors]:
    """Return the gradient of one layer from what went in and the loss's derivative ``delta`` at what came out."""
    layer, prefix = passage.layer, f"{passage.name}." if passage.name else ""
    inputs, by_row = passage.inputs.unflatten(0, (rows, -1)), delta.unflatten(0, (rows, -1))
    weight: Tensor | Factors
    if isinstance(layer, RowLinear):
        weight = Factors(inputs.flatten(1, -2), by_row.flatten(1, -2))
    elif isinstance(layer, nn.Conv2d):
        weight = _KernelGradient.apply(inputs, by_row, layer)
    else:
        weight = (by_row * inputs).sum((1, 3, 4))
    results = {f"{prefix}weight": weight}
    if getattr(layer, "bias", None) is not None:
        results[f"{prefix}bias"] = weight.deltas.sum(1) if isinstance(weight, Factors) else by_row.sum((1, 3, 4))
    return results


class _KernelGradient(torch.autograd.Function):
    """The gradient of a convolution's weight ``(R, O, C / groups, k, k)``, candidates being groups of one convolution."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, delta: Tensor, layer: nn.Conv2d) -> Tensor:
        ctx.layer, ctx.rows = layer, len(maps)
        maps, delta = (values.transpose(0, 1).flatten(1, 2) for values in (maps, delta))  # (n, R C, h, w)
        ctx.save_for_backward(maps, delta)
        like = maps.new_empty(1).expand(ctx.rows * layer.out_channels, *layer.weight.shape[1:])
        result = _convolution_backward(ctx, delta, maps, like, (False, True, False))[1]
        return result.view(ctx.rows, *layer.weight.shape)

    @staticmethod
    def backward(ctx: Any, *grown: Tensor) -> tuple[Tensor | None, ...]:
        maps, delta = ctx.saved_tensors
        weight, layer = grown[0].flatten(0, 1), ctx.layer
        by_maps = by_delta = None
        if ctx.needs_input_grad[0]:
            by_maps = _convolution_backward(ctx, delta, maps, weight, (True, False, False))[0]
            by_maps = by_maps.unflatten(1, (ctx.rows, -1)).transpose(0, 1)
        if ctx.needs_input_grad[1]:
            shape: tuple[Any, ...] = layer.stride, _padding(layer), layer.dilation, ctx.rows * layer.groups
            by_delta = functional.conv2d(maps, weight, None, *shape)
            by_delta = by_delta.unflatten(1, (ctx.rows, -1)).transpose(0, 1)
        return by_maps, by_delta, None


def _convolution_backward(
    ctx: Any, delta: Tensor, maps: Tensor, weight: Tensor, which: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    layer = ctx.layer
    shape = list(layer.stride), _padding(layer), list(layer.dilation), False, [0, 0], ctx.rows * layer.groups
    slopes: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        delta, maps, weight, None, *shape, which
    )
    return slopes
