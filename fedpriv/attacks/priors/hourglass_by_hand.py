"""The hourglasses of N rows with their derivatives by the weights, layer by layer as :mod:`by_hand` computes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedpriv.attacks.optim.row_adam import Taker
from fedpriv.attacks.priors import by_hand
from fedpriv.attacks.priors.by_hand import Back, Weight


class HandDrawn:
    """Draws images, and tells what the derivatives by the weights are.

    Args:
        weights: by name, each with the rows as its first axis; they may change in place.
        levels: of the hourglasses.
        slope: negative slope of their LeakyReLU.
        taker: who is told the derivatives while they are computed; None to have autograd return them.
    """

    def __init__(self, weights: Mapping[str, Tensor], levels: int, slope: float, taker: Taker | None) -> None:
        self._weights, self._levels, self._slope = weights, levels, slope
        self._told = None if taker is None else _told(weights, taker)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the images ``(1, N * c, H, W)`` before the sigmoid, of inputs ``(1, N * C, H, W)``.

        They can be differentiated once, by the weights; where derivatives are told, by the first of these, which is told.
        """
        leaves = list(self._weights.values())
        found: Tensor = _Drawn.apply(self, inputs, *(leaves if self._told is None else leaves[:1]))
        return found

    def forward(self, inputs: Tensor) -> tuple[Tensor, list[Back], _Gathered | None]:
        """Return images, the ways back from them, and who gathers the derivatives, if nobody is told."""
        gathered = _Gathered(len(self._weights)) if self._told is None else None
        own = self._told if gathered is None else _told(self._weights, gathered)
        assert own is not None
        maps, below = _level(inputs, 0, self._levels, own, self._slope)
        image, last = by_hand.convolve(maps, own["image.weight"], own["image.bias"])
        return image, [below, last], gathered


def _told(weights: Mapping[str, Tensor], taker: Taker) -> dict[str, Weight]:
    return {name: Weight(values.detach(), place, taker) for place, (name, values) in enumerate(weights.items())}


class _Gathered:
    """Derivatives, kept."""

    by_row = False

    def __init__(self, number: int) -> None:
        self.found: list[Tensor | None] = [None] * number

    def take(self, place: int, gradient: Tensor, row: int | None = None) -> None:
        """Keep a derivative."""
        self.found[place] = gradient


class _Drawn(torch.autograd.Function):
    """Forward and backward by hand."""

    @staticmethod
    def forward(ctx: Any, drawing: HandDrawn, inputs: Tensor, *leaves: Tensor) -> Tensor:
        """Return the images, and keep the way back."""
        ctx.leaves = [one.shape for one in leaves]
        image, ctx.ways, ctx.gathered = drawing.forward(inputs)
        return image

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        """Tell the derivatives by the weights, or return them."""
        if not ctx.ways:
            raise RuntimeError("derivatives of a deep image prior on a CPU are there once")
        while ctx.ways:
            delta = ctx.ways.pop()(delta)
        if ctx.gathered is None:
            return None, None, None
        return None, None, *(one.view(shape) for one, shape in zip(ctx.gathered.found, ctx.leaves, strict=True))


def _level(maps: Tensor, level: int, levels: int, weights: Mapping[str, Weight], slope: float) -> tuple[Tensor, Back]:
    """Return the maps that a level and all below it make, and the way back."""
    ways: list[Back] = []

    def noted(layer: tuple[Tensor, Back]) -> Tensor:
        ways.append(layer[1])
        return layer[0]

    def own(name: str) -> Weight:
        return weights[f"{level}.{name}.weight"]

    def norm(name: str) -> tuple[Weight, Weight]:
        return weights[f"{level}.{name}.scale"], weights[f"{level}.{name}.shift"]

    def activated(name: str, values: Tensor) -> Tensor:
        return noted(by_hand.activate(values, *norm(name), slope))

    ends = level == 0
    height, width = maps.shape[-2:]
    skip = activated("skip", noted(by_hand.convolve(maps, own("skip"), ends=ends)))
    deep = activated("down", noted(by_hand.convolve_and_halve(maps, own("down"), ends=ends)))
    deep = activated("inner", noted(by_hand.convolve(deep, own("inner"))))
    if level + 1 < levels:
        deep = noted(_level(deep, level + 1, levels, weights, slope))
    if height % 2 or width % 2:
        deep = noted(by_hand.double(deep, own("up").values.shape[0], height, width))
        up = noted(by_hand.convolve(noted(by_hand.normalise(deep, *norm("deeper"))), own("up")))
    else:  # repeating values changes neither mean nor variance
        deep = noted(by_hand.normalise(deep, *norm("deeper")))
        up = noted(by_hand.double_and_convolve(deep, own("up"), height, width))
    beside = noted(by_hand.convolve(noted(by_hand.normalise(skip, *norm("joined"))), own("beside")))
    joined = activated("up", up.add_(beside))
    result = activated("mix", noted(by_hand.convolve(joined, own("mix"))))

    def last(delta: Tensor) -> Tensor:
        return ways.pop()(delta)

    def back(delta: Tensor) -> Tensor:
        delta = last(last(last(delta)))  # the mix and the activation before it
        by_skip = last(last(delta))
        while len(ways) > 2:  # up and down
            delta = last(delta)
        by_skip = last(last(by_skip))
        return delta if ends else delta.add_(by_skip)

    return result, back
