"""The inverse Hessian of L-BFGS for N rows at once, in compact form.

Byrd, Nocedal and Schnabel, "Representations of quasi-Newton matrices and their use in limited memory methods" (1994),
theorem 2.2: with the steps S and the changes Y of the gradient as columns, R the upper triangle of S'Y (in the order in
which pairs came), D its diagonal, and H0 = scale * I,

    H g = scale (g - Y p) + S q,    p = R^-1 S'g,    q = R^-T ((D + scale Y'Y) p - scale Y'g).

All sums over the D variables are two products with the whole history, instead of two for each pair one after the other.
R^-1 is kept as it is: a new pair adds a column to it, and where the oldest pair goes its row and column go too, whatever
the order of places in memory. So each row has its own ring, and nothing is moved or solved.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LEAST_CURVATURE = 1e-10
"""A pair of step s and gradient change y is used only where ``y . s`` is above (the value of ``torch.optim.LBFGS``)."""


def whole_ring(device: torch.device) -> bool:
    """True where places that hold no pair yet are computed with too, as zeros: where steps of equal shapes are recorded."""
    return device.type == "cuda"


class Curvature:
    """Curvature pairs of N rows. Rows reject pairs on their own, so each has its own place in its own ring.

    Attributes:
        depth: places that were computed with for the last direction; -1 before the first.
    """

    def __init__(self, size: int, start: Tensor) -> None:
        rows, width = start.shape
        # One place more than the ring has: where rows write what they reject. It is never read.
        self._pairs = start.new_zeros(rows, 2, size + 1, width)
        self._inverse = start.new_zeros(rows, size + 1, size + 1)
        self._changes = start.new_zeros(rows, size + 1, size + 1)
        self._curvature = start.new_zeros(rows, size + 1)
        self._scale = start.new_ones(rows, 1)
        self._nothing = start.new_zeros(())  # a number of Python's would be moved to a GPU, which waits for it
        self._count = torch.zeros(rows, dtype=torch.int64, device=start.device)
        self._size = size
        self._rows = torch.arange(rows, device=start.device)
        self.depth = -1

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only (int64 positions)."""
        for name in ("_pairs", "_inverse", "_changes", "_curvature", "_scale", "_count"):
            setattr(self, name, getattr(self, name)[rows])
        self._rows = torch.arange(len(rows), device=rows.device)

    def direction(self, gradient: Tensor, step: Tensor, change: Tensor, taken: Tensor) -> Tensor:
        """Take in the pairs of the rows that took a step, and return minus the inverse Hessian times the gradients.

        Args:
            gradient: ``(N, D)``.
            step: ``(N, D)``.
            change: ``(N, D)`` of the gradient along the step.
            taken: ``(N,)`` bool; of other rows ``step`` and ``change`` have no part. The first time, of all rows.
        """
        whole = self.depth >= 0 and whole_ring(gradient.device)
        depth = self.depth = self._size if whole else min(self.depth + 1, self._size)  # so many pairs a row may have
        if not depth:
            return -gradient
        place, curvature = self._remember(step, change, taken)
        pairs = self._pairs[:, :, :depth].flatten(0, 1)
        both = torch.stack([gradient, change], 1)
        products = torch.bmm(both.unsqueeze(1).expand(-1, 2, -1, -1).flatten(0, 1), pairs.mT).view(-1, 2, 2, depth)
        self._fill(products[:, :, 1], place, curvature)
        along, across = products[:, 0, 0], self._scale * products[:, 1, 0]
        inverse = self._inverse[:, :depth, :depth]
        inner = torch.bmm(inverse, along.unsqueeze(2))
        bent = torch.bmm(self._changes[:, :depth, :depth], inner).squeeze(2)
        first = inner.squeeze(2)
        second = self._curvature[:, :depth] * first + self._scale * bent - across
        second = torch.bmm(second.unsqueeze(1), inverse)
        shares = torch.stack([second.squeeze(1), -self._scale * first], 1).view(-1, 1, depth)
        moved = torch.bmm(shares, pairs).view(-1, 2, gradient.shape[1]).sum(1)
        return -torch.addcmul(moved, gradient, self._scale)

    def _remember(self, step: Tensor, change: Tensor, taken: Tensor) -> tuple[Tensor, Tensor]:
        """Write the pairs whose curvature is large enough; return their places ``(N, 1)`` and curvatures ``(N, 1)``."""
        curvature = torch.linalg.vecdot(step, change).unsqueeze(1)
        good = taken.unsqueeze(1) & (curvature > _LEAST_CURVATURE)
        count = self._count.unsqueeze(1)
        place = torch.where(good, count % self._size, self._size)
        self._pairs[self._rows, :, place[:, 0]] = torch.stack([step, change], 1)
        square = torch.linalg.vecdot(change, change).unsqueeze(1)
        self._scale = torch.where(good, curvature / square, self._scale)
        self._count = self._count + good[:, 0]
        return place, torch.where(good, curvature, 1.0)

    def _fill(self, products: Tensor, place: Tensor, curvature: Tensor) -> None:
        """Enter the newest change's products ``(N, 2, depth)`` with all steps and all changes at each row's place."""
        depth = self.depth
        rows, column = self._rows, place[:, 0]
        others = torch.ones_like(self._curvature).scatter_(1, place, 0.0)[:, :depth]
        self._inverse[rows, column] = self._nothing
        older = torch.bmm(self._inverse[:, :depth, :depth], (products[:, 0] * others).unsqueeze(2)).squeeze(2)
        self._inverse[rows, :depth, column] = (1 - others - older) / curvature
        self._changes[rows, column, :depth] = products[:, 1]
        self._changes[rows, :depth, column] = products[:, 1]
        self._curvature.scatter_(1, place, curvature)
