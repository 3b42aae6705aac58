"""Gradients of many rows that share one network's weights, from one ordinary backward pass for all of them.

A layer's weight gradient is a product of what went into the layer and of the loss's derivative at what came out of it.
Both are read off a pass over the rows' images as if they were one large batch, and the products are formed row by row.
Vectorising the gradient function over rows instead turns every convolution into one with weights of its own for each
row, which is slower than a loop on wide networks. For linear layers not even the product is formed: its inner products
follow from those of its factors (for single images ``<d a', G> = d' G a`` and ``|d a'| = |d| |a|``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call
from torch.nn import functional

from fedpriv.attacks.gradients.update import RANDOM, mean_loss
from fedpriv.attacks.inputs.updates import Weights

_TINY = 1e-30


@dataclass(frozen=True)
class FormedGradient:
    """A layer's gradient as tensors ``(R, ...)`` by parameter name."""

    values: Weights

    def names(self) -> tuple[str, ...]:
        """Return the names of the parameters."""
        return tuple(self.values)

    def formed(self) -> Weights:
        """Return the tensors."""
        return self.values

    def inner(self, wanted: Mapping[str, Tensor]) -> Tensor:
        """Return the inner products ``(R,)`` with ``wanted``, each ``(R, ...)``, over the names that are in it."""
        products = [(value * wanted[name]).flatten(1).sum(1) for name, value in self.values.items() if name in wanted]
        return torch.stack(products).sum(0)

    def square_norm(self, wanted: Mapping[str, Tensor]) -> Tensor:
        """Return the sums of squares ``(R,)`` over the names that are in ``wanted``."""
        squares = [value.square().flatten(1).sum(1) for name, value in self.values.items() if name in wanted]
        return torch.stack(squares).sum(0)


@dataclass(frozen=True)
class LinearGradient:
    """A linear layer's gradient as its factors.

    Attributes:
        weight: name of the weight ``(O, I)``.
        bias: name of the bias ``(O,)``, or None.
        inputs: ``(R, n, I)`` what went in; where the layer acts on several positions of an image, n counts them all.
        deltas: ``(R, n, O)`` derivative of the row's loss at what came out.
    """

    weight: str
    bias: str | None
    inputs: Tensor
    deltas: Tensor

    def names(self) -> tuple[str, ...]:
        """Return the names of the parameters."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def formed(self) -> Weights:
        """Return the gradient by parameter name."""
        found = {self.weight: self.deltas.transpose(1, 2) @ self.inputs}
        if self.bias is not None:
            found[self.bias] = self.deltas.sum(1)
        return found

    def inner(self, wanted: Mapping[str, Tensor]) -> Tensor:
        """Return the inner products ``(R,)``."""
        total = self.inputs.new_zeros(len(self.inputs))
        if self.weight in wanted:
            total = total + (self.deltas * torch.bmm(self.inputs, wanted[self.weight].transpose(1, 2))).sum((1, 2))
        if self.bias is not None and self.bias in wanted:
            total = total + (self.deltas.sum(1) * wanted[self.bias]).sum(1)
        return total

    def square_norm(self, wanted: Mapping[str, Tensor]) -> Tensor:
        """Return the sums of squares ``(R,)``."""
        total = self.inputs.new_zeros(len(self.inputs))
        if self.weight in wanted:
            _, count, width = self.inputs.shape
            height = self.deltas.shape[2]
            if count * (width + height) < width * height:
                alike = self.inputs @ self.inputs.transpose(1, 2)
                total = total + (alike * (self.deltas @ self.deltas.transpose(1, 2))).sum((1, 2))
            else:  # so many images that the product itself is the smaller matrix
                total = total + (self.deltas.transpose(1, 2) @ self.inputs).square().sum((1, 2))
        if self.bias is not None and self.bias in wanted:
            total = total + self.deltas.sum(1).square().sum(1)
        return total


LayerGradient = FormedGradient | LinearGradient
"""The gradient of one layer's parameters for R rows, perhaps not formed."""


class RowNorm(nn.Module):
    """Batch norm in training mode whose statistics are those of a row's own images.

    Attributes:
        rows: how many rows the images are of, to be set before a pass.
        mean: ``(R, C)`` of what went in at the last pass, by row.
        variance: ``(R, C)`` likewise, biased.
    """

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


