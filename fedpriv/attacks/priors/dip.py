"""Deep image prior: an untrained network whose output is the image, one network an image, all computed as one.

The network is the hourglass with skips of Ulyanov, Vedaldi and Lempitsky, "Deep Image Prior" (CVPR 2018), its input a
fixed small noise. A level of the way down is convolution, pooling, batch norm, LeakyReLU, convolution, batch norm,
LeakyReLU; a skip is a 1 x 1 convolution of the level's input to a few channels; the way up doubles the deeper map,
joins the skip, and applies batch norm, convolution and 1 x 1 convolution; a last 1 x 1 convolution and a sigmoid give
the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, MinLen, Predicate
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.priors.grouped import RowDraws, convolve, double, normal, normalise
from fedpriv.attacks.search.fit import Prior
from fedpriv.util.errors import UserError

_SLOPE = 0.2
"""Negative slope of every LeakyReLU."""


def odd(number: int) -> bool:
    """True for an odd number: only then a kernel has a middle."""
    return number % 2 == 1


@dataclass(frozen=True)
class Hourglass:
    """Shape of the generator of one image.

    Attributes:
        channels: channels of each level, down and up alike. Levels that would leave a map of one position are left
            out: batch norm of a single value is its shift, whatever the input.
        kernel: odd side of the convolutions.
        skip: channels of a skip.
        input_channels: channels of the fixed input, drawn from U(0, ``input_scale``).
        input_scale: upper end of that distribution.
        input_noise: standard deviation of the Gaussian noise added to the input anew in each iteration.
    """

    channels: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] = (16, 32, 64, 128)
    kernel: Annotated[int, Ge(1), Predicate(odd)] = 3
    skip: Annotated[int, Ge(1)] = 4
    input_channels: Annotated[int, Ge(1)] = 32
    input_scale: Annotated[float, Gt(0)] = 0.1
    input_noise: Annotated[float, Ge(0)] = 0.03


def levels_that_fit(height: int, width: int) -> int:
    """Return the number of halvings (rounding up) that leave at least 2 x 2 positions.

    Raises:
        UserError: when not even one does.
    """
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

    A row is one picture ``(M * c, h, w)``, its images one after the other along the channels, so that it has one objective,
    one stop rule and one running mean.

    Args:
        generators: N * M CPU generators, row by row; each draws its image's weights, input and noise.
        image_shape: (channels, height, width) of an image.
        shape: shape of each generator.
        device: where to compute. Draws are made on the CPU and moved.
        images: M.
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
        self._render: Callable[[Tensor], Tensor] = self._pictures
        self._widths = shape.channels[: levels_that_fit(*image_shape[1:])]
        drawn = {name: values.to(device) for name, values in self._draw(generators).items()}
        self._input = drawn.pop("input")
        self._names = list(drawn)
        self.parameters = [values.unflatten(0, (-1, images)).requires_grad_() for values in drawn.values()]
        self._noise = RowDraws(generators, normal(*self._input.shape[1:]), device)

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
            for name, before, after, kernel in (
                ("skip", inputs, shape.skip, 1),
                ("down", inputs, size, shape.kernel),
                ("inner", size, size, shape.kernel),
                ("mix", size, size, 1),
            ):
                convolution(f"{level}.{name}", before, after, kernel)
                norm(f"{level}.{name}", after)
            # The way up convolves the skip joined to the deeper map; each has its part of the norm and of the weight.
            convolution(f"{level}.up", deeper, size, shape.kernel, beside=shape.skip)
            convolution(f"{level}.beside", shape.skip, size, shape.kernel, beside=deeper)
            norm(f"{level}.up", size)
            norm(f"{level}.deeper", deeper)
            norm(f"{level}.joined", shape.skip)
            inputs = size
        bound = 1 / math.sqrt(self._widths[0])
        drawn["image.weight"] = uniform(bound, image_channels, self._widths[0], 1, 1)
        drawn["image.bias"] = uniform(bound, image_channels)
        starts = [torch.rand(shape.input_channels, height, width, generator=generator) for generator in generators]
        drawn["input"] = torch.stack(starts) * shape.input_scale
        return drawn

    def named_parameters(self) -> dict[str, Tensor]:
        """Return the weights by name, each with the N * M images as its first axis."""
        return {name: values.flatten(0, 1) for name, values in zip(self._names, self.parameters, strict=True)}

    def inputs(self) -> Tensor:
        """Return the fixed inputs without noise, ``(N * M, input channels, h, w)``."""
        return self._input

    def prepare(self, progress: float) -> Hashable:
        """Draw the noise of this iteration; all are alike."""
        self._noise.advance()
        return 0

    def shown(self, moving: Tensor) -> Tensor:
        """Return the pictures ``(N, M * c, h, w)`` of this iteration, from inputs with fresh noise where a row is moving."""
        fresh = moving.to(self._input.dtype).repeat_interleave(self._count).view(-1, 1, 1, 1)
        return self._render(torch.addcmul(self._input, self._noise.present, fresh, value=self._shape.input_noise))

    def clean(self) -> Tensor:
        """Return the pictures ``(N, M * c, h, w)`` of the present weights, made from inputs without noise."""
        return self._render(self._input)

    def compile(self) -> None:
        """Have the networks compiled, anew for every number of rows."""
        self._render = torch.compile(self._pictures, dynamic=False)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, ``rows`` being int64 positions on the CPU."""
        images = (rows[:, None] * self._count + torch.arange(self._count)).flatten()
        self._noise.keep(images)
        self._input = self._input[images.to(self._input.device)]

    def _pictures(self, inputs: Tensor) -> Tensor:
        channels, height, width = self._image_shape
        weights = self.named_parameters()
        maps = self._level(inputs.flatten(0, 1).unsqueeze(0), 0, weights)
        image = convolve(maps, weights["image.weight"], weights["image.bias"])
        return torch.sigmoid(image).reshape(-1, self._count * channels, height, width)

    def _level(self, maps: Tensor, level: int, weights: dict[str, Tensor]) -> Tensor:
        def norm(name: str, values: Tensor) -> Tensor:
            return normalise(values, weights[f"{level}.{name}.scale"], weights[f"{level}.{name}.shift"])

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
