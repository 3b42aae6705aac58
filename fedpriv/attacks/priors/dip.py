"""Deep image prior: an untrained network whose output is the image, one network a row, all computed as one.

The network is the hourglass with skips of Ulyanov, Vedaldi and Lempitsky, "Deep Image Prior" (CVPR 2018), its input a
fixed small noise. A level of the way down is convolution, pooling, batch norm, LeakyReLU, convolution, batch norm,
LeakyReLU; a skip is a 1 x 1 convolution of the level's input to a few channels; the way up doubles the deeper map,
joins the skip, and applies batch norm, convolution and 1 x 1 convolution; a last 1 x 1 convolution and a sigmoid give
the image.


Several images a row: a prior over M images at a time, each from a generator network of its own.
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

from fedpriv.attacks.priors.grouped import (
    RowDraws,
    convolve,
    convolve_and_halve,
    double,
    double_and_convolve,
    normal,
    normalise,
)
from fedpriv.util.errors import UserError

_SLOPE = 0.2
"""Negative slope of every LeakyReLU."""


def odd(number: int) -> bool:
    """True for an odd number: only then a kernel has a middle."""
    return number % 2 == 1


@dataclass(frozen=True)
class Hourglass:
    """Shape of the generator of one row.

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
    levels = 0
    while (side := (side + 1) // 2) >= 2:
        levels += 1
        if side == 2:
            break
    if not levels:
        raise UserError(f"images of {height}x{width}: the deep image prior needs at least 3x3 positions")
    return levels


class DeepImagePrior:
    """The generators of N rows: a prior for :func:`fedpriv.attacks.search.fit.fit`.

    Args:
        generators: N CPU generators, one a row; each draws its row's weights, input and noise.
        image_shape: (channels, height, width) of the images.
        shape: shape of each generator.
        device: where to compute. Draws are made on the CPU and moved.
    """

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        image_shape: tuple[int, int, int],
        shape: Hourglass,
        device: torch.device,
    ) -> None:
        self._shape = shape
        self._render: Callable[[Tensor], Tensor] = self._images
        self._device = device
        self._image_shape = image_shape
        _, height, width = image_shape
        self._widths = shape.channels[: levels_that_fit(height, width)]
        self._names: list[str] = []
        self.parameters: list[Tensor] = []
        for name, drawn in self._draw(generators).items():
            self._names.append(name)
            self.parameters.append(drawn.to(device).requires_grad_(name != "input"))
        self._input = self.parameters.pop(self._names.index("input"))
        self._names.remove("input")
        self._noise = RowDraws(generators, normal(*self._input.shape[1:]), device)

    def _draw(self, generators: Sequence[torch.Generator]) -> dict[str, Tensor]:
        """Draw each row's parameters as ``nn.Conv2d`` and ``nn.BatchNorm2d`` initialise theirs, then its input."""
        shape, rows = self._shape, len(generators)
        image_channels, height, width = self._image_shape
        found: dict[str, Tensor] = {}

        def uniform(bound: float, *size: int) -> Tensor:
            drawn = torch.empty(rows, *size)
            for own, generator in zip(drawn, generators, strict=True):
                own.uniform_(-bound, bound, generator=generator)
            return drawn

        def convolution(name: str, inputs: int, outputs: int, kernel: int, beside: int = 0) -> None:
            # No bias: the batch norm that follows takes it away again. ``beside`` counts inputs of the same sum that
            # have a weight of their own.
            bound = 1 / math.sqrt((inputs + beside) * kernel**2)
            found[f"{name}.weight"] = uniform(bound, outputs, inputs, kernel, kernel)

        def norm(name: str, size: int) -> None:
            found[f"{name}.scale"] = torch.ones(rows, size)
            found[f"{name}.shift"] = torch.zeros(rows, size)

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
        found["image.weight"] = uniform(bound, image_channels, self._widths[0], 1, 1)
        found["image.bias"] = uniform(bound, image_channels)
        inputs_of = [torch.rand(shape.input_channels, height, width, generator=generator) for generator in generators]
        found["input"] = torch.stack(inputs_of) * shape.input_scale
        return found

    def named_parameters(self) -> dict[str, Tensor]:
        """Return the weights by name, each with the rows as its first axis."""
        return dict(zip(self._names, self.parameters, strict=True))

    def inputs(self) -> Tensor:
        """Return the fixed inputs without noise, ``(N, input channels, h, w)``."""
        return self._input

    def prepare(self, progress: float) -> Hashable:
        """Draw the noise of this iteration; all are alike."""
        self._noise.advance()
        return 0

    def shown(self, moving: Tensor) -> Tensor:
        """Return the images ``(N, c, h, w)`` of this iteration, from the input with fresh noise where a row is moving."""
        fresh = moving.to(self._input.dtype).view(-1, 1, 1, 1)
        noisy = torch.addcmul(self._input, self._noise.present, fresh, value=self._shape.input_noise)
        return self._render(noisy)

    def clean(self) -> Tensor:
        """Return the images ``(N, c, h, w)`` of the present weights, made from the input without noise."""
        return self._render(self._input)

    def penalty(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return zeros ``(N,)``: the network itself is the prior."""
        return images.new_zeros(len(images))

    def project(self) -> None:
        """Leave the weights as they are: they are free."""

    def compile(self) -> None:
        """Have the networks compiled, anew for every number of rows."""
        self._render = torch.compile(self._images, dynamic=False)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, ``rows`` being int64 positions on the CPU."""
        there = rows.to(self._device)
        self._noise.keep(rows)
        self._input = self._input[there]
        self.parameters = [values.detach()[there].requires_grad_() for values in self.parameters]

    def _images(self, inputs: Tensor) -> Tensor:
        rows, flat = len(inputs), inputs.flatten(0, 1).unsqueeze(0)
        weights = self.named_parameters()
        maps = self._level(flat, 0, weights)
        image = convolve(maps, weights["image.weight"], weights["image.bias"])
        return torch.sigmoid(image).reshape(rows, *self._image_shape)

    def _level(self, maps: Tensor, level: int, weights: dict[str, Tensor]) -> Tensor:
        def norm(name: str, values: Tensor) -> Tensor:
            return normalise(values, weights[f"{level}.{name}.scale"], weights[f"{level}.{name}.shift"])

        def activate(name: str, values: Tensor) -> Tensor:
            return functional.leaky_relu_(norm(name, values), _SLOPE)

        def weight(name: str) -> Tensor:
            return weights[f"{level}.{name}.weight"]

        skip = activate("skip", convolve(maps, weight("skip")))
        deep = activate("down", convolve_and_halve(maps, weight("down")))
        deep = activate("inner", convolve(deep, weight("inner")))
        if level + 1 < len(self._widths):
            deep = self._level(deep, level + 1, weights)
        height, width = maps.shape[-2:]
        if height % 2 or width % 2:
            up = convolve(norm("deeper", double(deep, len(weight("up")), height, width)), weight("up"))
        else:  # repeating values changes neither mean nor variance
            up = double_and_convolve(norm("deeper", deep), weight("up"), height, width)
        joined = up + convolve(norm("joined", skip), weight("beside"))
        return activate("mix", convolve(activate("up", joined), weight("mix")))


class SeveralImages:
    """M deep image priors for each of N rows, all N x M networks computed as one.

    For :func:`fedpriv.attacks.search.fit.fit` a row is one picture ``(M * c, h, w)``, its M images one after the
    other along the channels, so that the row has one objective, one stop rule and one running mean.

    Args:
        generators: N lists of M CPU generators, one an image.
        image_shape: (channels, height, width) of one image.
        shape: shape of each generator network.
        device: where to compute.
    """

    def __init__(
        self,
        generators: Sequence[Sequence[torch.Generator]],
        image_shape: tuple[int, int, int],
        shape: Hourglass,
        device: torch.device,
    ) -> None:
        self._images = len(generators[0])
        self._flat = DeepImagePrior([one for row in generators for one in row], image_shape, shape, device)
        self.parameters = self._by_row()

    def prepare(self, progress: float) -> Hashable:
        """Draw the noise of this iteration; all are alike."""
        return self._flat.prepare(progress)

    def shown(self, moving: Tensor) -> Tensor:
        """Return this iteration's pictures ``(N, M * c, h, w)``, from inputs with fresh noise where a row is moving."""
        return self._pictures(self._hand_over().shown(moving.repeat_interleave(self._images)))

    def clean(self) -> Tensor:
        """Return the pictures ``(N, M * c, h, w)`` of the present weights, made from inputs without noise."""
        return self._pictures(self._hand_over().clean())

    def penalty(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return zeros ``(N,)``: the networks themselves are the prior."""
        return images.new_zeros(len(images))

    def project(self) -> None:
        """Leave the weights as they are: they are free."""

    def compile(self) -> None:
        """Have the networks compiled from now on."""
        self._flat.compile()

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, ``rows`` being int64 positions on the CPU."""
        members = rows[:, None] * self._images + torch.arange(self._images)
        self._hand_over().keep(members.flatten())
        self.parameters = self._by_row()

    def _by_row(self) -> list[Tensor]:
        # The optimiser needs one leaf for each weight whose first axis is the rows.
        return [values.detach().unflatten(0, (-1, self._images)).requires_grad_() for values in self._flat.parameters]

    def _hand_over(self) -> DeepImagePrior:
        self._flat.parameters = [values.flatten(0, 1) for values in self.parameters]
        return self._flat

    def _pictures(self, images: Tensor) -> Tensor:
        rows, (_, channels, height, width) = len(images) // self._images, images.shape
        return images.reshape(rows, self._images * channels, height, width)
