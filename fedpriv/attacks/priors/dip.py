"""Deep image prior: an untrained network whose output is the image, one network an image, all computed as one.

The network is the hourglass with skips of Ulyanov, Vedaldi and Lempitsky, "Deep Image Prior" (CVPR 2018), its input a
fixed small noise. A level of the way down is convolution, pooling, batch norm, LeakyReLU, convolution, batch norm,
LeakyReLU; a skip is a 1 x 1 convolution of the level's input to a few channels; the way up doubles the deeper map,
joins the skip, and applies batch norm, convolution and 1 x 1 convolution; a last 1 x 1 convolution and a sigmoid give
the image.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, MinLen
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.search.fit import Prior
from fedpriv.util.errors import UserError

_SLOPE = 0.2  # negative slope of every LeakyReLU
_INPUT = 0.1  # upper end of the uniform distribution of the fixed input
_MANY = 64  # rows from which a GPU convolves them by products of matrices

_THREADS = 8
"""Threads that draw noise on the CPU for a GPU, which would wait for one."""

SMALL_MAP = 16
"""Positions up to which a convolution is faster as one matrix product a row (weights outweigh the map there)."""


@dataclass(frozen=True)
class Hourglass:
    """Shape of the generator of one image.

    Attributes:
        channels: channels of each level, down and up alike. Levels that would leave a map of one position are left
            out: batch norm of a single value is its shift, whatever the input.
        skip: channels of a skip.
        input_channels: channels of the fixed input, drawn from U(0, 0.1).
        input_noise: standard deviation of the Gaussian noise added to the input anew in each iteration.
    """

    channels: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] = (16, 32, 64, 128)
    skip: Annotated[int, Ge(1)] = 4
    input_channels: Annotated[int, Ge(1)] = 32
    input_noise: Annotated[float, Ge(0)] = 0.03


def levels_that_fit(height: int, width: int) -> int:
    """Return the number of halvings (rounding up) that leave at least 2 x 2 positions; refuse none."""
    side = min(height, width)
    if side < 3:
        raise UserError(f"images of {height}x{width}: the deep image prior needs at least 3x3 positions")
    return (side - 1).bit_length() - 1


def bytes_of_generator(shape: Hourglass, image_shape: tuple[int, int, int]) -> int:
    """Estimate the memory that one image's generator takes while it is fitted."""
    _, height, width = image_shape
    channels = shape.channels
    pairs = zip((*channels[1:], channels[-1]), channels, strict=True)
    # Weights with gradient and Adam's moments, and every map once forward and once backward.
    weights = 4 * sum((2 * before + after + 200) * 9 * after for before, after in pairs)
    maps = 2 * 12 * height * width * (shape.input_channels + channels[0])
    return 4 * (weights + maps)


