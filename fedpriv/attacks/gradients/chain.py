"""Networks that are one layer after the other, read as a chain of links that know their own derivatives.

Rows' own weights are groups of one convolution, with the rows' maps side by side among the channels. Where a layer has more
than a few input channels this is faster on a CPU than products of patches, which are as many times larger than the maps as a
kernel has entries.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from fedpriv.attacks.gradients.row_gradients import padding_of
from fedpriv.attacks.gradients.update import RANDOM

aten = torch.ops.aten

Kept = Any
"""Memory of a link of one pass."""


class Link(Protocol):
    """A step of a chain without parameters, ``y = f(x)`` for ``(n, ...)``."""

    def forward(self, values: Tensor) -> tuple[Tensor, Kept]:
        """Return y, and what the other calls need of this pass."""
        ...

    def push(self, tangent: Tensor, kept: Kept) -> Tensor:
        """Return the derivative of y along ``tangent`` of x."""
        ...

    def pull(self, delta: Tensor, kept: Kept) -> Tensor:
        """Return the derivative at x of a loss whose derivative at y is ``delta``."""
        ...

    def pull_tangent(self, moved: Tensor, delta: Tensor, tangent: Tensor | None, kept: Kept) -> Tensor:
        """Return the change of :meth:`pull` where ``delta`` changes by ``moved`` and x by ``tangent``; None is no change."""
        ...


class _Linear:
    """A link whose derivative is the same everywhere, or nearly everywhere."""

    def pull(self, delta: Tensor, kept: Kept) -> Tensor:
        """See :class:`Link`."""
        raise NotImplementedError

    def pull_tangent(self, moved: Tensor, delta: Tensor, tangent: Tensor | None, kept: Kept) -> Tensor:
        """See :class:`Link`."""
        return self.pull(moved, kept)


@dataclass(frozen=True)
class Scaled(_Linear):
    """``y = a x + b`` entry by entry; both are numbers or tensors that can be broadcast."""

    factor: Tensor | float
    summand: Tensor | float

    def forward(self, values: Tensor) -> tuple[Tensor, Kept]:
        """See :class:`Link`."""
        if isinstance(self.factor, Tensor) and isinstance(self.summand, Tensor):
            return torch.addcmul(self.summand, values, self.factor), None
        return values * self.factor + self.summand, None

    def push(self, tangent: Tensor, kept: Kept) -> Tensor:
        """See :class:`Link`."""
        return tangent * self.factor

    def pull(self, delta: Tensor, kept: Kept) -> Tensor:
        """See :class:`Link`."""
        return delta * self.factor


@dataclass(frozen=True)
class Mapped(_Linear):
    """``y = x A`` with a constant matrix ``(I, O)``."""

    matrix: Tensor

    def forward(self, values: Tensor) -> tuple[Tensor, Kept]:
        """See :class:`Link`."""
        return values @ self.matrix, None

    def push(self, tangent: Tensor, kept: Kept) -> Tensor:
        """See :class:`Link`."""
        return tangent @ self.matrix

    def pull(self, delta: Tensor, kept: Kept) -> Tensor:
        """See :class:`Link`."""
        return delta @ self.matrix.t()


@dataclass(frozen=True)
class Flat(_Linear):
    """All axes but the first as one."""

    def forward(self, values: Tensor) -> tuple[Tensor, Kept]:
        """See :class:`Link`."""
        return values.flatten(1), values.shape

    def push(self, tangent: Tensor, kept: Kept) -> Tensor:
        """See :class:`Link`."""
        return tangent.flatten(1)

    def pull(self, delta: Tensor, kept: Kept) -> Tensor:
        """See :class:`Link`."""
        return delta.reshape(kept)


@dataclass(frozen=True)
class Rectified(_Linear):
    """ReLU; its second derivative is zero."""

    def forward(self, values: Tensor) -> tuple[Tensor, Kept]:
        """See :class:`Link`."""
        found = values.relu()
        return found, found

    def push(self, tangent: Tensor, kept: Kept) -> Tensor:
        """See :class:`Link`."""
        return cast(Tensor, aten.threshold_backward(tangent, kept, 0))

    def pull(self, delta: Tensor, kept: Kept) -> Tensor:
        """See :class:`Link`."""
        return cast(Tensor, aten.threshold_backward(delta, kept, 0))


@dataclass(frozen=True)
class Saturating:
    """An entrywise function whose derivatives follow from its value.

    Attributes:
        function: f.
        backward: (d, y) -> d f'(x).
        bend: y -> f''(x) / f'(x).
    """

    function: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]
    bend: Callable[[Tensor], Tensor]

    def forward(self, values: Tensor) -> tuple[Tensor, Kept]:
        """See :class:`Link`."""
        found = self.function(values)
        return found, found

    def push(self, tangent: Tensor, kept: Kept) -> Tensor:
        """See :class:`Link`."""
        return self.backward(tangent, kept)

    def pull(self, delta: Tensor, kept: Kept) -> Tensor:
        """See :class:`Link`."""
        return self.backward(delta, kept)

    def pull_tangent(self, moved: Tensor, delta: Tensor, tangent: Tensor | None, kept: Kept) -> Tensor:
        """See :class:`Link`."""
        if tangent is not None:
            moved = torch.addcmul(moved, self.bend(kept) * tangent, delta)
        return self.backward(moved, kept)


SIGMOID = Saturating(torch.sigmoid, aten.sigmoid_backward, lambda found: torch.rsub(found, 1, alpha=2))
TANH = Saturating(torch.tanh, aten.tanh_backward, lambda found: -2 * found)


@dataclass(frozen=True)
class MaxPooled(_Linear):
    """Max pooling."""

    window: tuple[Any, ...]

    def forward(self, values: Tensor) -> tuple[Tensor, Kept]:
        """See :class:`Link`."""
        found, places = aten.max_pool2d_with_indices(values, *self.window)
        return found, (values, places)

    def push(self, tangent: Tensor, kept: Kept) -> Tensor:
        """See :class:`Link`."""
        places = kept[1]
        return tangent.flatten(2).gather(2, places.flatten(2)).view(places.shape)

    def pull(self, delta: Tensor, kept: Kept) -> Tensor:
        """See :class:`Link`."""
        values, places = kept
        return cast(Tensor, aten.max_pool2d_with_indices_backward(delta, values, *self.window, places))


@dataclass(frozen=True)
class MeanPooled(_Linear):
    """Average pooling; ``window`` is as torch's kernel takes it, from the kernel's size on."""

    window: tuple[Any, ...]

    def forward(self, values: Tensor) -> tuple[Tensor, Kept]:
        """See :class:`Link`."""
        return cast(Tensor, aten.avg_pool2d(values, *self.window)), values

    def push(self, tangent: Tensor, kept: Kept) -> Tensor:
        """See :class:`Link`."""
        return cast(Tensor, aten.avg_pool2d(tangent, *self.window))

    def pull(self, delta: Tensor, kept: Kept) -> Tensor:
        """See :class:`Link`."""
        return cast(Tensor, aten.avg_pool2d_backward(delta, kept, *self.window))


@dataclass(frozen=True)
class Convolution:
    """A convolution by weights ``(O, C, k, k)`` under names, perhaps with a bias ``(O,)``.

    It is computed as products of patches; where it is ``direct`` as of :mod:`fedpriv.attacks.gradients.chain`.
    """

    name: str
    weight: str
    bias: str | None
    kernel: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    direct: bool

    def patches(self, maps: Tensor) -> Tensor:
        """Return the patch under each output position, of maps ``(n, C, h, w)``: ``(n, C k k, L)``."""
        (high, wide), (down, across) = self.padding, self.dilation
        if high or wide:
            maps = functional.pad(maps, (wide, wide, high, high))
        spans = [far * (side - 1) + 1 for side, far in zip(self.kernel, self.dilation, strict=True)]
        # A copy of a view; torch's own unfolding goes image by image.
        seen = maps.unfold(2, spans[0], self.stride[0]).unfold(3, spans[1], self.stride[1])
        if max(self.dilation) > 1:
            seen = seen[..., ::down, ::across]
        places = seen.shape[2] * seen.shape[3]
        return seen.permute(0, 1, 4, 5, 2, 3).reshape(len(maps), -1, places)

    def folded(self, patches: Tensor, size: torch.Size) -> Tensor:
        """Return maps of the size ``(n, C, h, w)`` in which overlapping patches are summed."""
        return functional.fold(patches, size[2:], self.kernel, self.dilation, self.padding, self.stride)

    def sides(self, size: torch.Size) -> tuple[int, int]:
        """Return height and width of what comes out of maps ``(n, C, h, w)``."""
        spans = zip(size[2:], self.kernel, self.dilation, self.padding, self.stride, strict=True)
        high, wide = ((side + 2 * pad - far * (kernel - 1) - 1) // step + 1 for side, kernel, far, pad, step in spans)
        return high, wide


@dataclass(frozen=True)
class FullyConnected:
    """A linear layer on vectors, by a weight ``(O, I)`` under a name, perhaps with a bias ``(O,)``."""

    name: str
    weight: str
    bias: str | None


Layer = Convolution | FullyConnected
Chain = tuple[Link | Layer, ...]


def chain_of(model: nn.Module) -> Chain | None:
    """Return the links of a prepared model, whose layers that draw numbers are in evaluation; None where it is no chain.

    A chain is what passes each value on to one step only. All its steps are known, and each layer is passed once.
    """
    try:
        graph = fx.Tracer().trace(model)
    except Exception:
        return None
    links: list[Link | Layer] = []
    before: fx.Node | None = None
    for node in graph.nodes:
        if node.op == "get_attr":
            continue
        if node.op == "placeholder":
            if before is not None or len(node.users) != 1:
                return None
        elif node.op == "output":
            if node.args[0] is not before:
                return None
        else:
            found = _link(model, node, before)
            if found is None:
                return None
            links += found
        before = node
    links = _merged(links)
    layers = [link for link in links if isinstance(link, Layer)]
    named = [name for layer in layers for name in (layer.weight, layer.bias) if name is not None]
    # Each parameter is a layer's, and each layer is passed once.
    return tuple(links) if sorted(named) == sorted(name for name, _ in model.named_parameters()) else None


def _merged(links: list[Link | Layer]) -> list[Link | Layer]:
    """Return the links with one in place of each two that scale one after the other."""
    found: list[Link | Layer] = []
    for link in links:
        last = found[-1] if found else None
        if isinstance(link, Scaled) and isinstance(last, Scaled):
            found[-1] = Scaled(last.factor * link.factor, last.summand * link.factor + link.summand)
        else:
            found.append(link)
    return found


def _link(model: nn.Module, node: fx.Node, before: fx.Node | None) -> list[Link | Layer] | None:
    """Return the links of a node, nothing where it changes nothing; None where that is not known."""
    if not node.args or node.args[0] is not before or len(node.users) != 1:
        return None
    if node.op == "call_module":
        target = str(node.target)
        return _of_module(target, model.get_submodule(target)) if len(node.args) == 1 and not node.kwargs else None
    if len(node.args) == 1 and not node.kwargs and node.target in _FUNCTIONS:
        return [_FUNCTIONS[node.target]]
    if node.target in (torch.flatten, "flatten") and (node.args[1:], node.kwargs) in (
        ((1,), {}),
        ((), {"start_dim": 1}),
    ):
        return [Flat()]
    other = _constant(model, node.args[1]) if len(node.args) == 2 and not node.kwargs else None
    if other is None:
        return None
    if node.target is operator.matmul:
        return [Mapped(other)] if isinstance(other, Tensor) and other.dim() == 2 else None
    made = _ARITHMETIC.get(node.target)
    return None if made is None or (isinstance(other, Tensor) and other.dim() > 3) else [made(other)]


_FUNCTIONS: dict[Any, Link] = {
    **dict.fromkeys((torch.relu, functional.relu, "relu"), Rectified()),
    **dict.fromkeys((torch.sigmoid, functional.sigmoid, "sigmoid"), SIGMOID),
    **dict.fromkeys((torch.tanh, functional.tanh, "tanh"), TANH),
}

_ARITHMETIC: dict[Any, Callable[[Any], Link]] = {
    operator.add: lambda other: Scaled(1.0, other),
    operator.sub: lambda other: Scaled(1.0, -other),
    operator.mul: lambda other: Scaled(other, 0.0),
    operator.truediv: lambda other: Scaled(1 / other, 0.0),
}


def _constant(model: nn.Module, value: Any) -> Tensor | float | None:
    """Return the number or the buffer that an argument stands for; None for anything else."""
    if isinstance(value, (int, float)):
        return float(value)
    if not isinstance(value, fx.Node) or value.op != "get_attr":
        return None
    found: Any = model
    for part in str(value.target).split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, Tensor) and not isinstance(found, nn.Parameter) else None


def _of_module(name: str, module: nn.Module) -> list[Link | Layer] | None:
    """Return the link of a module, nothing where it changes nothing; None where it is not known."""
    bias = f"{name}.bias" if getattr(module, "bias", None) is not None else None
    if type(module) is nn.Identity or (
        isinstance(module, RANDOM) and isinstance(module, _DROPS) and not module.training
    ):
        return []
    if type(module) is nn.Linear:
        return [FullyConnected(name, f"{name}.weight", bias)]
    if type(module) is nn.Conv2d:
        padding = padding_of(module)
        if padding is None or module.groups > 1:
            return None
        sizes = module.kernel_size, module.dilation, padding, module.stride
        return [Convolution(name, f"{name}.weight", bias, *sizes, module.in_channels >= _SEVERAL)]
    if type(module) is nn.Flatten:
        return [Flat()] if (module.start_dim, module.end_dim) == (1, -1) else None
    if type(module) is nn.MaxPool2d:
        pooled = MaxPooled((module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode))
        return None if module.return_indices else [pooled]
    if type(module) is nn.AvgPool2d:
        window = tuple(_pair(side) for side in (module.kernel_size, module.stride, module.padding))
        return [MeanPooled((*window, module.ceil_mode, module.count_include_pad, module.divisor_override))]
    plain: dict[type, Link] = {nn.ReLU: Rectified(), nn.Sigmoid: SIGMOID, nn.Tanh: TANH}
    return [plain[type(module)]] if type(module) in plain else None


_DROPS = nn.modules.dropout._DropoutNd

_SEVERAL = 8
"""Input channels from which a convolution is faster directly than by its patches."""


def _pair(side: Any) -> list[int]:
    return list(side) if isinstance(side, tuple) else [int(side), int(side)]


def convolved(layer: Convolution, maps: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``(N, O, H, W)`` for maps ``(N, C, h, w)`` and a weight ``(O, C, k, k)`` that all share."""
    return _forward(layer, maps, weight, bias, 1)


