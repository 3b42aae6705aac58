"""Diagonal sparsification of a square matrix: keep m equal blocks on the diagonal, drop the rest.

Source: Yi, Yu, Wang, Liu, Li: Federated Representation Angle Learning (FedRAL), equation 6. m = 1 keeps everything, m =
d keeps the diagonal alone; d / m values of each row remain, d^2 / m in all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedpriv.util.errors import UserError

PUBLISHED_BLOCK_SIDE = 5
"""Table 4 of FedRAL at d = 500: 2,500 scalars are blocks of 5, 2,000 are blocks of 4 (and 10,000 blocks of 20)."""


def diagonal_blocks(matrix: Tensor, n_blocks: int) -> Tensor:
    """Return a copy of the m blocks ``(m, d / m, d / m)`` on the diagonal of ``(d, d)``, first block first; m divides d."""
    check_divides(n_blocks, len(matrix))
    side = len(matrix) // n_blocks
    index = torch.arange(n_blocks, device=matrix.device)
    return matrix.reshape(n_blocks, side, n_blocks, side)[index, :, index].contiguous()


def dense(blocks: Tensor) -> Tensor:
    """Return the ``(d, d)`` matrix with blocks ``(m, b, b)`` on its diagonal and zeros elsewhere, d = m b."""
    n_blocks, side, _ = blocks.shape
    matrix = blocks.new_zeros(n_blocks, side, n_blocks, side)
    index = torch.arange(n_blocks, device=blocks.device)
    matrix[index, :, index] = blocks
    return matrix.reshape(n_blocks * side, n_blocks * side)


def support(n_blocks: int, width: int, device: torch.device | None = None) -> Tensor:
    """Return the bool ``(d, d)`` mask of the entries that m blocks keep."""
    check_divides(n_blocks, width)
    of_entry = torch.arange(width, device=device) // (width // n_blocks)
    return of_entry[:, None] == of_entry


def published_blocks(width: int) -> int:
    """Return the m whose blocks have the published side, 5, or the next smaller one that divides the width d.

    >>> published_blocks(500), published_blocks(512)
    (100, 128)
    """
    return next(width // side for side in range(PUBLISHED_BLOCK_SIDE, 0, -1) if width % side == 0)


def check_divides(n_blocks: int, width: int) -> None:
    """Refuse a number of blocks that does not divide the width."""
    if n_blocks < 1 or width % n_blocks:
        fitting = [m for m in range(1, width + 1) if width % m == 0]
        nearest = sorted(sorted(fitting, key=lambda m: abs(m - n_blocks))[:3])
        raise UserError(
            f"{n_blocks} diagonal blocks do not divide a matrix of width {width}; "
            f"numbers nearby that do: {', '.join(map(str, nearest))}"
        )