class DeepImagePrior(Prior):
    """The generators of N rows of M images, all N x M networks computed as one.

    A row is one picture ``(M * c, h, w)``, its images along the channels, with one objective, stop rule and running mean.
    Each of N * M CPU generators draws its image's weights, input and noise.
    """

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        image_shape: tuple[int, int, int],
        shape: Hourglass,
        device: torch.device,
        images: int = 1,
    ) -> None:
        self._shape, self._image_shape, self._count = shape, image_shape, images
        self._widths = shape.channels[: levels_that_fit(*image_shape[1:])]
        drawn = {name: values.to(device) for name, values in self._draw(generators).items()}
        self._input = drawn.pop("input")
        self._names = list(drawn)
        self.parameters = [values.unflatten(0, (-1, images)).requires_grad_() for values in drawn.values()]
        self._generators = list(generators)
        self._noise = torch.empty(0, device=device)

    def _draw(self, generators: Sequence[torch.Generator]) -> dict[str, Tensor]:
        """Draw each image's parameters as ``nn.Conv2d`` and ``nn.BatchNorm2d`` initialise theirs, then its input."""
        shape, number = self._shape, len(generators)
        image_channels, height, width = self._image_shape
        drawn: dict[str, Tensor] = {}

        def uniform(bound: float, *size: int) -> Tensor:
            values = torch.empty(number, *size)
            for part, generator in zip(values, generators, strict=True):
                part.uniform_(-bound, bound, generator=generator)
            return values

        def convolution(name: str, inputs: int, outputs: int, kernel: int, beside: int = 0) -> None:
            # No bias: the batch norm that follows takes it away again. ``beside`` counts inputs of the same sum that
            # have a weight of their own.
            bound = 1 / math.sqrt((inputs + beside) * kernel**2)
            drawn[f"{name}.weight"] = uniform(bound, outputs, inputs, kernel, kernel)

        def norm(name: str, size: int) -> None:
            drawn[f"{name}.scale"] = torch.ones(number, size)
            drawn[f"{name}.shift"] = torch.zeros(number, size)

        inputs = shape.input_channels
        for level, size in enumerate(self._widths):
            deeper = self._widths[min(level + 1, len(self._widths) - 1)]
            parts = (
                ("skip", inputs, shape.skip, 1),
                ("down", inputs, size, 3),
                ("inner", size, size, 3),
                ("mix", size, size, 1),
            )
            for name, before, after, kernel in parts:
                convolution(f"{level}.{name}", before, after, kernel)
                norm(f"{level}.{name}", after)
            # The way up convolves the skip joined to the deeper map; each has its part of the norm and of the weight.
            convolution(f"{level}.up", deeper, size, 3, beside=shape.skip)
            convolution(f"{level}.beside", shape.skip, size, 3, beside=deeper)
            norm(f"{level}.up", size)
            norm(f"{level}.deeper", deeper)
            norm(f"{level}.joined", shape.skip)
            inputs = size
        bound = 1 / math.sqrt(self._widths[0])
        drawn["image.weight"] = uniform(bound, image_channels, self._widths[0], 1, 1)
        drawn["image.bias"] = uniform(bound, image_channels)
        starts = [torch.rand(shape.input_channels, height, width, generator=generator) for generator in generators]
        drawn["input"] = torch.stack(starts) * _INPUT
        return drawn

    def named_parameters(self) -> dict[str, Tensor]:
        """Return the weights by name, each with the N * M images as its first axis."""
        return {name: values.flatten(0, 1) for name, values in zip(self._names, self.parameters, strict=True)}

    def prepare(self, progress: float) -> Hashable:
        """Draw the noise of this iteration; all are alike."""
        # Drawn on the CPU, so that every device sees the same numbers; recorded steps read them in the same memory.
        drawn = noise(self._generators, self._input.shape[1:], _THREADS if self._noise.is_cuda else 1)
        if self._noise.is_cuda:  # from pinned memory the copy does not wait for the device
            drawn = drawn.pin_memory()
        if self._noise.shape == drawn.shape:
            self._noise.copy_(drawn, non_blocking=True)
        else:
            self._noise = drawn.to(self._noise.device, non_blocking=True)
        return 0

    def shown(self, moving: Tensor) -> Tensor:
        """Return the pictures ``(N, M * c, h, w)`` of this iteration, from inputs with fresh noise where a row is moving."""
        fresh = moving.to(self._input.dtype).repeat_interleave(self._count).view(-1, 1, 1, 1)
        return self._pictures(torch.addcmul(self._input, self._noise, fresh, value=self._shape.input_noise))

    def clean(self) -> Tensor:
        """Return the pictures ``(N, M * c, h, w)`` of the present weights, made from inputs without noise."""
        return self._pictures(self._input)

    def keep(self, rows: Tensor) -> None:
        images = (rows[:, None] * self._count + torch.arange(self._count)).flatten()
        self._generators = [self._generators[image] for image in images.tolist()]
        self._input = self._input[images.to(self._input.device)]

    def _pictures(self, inputs: Tensor) -> Tensor:
        channels, height, width = self._image_shape
        weights = self.named_parameters()
        maps = self._level(inputs.flatten(0, 1).unsqueeze(0), 0, weights)
        image = convolve(maps, weights["image.weight"], weights["image.bias"])
        return torch.sigmoid(image).reshape(-1, self._count * channels, height, width)

    def _level(self, maps: Tensor, level: int, weights: dict[str, Tensor]) -> Tensor:
        def norm(name: str, values: Tensor) -> Tensor:
            scale, shift = (weights[f"{level}.{name}.{part}"].flatten() for part in ("scale", "shift"))
            return functional.batch_norm(values, None, None, scale, shift, training=True)

        def activate(name: str, values: Tensor) -> Tensor:
            return functional.leaky_relu_(norm(name, values), _SLOPE)

        def weight(name: str) -> Tensor:
            return weights[f"{level}.{name}.weight"]

        skip = activate("skip", convolve(maps, weight("skip")))
        down = functional.avg_pool2d(convolve(maps, weight("down")), 2, ceil_mode=True)
        deep = activate("inner", convolve(activate("down", down), weight("inner")))
        if level + 1 < len(self._widths):
            deep = self._level(deep, level + 1, weights)
        height, width = maps.shape[-2:]
        number = len(weight("up"))
        if height % 2 or width % 2:
            doubled = norm("deeper", double(deep, number, height, width))
        else:  # repeating values changes neither mean nor variance
            doubled = double(norm("deeper", deep), number, height, width)
        up = convolve(doubled, weight("up")) + convolve(norm("joined", skip), weight("beside"))
        return activate("mix", convolve(activate("up", up), weight("mix")))