@dataclass(frozen=True)
class _Passage:
    """The tensors that went through a layer in one pass, and the place of the outgoing one in the graph.

    The tensor that went out may have been overwritten since, by a ReLU in place; its place in the graph stays.
    """

    name: str
    layer: nn.Module
    came_in: Tensor
    version: int
    went_out: GradientEdge
    output: Tensor


class RowGradients:
    """The client's loss as a function of images, differentiated for all rows that share weights.

    Evaluated as :class:`fedpriv.attacks.gradients.update.StepModel` evaluates it: in training mode, without dropout.
    """

    def __init__(self, model: nn.Module, image_shape: tuple[int, int, int], device: torch.device) -> None:
        self._model = prepared(model).to(device).train()
        self._passages: list[_Passage] = []
        self._norms = [module for module in self._model.modules() if isinstance(module, RowNorm)]
        for name, layer in self._model.named_modules():
            if isinstance(layer, RANDOM):
                layer.eval()
            if any(True for _ in layer.parameters(recurse=False)):
                layer.register_forward_hook(self._noting(name))
        self.supported = self._is_supported(image_shape, device)

    def _noting(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def note(layer: nn.Module, given: tuple[Tensor, ...], went_out: Tensor) -> None:
            came_in = layer.normalised if isinstance(layer, RowNorm) else given[0]
            self._passages.append(
                _Passage(name, layer, came_in, came_in._version, get_gradient_edge(went_out), went_out)
            )

        return note

    def _is_supported(self, image_shape: tuple[int, int, int], device: torch.device) -> bool:
        """True where every parameter is of a layer of a known kind, passed once, whose input stays as it was."""
        layers = [layer for layer in self._model.modules() if any(True for _ in layer.parameters(recurse=False))]
        if not all(_is_known(layer) for layer in layers):
            return False
        weights: Weights = dict(self._model.named_parameters())
        kind = next(iter(weights.values())).dtype
        self._through(torch.zeros(2, *image_shape, device=device, dtype=kind).requires_grad_(), weights, 1)
        passages = list(self._passages)
        self._passages.clear()
        once = sorted(id(passage.layer) for passage in passages) == sorted(id(layer) for layer in layers)
        return once and all(passage.came_in._version == passage.version for passage in passages)

    def _through(self, images: Tensor, weights: Weights, rows: int) -> Tensor:
        self._passages.clear()
        for norm in self._norms:
            norm.rows = rows
        logits: Tensor = functional_call(self._model, weights, (images,))
        return logits

    def __call__(self, weights: Weights, images: Tensor, labels: Tensor, readout: str = "") -> list[LayerGradient]:
        """Return the gradients of each row's mean loss, layer by layer, differentiable in the images ``(R, n, c, h, w)``.

        All rows have the same weights. Labels ``(R, n, C)`` and readout are as of
        :meth:`fedpriv.attacks.gradients.update.StepModel.gradient`; layers behind a readout are left out.
        """
        rows = len(images)
        wanted = torch.is_grad_enabled() and images.requires_grad
        if not wanted:  # the pass needs a graph all the same
            images = images.detach().requires_grad_()
        with torch.enable_grad():
            logits = self._through(images.flatten(0, 1), weights, rows)
            passages = list(self._passages)
            self._passages.clear()
            if readout:
                place = next(place for place, passage in enumerate(passages) if passage.name == readout)
                logits, passages = passages[place].output, passages[: place + 1]
            loss = rows * mean_loss(logits, labels.flatten(0, 1), readout)
            came_out = [passage.went_out for passage in passages]
            deltas = torch.autograd.grad(loss, came_out, create_graph=wanted, allow_unused=True)
        pairs = zip(passages, deltas, strict=True)
        return [_gradient(passage, delta, rows) for passage, delta in pairs if delta is not None]


def prepared(model: nn.Module) -> nn.Module:
    """Return a copy whose parameters are constants, whose batch norms are rows' own, and that overwrites nothing."""
    copied = copy.deepcopy(model).requires_grad_(False)
    for parent in list(copied.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.BatchNorm2d and child.affine:
                setattr(parent, name, RowNorm(child))
        if hasattr(parent, "inplace"):
            setattr(parent, "inplace", False)  # noqa: B010 - what came out of a layer is needed as it was
    return copied


def _is_known(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return padding_of(layer) is not None
    return isinstance(layer, (nn.Linear, RowNorm))


def padding_of(layer: nn.Conv2d) -> tuple[int, ...] | None:
    """Return the zeros on either side of each axis; None where it is not zeros, or not as many on both sides."""
    if layer.padding_mode != "zeros":
        return None
    if not isinstance(layer.padding, str):
        return layer.padding
    if layer.padding == "valid":
        return tuple(0 for _ in layer.kernel_size)
    whole = [dilation * (side - 1) for side, dilation in zip(layer.kernel_size, layer.dilation, strict=True)]
    return None if any(number % 2 for number in whole) else tuple(number // 2 for number in whole)


def _gradient(passage: _Passage, delta: Tensor, rows: int) -> LayerGradient:
    """Return the gradient of one layer from what went in and the loss's derivative ``delta`` at what came out."""
    layer, prefix = passage.layer, f"{passage.name}." if passage.name else ""
    has_bias = getattr(layer, "bias", None) is not None
    if isinstance(layer, nn.Linear):
        inputs = passage.came_in.reshape(rows, -1, layer.in_features)
        bias = f"{prefix}bias" if has_bias else None
        return LinearGradient(f"{prefix}weight", bias, inputs, delta.reshape(rows, -1, layer.out_features))
    by_row = delta.unflatten(0, (rows, -1))
    values: Weights = {}
    if isinstance(layer, nn.Conv2d):
        values[f"{prefix}weight"] = _convolution_gradient(layer, passage.came_in, delta, rows)
    else:
        values[f"{prefix}weight"] = (by_row * passage.came_in.unflatten(0, (rows, -1))).sum((1, 3, 4))
    if has_bias:
        values[f"{prefix}bias"] = by_row.sum((1, 3, 4))
    return FormedGradient(values)


def _convolution_gradient(layer: nn.Conv2d, maps: Tensor, delta: Tensor, rows: int) -> Tensor:
    """Return each row's gradient of a convolution's weight ``(R, O, I / groups, k, k)``."""
    padding = padding_of(layer)
    assert padding is not None  # else the layer is not known
    patches = functional.unfold(maps, layer.kernel_size, layer.dilation, padding, layer.stride)
    groups = layer.groups
    patches = patches.reshape(rows, -1, groups, patches.shape[1] // groups, patches.shape[2])
    out = delta.reshape(rows, -1, groups, layer.out_channels // groups, patches.shape[4])
    if patches.shape[1] == 1:
        # Squeezed, not indexed: going backwards through an index fills a whole tensor with zeros first. Multiplied in this
        # order, the derivative by the patches, the largest tensor of all, comes out as folding them back wants it.
        product = (patches.squeeze(1) @ out.squeeze(1).transpose(2, 3)).transpose(2, 3)
    else:
        product = torch.einsum("rngol,rngpl->rgop", out, patches)
    return product.reshape(rows, *layer.weight.shape)


def cosine_distance(gradients: Sequence[LayerGradient], wanted: Mapping[str, Tensor], norms: Tensor) -> Tensor:
    """Return one minus the cosine of each row's gradient and the wanted one, over all parameters as one vector: ``(R,)``.

    Names that are not in ``wanted``, whose norms are ``norms`` ``(R,)``, have no part. Source: Geiping, Bauermeister,
    Droege and Moeller, "Inverting Gradients" (NeurIPS 2020), equation 4.
    """
    parts = [layer for layer in gradients if not wanted.keys().isdisjoint(layer.names())]
    inner = torch.stack([layer.inner(wanted) for layer in parts]).sum(0)
    squares = torch.stack([layer.square_norm(wanted) for layer in parts]).sum(0)
    # The root's derivative is infinite at zero, which a dead network's gradient is.
    return 1 - inner / (squares.clamp_min(_TINY).sqrt() * norms.clamp_min(_TINY))


def squared_distance(gradients: Sequence[LayerGradient], wanted: Mapping[str, Tensor], norms: Tensor) -> Tensor:
    """Return the squared L2 distance ``(R,)`` over the names that are in ``wanted`` (DLG, Zhu et al. 2019, equation 4)."""
    formed = {name: value for layer in gradients for name, value in layer.formed().items()}
    return torch.stack([(formed[name] - value).square().flatten(1).sum(1) for name, value in wanted.items()]).sum(0)
