"""Wanted gradients of fully connected layers, by factors where they have few.

The gradient of such a layer over one step's n images is a sum of n products, one an image, so its rank is n at most.
Products of vectors with it then cost as much as those with n vectors of either side, and not reading all of it from memory.

Source: Halko, Martinsson and Tropp, "Finding structure with randomness" (SIAM Review 53, 217-288, 2011), algorithm 4.3 with
one power iteration, for the factors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