def pulled(layer: Convolution, delta: Tensor, weight: Tensor, maps: Tensor) -> Tensor:
    """Return the derivative at maps ``(N, C, h, w)`` of what has the derivative ``(N, O, H, W)`` at :func:`convolved`."""
    return _backward(layer, delta, maps, weight, 1, (True, False))[0]


def convolved_by_row(layer: Convolution, maps: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
    """Return ``(R n, O, H, W)`` for maps ``(R, n, C, h, w)``, rows' own weights ``(R, O, C k k)`` and biases ``(R, O)``."""
    rows = len(maps)
    bias = None if biases is None else biases.flatten()
    return _apart(_forward(layer, _beside(maps), _grouped(layer, maps, weights), bias, rows), rows)


def pulled_by_row(layer: Convolution, delta: Tensor, weights: Tensor, maps: Tensor) -> Tensor:
    """Return the derivative ``(R n, C, h, w)`` at maps ``(R, n, C, h, w)``, from that at :func:`convolved_by_row`."""
    rows, grouped = len(maps), _grouped(layer, maps, weights)
    return _apart(_backward(layer, _beside(delta), _beside(maps), grouped, rows, (True, False))[0], rows)


def weights_by_row(layer: Convolution, delta: Tensor, maps: Tensor) -> Tensor:
    """Return the derivative ``(R, O, C k k)`` at each row's weights, from ``delta`` ``(R, n, O, H, W)``, by the n images."""
    rows, outputs = len(maps), delta.shape[2]
    like = maps.new_empty(1).expand(rows * outputs, maps.shape[2], *layer.kernel)
    found = _backward(layer, _beside(delta), _beside(maps), like, rows, (False, True))[1]
    return found.view(rows, outputs, -1)


def _forward(layer: Convolution, maps: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
    """Return ``(N, O, H, W)`` for maps ``(N, C, h, w)``."""
    geometry = layer.stride, layer.padding, layer.dilation
    return functional.conv2d(maps, weight, bias, *geometry, groups)


def _backward(
    layer: Convolution, delta: Tensor, maps: Tensor, weight: Tensor, groups: int, which: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    """Return the derivatives at maps ``(N, C, h, w)`` and at the weight, ``which`` of them are asked for."""
    geometry = list(layer.stride), list(layer.padding), list(layer.dilation)
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        delta, maps, weight, None, *geometry, False, [0, 0], groups, (*which, False)
    )
    return found[:2]


def _grouped(layer: Convolution, maps: Tensor, weights: Tensor) -> Tensor:
    return weights.reshape(-1, maps.shape[2], *layer.kernel)


def _beside(maps: Tensor) -> Tensor:
    """Return ``(R, n, C, h, w)`` as ``(n, R C, h, w)``."""
    rows, count, channels = maps.shape[:3]
    return maps.transpose(0, 1).reshape(count, rows * channels, *maps.shape[3:])


def _apart(maps: Tensor, rows: int) -> Tensor:
    """Return ``(n, R C, h, w)`` as ``(R n, C, h, w)``."""
    count, _, height, width = maps.shape
    return maps.view(count, rows, -1, height, width).transpose(0, 1).flatten(0, 1)
