"""Distances of a chain's gradients from wanted ones, and the direction in which each distance grows.

The gradient of a fully connected layer over one step's n images is a sum of n products, one an image, so its rank is n at
most: products of vectors with it by its factors cost as much as those with n vectors of either side. Factors: Halko,
Martinsson and Tropp, "Finding structure with randomness" (SIAM Review 53, 217-288, 2011), algorithm 4.3 with one power
iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedpriv.attacks.gradients.chain import (
    Convolution,
    FullyConnected,
    Layer,
    convolved_by_row,
    pulled_by_row,
    weights_by_row,
)
from fedpriv.attacks.gradients.row_gradients import FormedGradient, cosine_distance, squared_distance
from fedpriv.attacks.inputs.updates import SentEntries, Tangent, Weights

_BESIDE = 4
"""Factors beyond those that are asked for."""

_LEFT_OUT = 1e-4
"""Share of a matrix's norm that its factors may leave out. What differences of weights leave of a gradient is rounding of
about that size; no sum of as few products has a part in it."""


@dataclass(frozen=True)
class WantedMatrix:
    """Matrices T of R rows.

    Attributes:
        dense: ``(R, O, I)``.
        left: ``(R, O, k)`` with orthonormal columns; None where T is no product of few.
        right: ``(R, k, I)``.
    """

    dense: Tensor
    left: Tensor | None = None
    right: Tensor | None = None

    def times(self, inputs: Tensor) -> Tensor:
        """Return ``a T'`` ``(R, n, O)`` for ``(R, n, I)``."""
        if self.left is None or self.right is None:
            return torch.bmm(inputs, self.dense.mT)
        return torch.bmm(torch.bmm(inputs, self.right.mT), self.left.mT)

    def transposed(self, delta: Tensor) -> Tensor:
        """Return ``d T`` ``(R, n, I)`` for ``(R, n, O)``."""
        if self.left is None or self.right is None:
            return torch.bmm(delta, self.dense)
        return torch.bmm(torch.bmm(delta, self.left), self.right)