def noise(generators: Sequence[torch.Generator], shape: Sequence[int], threads: int = 1) -> Tensor:
    """Return standard normal numbers ``(N, *shape)``, a row from each of N generators, drawn by several threads."""
    drawn = torch.empty(len(generators), *shape)

    def draw(first: int) -> None:
        for row in range(first, len(generators), threads):
            drawn[row].normal_(generator=generators[row])

    if threads == 1:
        draw(0)
    else:
        list(_pool(threads).map(draw, range(threads)))
    return drawn


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


def convolve(maps: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve maps ``(1, N * I, H, W)``, a group a row, with stride 1 and zero padding that keeps the size.

    By weights ``(N, O, I, k, k)``, k odd, and bias ``(N, O)`` or None: ``(1, N * O, H, W)``.
    """
    rows, out_channels, in_channels, kernel, _ = weight.shape
    height, width = maps.shape[-2:]
    positions = height * width
    if kernel > 1 and positions > SMALL_MAP and not as_products(rows, maps.device):
        flat_bias = None if bias is None else bias.flatten()
        return _convolve_groups(maps, weight.flatten(0, 1), flat_bias, kernel // 2, rows)
    if kernel == 1:
        patches = maps.view(rows, in_channels, positions)
    elif positions > SMALL_MAP:
        padded = functional.pad(maps, (kernel // 2,) * 4)
        windows = padded.unfold(2, kernel, 1).unfold(3, kernel, 1)[0]  # (N * I, H, W, k, k)
        patches = windows.permute(0, 3, 4, 1, 2).reshape(rows, -1, positions)
    else:
        # Neighbours are gathered by a product with zeros and ones: the same numbers, without a loop over rows.
        patches = maps.view(rows, in_channels, positions) @ neighbours(height, width, kernel, maps.device)
        patches = patches.view(rows, in_channels * kernel**2, positions)
    matrix = weight.flatten(2)
    product = torch.bmm(matrix, patches) if bias is None else torch.baddbmm(bias.unsqueeze(2), matrix, patches)
    return product.view(1, rows * out_channels, height, width)


def as_products(rows: int, device: torch.device) -> bool:
    """True where convolutions are computed as products of matrices: a GPU's library is slow for many groups."""
    return rows >= _MANY and device.type == "cuda"


def _convolve_groups(maps: Tensor, weight: Tensor, bias: Tensor | None, padding: int, rows: int) -> Tensor:
    """Convolve, a group a row; a row alone by the algorithm that a CPU takes for several, so that it rounds alike."""
    if rows > 1 or maps.device.type != "cpu" or maps.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return functional.conv2d(maps, weight, bias, padding=padding, groups=rows)
    alone: Tensor = torch.ops.aten.mkldnn_convolution(maps, weight, bias, [padding] * 2, [1, 1], [1, 1], 1)
    return alone


@functools.cache
def neighbours(height: int, width: int, kernel: int, device: torch.device) -> Tensor:
    """Return zeros and ones ``(H * W, k * k * H * W)`` that take a map to its zero-padded k x k neighbourhoods."""
    each = torch.eye(height * width).view(1, -1, height, width)
    return functional.unfold(each, kernel, padding=kernel // 2).view(height * width, -1).to(device)


def double(maps: Tensor, rows: int, height: int, width: int) -> Tensor:
    """Repeat every position of ``rows`` rows' maps 2 x 2 (nearest upsampling) and crop to ``height`` x ``width``."""
    # A batch of one is taken for another memory layout, and copied there and back.
    by_row = maps.view(rows, -1, *maps.shape[-2:])
    doubled = functional.interpolate(by_row, scale_factor=2, mode="nearest")[:, :, :height, :width]
    return doubled.reshape(1, -1, height, width)