def wanted_matrix(dense: Tensor, count: int) -> WantedMatrix:
    """Return matrices ``(R, O, I)`` by their factors where little more than ``count`` make up each of them."""
    number, (height, width) = count + _BESIDE, dense.shape[1:]
    if 4 * number * (height + width) > height * width or not len(dense):
        return WantedMatrix(dense)
    draw = torch.randn(width, number, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    onto, lefts, rights = draw.to(dense), [], []
    for own in dense:  # all rows' copies in twice the precision would take as much memory again
        held = own.double()
        left = torch.linalg.qr(held @ (held.T @ (held @ onto.double())))[0]
        right = left.T @ held
        apart = (held.square().sum() - right.square().sum()).clamp_min(0)
        if not bool(apart <= _LEFT_OUT**2 * held.square().sum()):
            return WantedMatrix(dense)
        lefts.append(left.to(dense.dtype))
        rights.append(right.to(dense.dtype))
    return WantedMatrix(dense, torch.stack(lefts), torch.stack(rights))


Kind = Literal["squared", "cosine"]
"""The distance of two gradients: squared L2, or one minus the cosine."""

_TINY = 1e-30


@dataclass
class Factors:
    """Factors whose product is the gradient of one layer's weight, for R rows of n images.

    Attributes:
        layer: whose.
        inputs: ``(R, n, I)`` what went in, or the patches ``(R, n, K, L)`` of a convolution, or the maps ``(R, n, C, h, w)``
            where it is direct.
        delta: ``(R, n, O)``, ``(R, n, O, L)`` or ``(R, n, O, H, W)`` the derivative of the row's loss at what came out.
    """

    layer: Layer
    inputs: Tensor
    delta: Tensor = field(default_factory=lambda: torch.empty(0))

    def product(self) -> Tensor:
        """Return the gradient ``(R, O, I)`` or ``(R, O, K)``."""
        if isinstance(self.layer, FullyConnected):
            return torch.bmm(self.delta.mT, self.inputs)
        if isinstance(self.layer, Convolution) and self.layer.direct:
            return weights_by_row(self.layer, self.delta, self.inputs)
        found = torch.bmm(self.delta.flatten(0, 1), self.inputs.flatten(0, 1).mT)
        return found if self.inputs.shape[1] == 1 else found.unflatten(0, self.inputs.shape[:2]).sum(1)

    def bias(self) -> Tensor:
        """Return the gradient of the bias ``(R, O)``."""
        return self.delta.sum((1, *range(3, self.delta.dim())))

    def applied(self, matrix: Tensor, bias: Tensor | None) -> Tensor:
        """Return the products of matrices ``(R, O, I)`` or ``(R, O, K)`` and biases ``(R, O)`` with what went in.

        It is ``(R n, O)``, ``(R n, O, L)`` or ``(R n, O, H, W)``.
        """
        if isinstance(self.layer, FullyConnected):
            factors = self.inputs, matrix.mT
            found = torch.bmm(*factors) if bias is None else torch.baddbmm(bias.unsqueeze(1), *factors)
            return found.flatten(0, 1)
        if isinstance(self.layer, Convolution) and self.layer.direct:
            return convolved_by_row(self.layer, self.inputs, matrix, bias)
        factors = self._for_images(matrix), self.inputs.flatten(0, 1)
        return torch.bmm(*factors) if bias is None else torch.baddbmm(self._for_images(bias).unsqueeze(2), *factors)

    def transposed(self, matrix: Tensor) -> Tensor:
        """Return the products of transposed matrices with the derivatives.

        It is ``(R n, I)``, or of patches ``(R n, K, L)``, or of maps ``(R n, C, h, w)``.
        """
        if isinstance(self.layer, FullyConnected):
            return torch.bmm(self.delta, matrix).flatten(0, 1)
        if isinstance(self.layer, Convolution) and self.layer.direct:
            return pulled_by_row(self.layer, self.delta, matrix, self.inputs)
        return torch.bmm(self._for_images(matrix).mT, self.delta.flatten(0, 1))

    def _for_images(self, matrix: Tensor) -> Tensor:
        return matrix if self.inputs.shape[1] == 1 else matrix.repeat_interleave(self.inputs.shape[1], 0)


@dataclass(frozen=True)
class _Comparable:
    """Factors of the comparable part of a linear layer's gradient: all of it, or its projection onto a tangent space.

    With what is beside a truncated upload's directions, ``d = delta - delta U U'`` and ``b = a - a V' V``, that projection
    is ``delta' a - d' b``: a product of twice as many factors, for the price of a few products of vectors by U and V.

    Attributes:
        inputs: ``(R, m, I)``.
        delta: ``(R, m, O)``.
    """

    inputs: Tensor
    delta: Tensor

    @property
    def narrow(self) -> bool:
        """True where inner products are cheaper by the factors than by their product."""
        _, count, width = self.inputs.shape
        height = self.delta.shape[2]
        return count * (width + height) < width * height

    def product(self) -> Tensor:
        """Return the comparable part ``(R, O, I)``."""
        return torch.bmm(self.delta.mT, self.inputs)

    def square(self) -> Tensor:
        """Return its sum of squares ``(R,)``, by the factors."""
        alike = torch.bmm(self.inputs, self.inputs.mT), torch.bmm(self.delta, self.delta.mT)
        return _inner(alike[0].flatten(1), alike[1].flatten(1))


@dataclass(frozen=True)
class _Rest:
    """``T - c K`` of a linear layer with comparable part K, never formed, with c ``(R, 1, 1)``; ``met`` is ``a T'``."""

    wanted: WantedMatrix
    share: Tensor
    met: Tensor
    part: _Comparable

    def applied(self, of: Factors, bias: Tensor | None) -> Tensor:
        alike = torch.bmm(of.inputs, self.part.inputs.mT)
        met = self.met if bias is None else self.met + bias.unsqueeze(1)
        return torch.addcmul(met, torch.bmm(alike, self.part.delta), self.share, value=-1).flatten(0, 1)

    def transposed(self, of: Factors) -> Tensor:
        alike = torch.bmm(of.delta, self.part.delta.mT)
        found = self.wanted.transposed(of.delta)
        return torch.addcmul(found, torch.bmm(alike, self.part.inputs), self.share, value=-1).flatten(0, 1)


@dataclass(frozen=True)
class _Apart:
    """``K - T`` of a linear layer with comparable part ``K = e' b`` and T = L R of few factors, never formed.

    With columns of L orthonormal, ``K - T = L ((e L)' b - R) + (e - e L L')' b``: two parts at right angles, so that neither
    is lost in the other's rounding where they are nearly nothing.

    Attributes:
        left: ``(R, O, k)``, L.
        near: ``(R, k, I)``, ``(e L)' b - R``.
        beside: ``(R, m, O)``, ``e - e L L'``.
        inputs: ``(R, m, I)``, b.
    """

    left: Tensor
    near: Tensor
    beside: Tensor
    inputs: Tensor

    @classmethod
    def of(cls, left: Tensor, right: Tensor, part: _Comparable) -> _Apart:
        along = torch.bmm(part.delta, left)
        near = torch.baddbmm(right, along.mT, part.inputs, beta=-1)
        return cls(left, near, torch.baddbmm(part.delta, along, left.mT, alpha=-1), part.inputs)

    def square(self) -> Tensor:
        """Return the sum of squares ``(R,)``."""
        return _inner(self.near.flatten(1), self.near.flatten(1)) + _Comparable(self.inputs, self.beside).square()

    def applied(self, of: Factors, bias: Tensor | None) -> Tensor:
        turned = torch.bmm(of.inputs, self.near.mT), self.left.mT
        found = torch.bmm(*turned) if bias is None else torch.baddbmm(bias.unsqueeze(1), *turned)
        return torch.baddbmm(found, torch.bmm(of.inputs, self.inputs.mT), self.beside).flatten(0, 1)

    def transposed(self, of: Factors) -> Tensor:
        found = torch.bmm(torch.bmm(of.delta, self.left), self.near)
        return torch.baddbmm(found, torch.bmm(of.delta, self.beside.mT), self.inputs).flatten(0, 1)


@dataclass(frozen=True)
class Direction:
    """Matrices of R rows, one a layer, along which the distance grows, up to a factor a row.

    Attributes:
        factors: of every layer.
        weights: by the weight's name, ``(R, O, I)`` or ``(R, O, K)``, or what stands for it; nothing for no change.
        biases: by the bias's name ``(R, O)``; nothing for no change.
        scale: the factor ``(R,)``, or one of all rows.
    """

    factors: Sequence[Factors]
    weights: Mapping[str, Tensor | _Rest | _Apart]
    biases: Mapping[str, Tensor]
    scale: Tensor | float

    def applied(self, number: int) -> Tensor | None:
        """Return the change of a layer's output, in the shape of :meth:`Factors.applied`; None for not at all."""
        of = self.factors[number]
        weight, bias = self.weights.get(of.layer.weight), self.biases.get(of.layer.bias or "")
        if weight is not None:
            return of.applied(weight, bias) if isinstance(weight, Tensor) else weight.applied(of, bias)
        if bias is None:
            return None
        places = of.delta.shape[3:]
        own = bias.repeat_interleave(of.inputs.shape[1], 0)
        return own.view(*own.shape, *(1 for _ in places)).expand(-1, -1, *places)

    def transposed(self, number: int) -> Tensor | None:
        """Return the product of the change with the derivative at a layer's output, as :meth:`Factors.transposed`."""
        of = self.factors[number]
        weight = self.weights.get(of.layer.weight)
        if weight is None:
            return None
        return of.transposed(weight) if isinstance(weight, Tensor) else weight.transposed(of)


class Aim:
    """R rows' wanted gradients ``(R, ...)`` by name, their norms ``(R,)``, and the distance from them."""

    def __init__(
        self,
        kind: Kind,
        wanted: Weights,
        norms: Tensor,
        projection: Tangent | SentEntries | None,
        linear: frozenset[str],
    ) -> None:
        """Take the comparable part of gradients, None for everything, and the names of linear layers' weights."""
        self._kind = kind
        self._tangent = projection if isinstance(projection, Tangent) else None
        self._projection = projection if isinstance(projection, SentEntries) else None
        # Those of truncated uploads are projected already, which the direction is derived from.
        self._wanted = wanted if self._tangent is None else self._tangent(wanted)
        self._norms = norms
        self._small = [name for name in wanted if name not in linear]
        self._together = torch.cat([wanted[name].flatten(1) for name in self._small], 1) if self._small else None
        self._inverse_norms = norms.clamp_min(_TINY).reciprocal()
        self._matrices: dict[tuple[str, int], WantedMatrix] = {}

    def compare(self, factors: Sequence[Factors]) -> tuple[Tensor, Direction]:
        """Return the distances ``(R,)`` and the direction in which they grow."""
        formed = self._formed(factors)
        if self._projection is not None:
            return self._projected(factors, formed)
        if self._kind == "squared":
            return self._squared(factors, formed)
        return self._cosine(factors, formed)

    def _formed(self, factors: Sequence[Factors]) -> Weights:
        """Return biases' and convolutions' gradients ``(R, O)`` and ``(R, O, K)``; of projected ones all."""
        found: Weights = {}
        for one in factors:
            weight, bias = one.layer.weight, one.layer.bias
            if weight in self._wanted and (weight in self._small or self._projection is not None):
                found[weight] = one.product()
            if bias in self._wanted and bias is not None:
                found[bias] = one.bias()
        if self._tangent is None:
            return found
        shaped = {name: value.view_as(self._wanted[name]) for name, value in found.items()}
        return {name: value.view_as(found[name]) for name, value in self._tangent(shaped).items()}

    def _comparable(self, of: Factors) -> _Comparable:
        name, tangent = of.layer.weight, self._tangent
        if tangent is None or name not in tangent.left:
            return _Comparable(of.inputs, of.delta)
        left, right = tangent.left[name], tangent.right[name]
        beside = torch.baddbmm(of.inputs, torch.bmm(of.inputs, right.mT), right, alpha=-1)
        negative = torch.baddbmm(of.delta, torch.bmm(of.delta, left), left.mT, beta=-1)
        return _Comparable(torch.cat([of.inputs, beside], 1), torch.cat([of.delta, negative], 1))

    def _projected(self, factors: Sequence[Factors], formed: Weights) -> tuple[Tensor, Direction]:
        assert self._projection is not None
        distance = cosine_distance if self._kind == "cosine" else squared_distance
        with torch.enable_grad():
            leaves = {name: value.requires_grad_() for name, value in formed.items()}
            shaped = {name: value.view_as(self._wanted[name]) for name, value in leaves.items()}
            value = distance([FormedGradient(self._projection(shaped))], self._wanted, self._norms)
            grown = torch.autograd.grad(value.sum(), list(leaves.values()))
        return value.detach(), _direction(factors, dict(zip(leaves, grown, strict=True)), {}, 1.0)

    def _squared(self, factors: Sequence[Factors], formed: Weights) -> tuple[Tensor, Direction]:
        parts = []
        rest: Weights = {}
        if self._together is not None:
            small = self._flat(formed) - self._together
            parts.append(_inner(small, small))
            rest = self._split(small, formed)
        big: dict[str, Tensor | _Rest | _Apart] = {}
        for one in self._linear(factors):
            name, part, wanted = one.layer.weight, self._comparable(one), self._matrix(one)
            if wanted.left is not None and wanted.right is not None:
                between = big[name] = _Apart.of(wanted.left, wanted.right, part)
                parts.append(between.square())
                continue
            apart = big[name] = torch.baddbmm(wanted.dense, part.delta.mT, part.inputs, beta=-1)
            parts.append(_inner(apart.flatten(1), apart.flatten(1)))
        return _sum(parts), _direction(factors, rest, big, 2.0)

    def _cosine(self, factors: Sequence[Factors], formed: Weights) -> tuple[Tensor, Direction]:
        inner, squares = [], []
        small = None
        if self._together is not None:
            small = self._flat(formed)
            inner.append(_inner(small, self._together))
            squares.append(_inner(small, small))
        met, products, kept, matrices = {}, {}, {}, {}
        for one in self._linear(factors):
            name = one.layer.weight
            matrices[name] = self._matrix(one)
            met[name] = matrices[name].times(one.inputs)
            inner.append(_inner(one.delta.flatten(1), met[name].flatten(1)))
            part = kept[name] = self._comparable(one)
            if part.narrow:
                squares.append(part.square())
            else:  # so many images that the product itself is the smaller matrix
                products[name] = part.product()
                squares.append(_inner(products[name].flatten(1), products[name].flatten(1)))
        along, square = _sum(inner), _sum(squares)
        held = square.clamp_min(_TINY)
        inverse = held.rsqrt() * self._inverse_norms
        # Where the gradient is as good as zero its length is taken for a constant.
        share = along / held * (square >= _TINY)
        rest: Weights = {}
        if small is not None and self._together is not None:
            rest = self._split(torch.addcmul(self._together, small, share.unsqueeze(1), value=-1), formed)
        big: dict[str, Tensor | _Rest] = {}
        for name, own in met.items():
            times = share.view(-1, 1, 1)
            big[name] = (
                torch.addcmul(self._wanted[name], products[name], times, value=-1)
                if name in products
                else _Rest(matrices[name], times, own, kept[name])
            )
        return 1 - along * inverse, _direction(factors, rest, big, -inverse)

    def _matrix(self, of: Factors) -> WantedMatrix:
        """Return the wanted gradient of a linear layer, by factors where it has little more than images."""
        key = of.layer.weight, of.inputs.shape[1]
        if key not in self._matrices:
            self._matrices[key] = wanted_matrix(self._wanted[of.layer.weight], of.inputs.shape[1])
        return self._matrices[key]

    def _linear(self, factors: Sequence[Factors]) -> list[Factors]:
        return [one for one in factors if one.layer.weight in self._wanted and one.layer.weight not in self._small]

    def _flat(self, formed: Weights) -> Tensor:
        return torch.cat([formed[name].flatten(1) for name in self._small], 1)

    def _split(self, flat: Tensor, formed: Weights) -> Weights:
        sizes = [formed[name][0].numel() for name in self._small]
        pieces = zip(self._small, flat.split(sizes, 1), strict=True)
        return {name: piece.view_as(formed[name]) for name, piece in pieces}


def _direction(
    factors: Sequence[Factors], small: Weights, big: Mapping[str, Tensor | _Rest | _Apart], scale: Tensor | float
) -> Direction:
    weights = {one.layer.weight for one in factors}
    return Direction(
        factors,
        {name: value for name, value in small.items() if name in weights} | dict(big),
        {name: value for name, value in small.items() if name not in weights},
        scale,
    )


def _inner(first: Tensor, second: Tensor) -> Tensor:
    """Return inner products ``(R,)`` of rows ``(R, P)``."""
    found: Tensor = torch.linalg.vecdot(first, second)
    return found


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
