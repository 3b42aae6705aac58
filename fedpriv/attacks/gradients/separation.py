"""Take the gradient of a fully connected layer apart into what each image of the batch put in.

The gradient of a layer z = W a + b over n images is dW = D A and db = D 1, with D ``(m, n)`` the derivatives of the loss at
its m outputs, one column an image, and A ``(n, k)`` what went in. For one image D = db, so A follows at once (Geiping et
al. 2020, proposition 3.1). For more images dW says no more than the span of D and of A by itself; what tells them apart
is that a ReLU behind the layer makes D sparse: where an output was not positive for an image its entry is exactly zero.

With dW = L R of rank n, a column of D is L q for some q, and q is fixed up to length by any n - 1 outputs at which the image
was inactive. Such q are looked for in two ways. One walks down from random directions: the mean size of the entries of L q
is least, among directions near by, where many of them are zero, and reweighted least squares finds such a direction in a
score of small eigenvalue problems, whatever n is. The other guesses q from random sets of n - 1 outputs: a set that happens
to be right shows itself by many more zeros in L q than the n - 1 that were asked for; with half of the outputs inactive
about one guess in 2^(n - 1) is right.

Source: Dimitrov, Baader, Mueller and Vechev, "SPEAR: Exact Gradient Inversion of Batches in Federated Learning" (NeurIPS
2024), for the guesses; that sparse directions can be walked down to, from the literature on sparse vectors in a subspace
(Qu, Sun and Wright, "Finding a sparse vector in a subspace", IEEE Transactions on Information Theory 62, 5855-5880, 2016).
SPEAR's filter for wrong directions is the sparsity test here; the descent by least squares, the refinement of q over all
its zeros, and reading A through truncated factors, are derived here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

ZERO = 1e-2
"""An entry of a column counts as zero below this share of the column's root mean square."""

CLOSE = 2e-3
"""The same, once the direction has been fitted to all its zeros."""

RANK = 1e-5
"""Singular values below this share of the largest are rounding."""

MOST = 32
"""Images of a batch that is taken apart: beyond, small eigenvalue problems are no longer small."""

_ROUNDS, _STARTS, _REWEIGHTED = 6, 256, 20
"""Descents: rounds at most, random directions of each, and steps of each."""

_AT_LEAST = 2
"""Sets of candidates that are looked at in any case."""

_CHUNK = 4096
_SAME = 1 - 1e-4
_REFINEMENTS = 4
_OUTLIER = 5.0
"""Entries of a fitted column above so many times the median of its zeros are no zeros."""
_CONTAINED = 0.9
"""A direction is a mixture when so large a share of its zeros are another one's too."""
_AS_OFTEN = 0.5
"""Share of the best one's zeros that an attested direction has at least."""
_SURPLUS = 5
"""Zeros beyond those that any direction can have that attest one."""


@dataclass(frozen=True)
class Separation:
    """Columns of D that were taken apart.

    Attributes:
        errors: ``(m, r)`` float64, r <= n: one column for each image that was told apart, the best attested first.
        zeros: ``(r,)`` number of outputs at which each column vanishes.
        attested: how many columns, the first, show too many zeros to be anything but an image's.
    """

    errors: Tensor
    zeros: Tensor
    attested: int


def separate(weight: Tensor, bias: Tensor, count: int, generator: torch.Generator, draws: int) -> Separation:
    """Return the columns of D of as many images as can be told apart.

    Args:
        weight: ``(m, k)`` gradient dW, or its product with anything from the right that keeps its rank.
        bias: ``(m,)`` gradient db.
        count: n.
        generator: draws the sets of outputs; on the CPU.
        draws: how many sets, after the descents.
    """
    weight, bias = weight.double().cpu(), bias.double().cpu()
    if count == 1:
        return Separation(bias[:, None], torch.zeros(1, dtype=torch.int64), 1)
    left, values, _ = torch.linalg.svd(weight, full_matrices=False)
    rank = min(count, int((values > RANK * values[0].clamp(min=1e-300)).sum()))
    # Outputs that no image touched carry rounding only, and would be zeros of every direction.
    lengths = weight.norm(dim=1)
    live = (lengths > RANK * lengths.max().clamp(min=1e-300)).nonzero().squeeze(1)
    span = left[:, :rank] * values[:rank]
    if rank < 1 or len(live) <= rank:
        return Separation(weight.new_zeros(len(weight), 0), torch.zeros(0, dtype=torch.int64), 0)
    if rank == 1:
        directions, zeros, attested = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64), 0
    else:
        directions, zeros, attested = _directions(span[live], generator, draws)
    columns = span @ directions.T
    # Each column has its true length when all of them sum to db.
    scales = torch.linalg.lstsq(columns, bias[:, None], driver="gelsd").solution[:, 0]
    sound = scales.abs() * columns.norm(dim=0) > RANK * bias.norm()
    return Separation((columns * scales)[:, sound], zeros[sound], int(sound[:attested].sum()))


def _directions(span: Tensor, generator: torch.Generator, draws: int) -> tuple[Tensor, Tensor, int]:
    """Return directions q ``(r, rank)`` whose columns vanish far more often than by chance; see :func:`_distinct`.

    ``span`` ``(u, rank)`` is L at the outputs that some image touched, so that rounding is alike in all its entries.
    """
    number, rank = span.shape
    least = rank - 1 + max(3.0, 2 * ZERO * number, 0.05 * number)
    kept, zeros, attested = span.new_zeros(0, rank), torch.zeros(0, dtype=torch.int64), 0
    for tried, found in enumerate(_candidates(span, generator, draws), start=1):
        counts = _untouched(span, found).sum(0)
        promising = found[counts > least][counts[counts > least].argsort(descending=True, stable=True)]
        while len(promising) and len(kept) < 4 * rank:
            kept = torch.cat([kept, _refined(span, promising[0])[None]])
            promising = promising[(promising @ promising[0]).abs() < _SAME]
        kept, zeros, attested = _distinct(span, kept)
        if attested == rank and tried >= _AT_LEAST:
            break
    return kept, zeros, attested


def _candidates(span: Tensor, generator: torch.Generator, draws: int) -> Iterator[Tensor]:
    """Yield unit directions ``(s, rank)`` whose columns may vanish often: by descents and by guesses in turn.

    Either kind finds directions that the other takes long for, and mixtures that fewer zeros tell from them.
    """
    number, rank = span.shape
    rounds, chunks = (_ROUNDS if rank <= MOST else 0), range(0, draws, _CHUNK)
    for turn in range(max(rounds, len(chunks))):
        if turn < rounds:
            yield _descended(span, torch.randn(_STARTS, rank, generator=generator, dtype=span.dtype))
        if turn < len(chunks):
            size = min(_CHUNK, draws - chunks[turn])
            sets = torch.rand(size, number, generator=generator).topk(rank - 1).indices
            yield torch.linalg.svd(span[sets], full_matrices=True)[2][..., -1, :]


def _descended(span: Tensor, starts: Tensor) -> Tensor:
    """Walk from directions ``(s, rank)`` to such as make the entries' mean size least among those near by.

    Entries count relative to the length of their output's row, and directions are told apart in coordinates in which all
    are alike long. Each step minimises the squares over the sizes that the entries had before (iteratively reweighted least
    squares), smoothed by less and less of their root mean square.
    """
    rows = span / span.norm(dim=1, keepdim=True)
    basis, values, onto = torch.linalg.svd(rows, full_matrices=False)
    found = starts / starts.norm(dim=1, keepdim=True)
    for step in range(_REWEIGHTED):
        entries = basis @ found.T
        smooth = max(0.3 * 0.75**step, 1e-4) * entries.square().mean(0).sqrt()
        weights = (entries.square() + smooth.square()).rsqrt()
        found = torch.linalg.eigh(torch.einsum("ua,us,ub->sab", basis, weights, basis)).eigenvectors[:, :, 0]
    directions = (found / values) @ onto
    return functional.normalize(directions)


def _untouched(span: Tensor, directions: Tensor, share: float = ZERO) -> Tensor:
    """Return at which outputs ``(u, r)`` the column of each direction ``(r, rank)`` vanishes."""
    columns = span @ directions.T
    return columns.abs() < share * columns.square().mean(0).sqrt()


def _refined(span: Tensor, direction: Tensor) -> Tensor:
    """Return the direction that vanishes best at all outputs that it is found to vanish at.

    Entries that are merely small are told from zeros by the others: they stand out once the zeros are fitted.
    """
    rank = len(direction)
    untouched = _untouched(span, direction[None])[:, 0]
    for _ in range(_REFINEMENTS):
        if int(untouched.sum()) < rank:
            break
        direction = torch.linalg.svd(span[untouched], full_matrices=False)[2][-1]
        column = (span @ direction).abs()
        untouched = column <= _OUTLIER * column[untouched].median()
    return direction


def _distinct(span: Tensor, directions: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return directions without repeats, how often they vanish, and how many of them, the first, are attested.

    Attested are those that vanish about as often as the best, and not only where a better one does: a mixture of two
    columns vanishes where both do. Others fill up, most zeros first: a mixture in place of one of its own parts spoils no
    image but theirs. Directions whose zeros, looked at closely, are hardly more than the ``rank - 1`` that any can have are
    left out.
    """
    vanish = _untouched(span, directions, CLOSE)
    zeros = vanish.sum(0)
    rank = span.shape[1]
    order = [one for one in zeros.argsort(descending=True, stable=True).tolist() if zeros[one] >= rank - 1 + _SURPLUS]
    chosen: list[int] = []
    for one in order:
        if len(chosen) == rank or zeros[one] < _AS_OFTEN * zeros[order[0]]:
            break
        shared = (vanish[:, chosen] & vanish[:, [one]]).sum(0)
        if not chosen or (int(shared.max()) < _CONTAINED * zeros[one] and _apart(directions[chosen], directions[one])):
            chosen.append(one)
    attested = len(chosen)
    for one in order:
        if len(chosen) == rank:
            break
        if one not in chosen and _apart(directions[chosen], directions[one]):
            chosen.append(one)
    return directions[chosen], zeros[chosen], attested


def _apart(chosen: Tensor, one: Tensor) -> bool:
    """True where a unit vector has a part of its own beside the chosen ones."""
    basis = torch.linalg.qr(chosen.T)[0]
    return float((one - basis @ (basis.T @ one)).norm()) > ZERO


def inputs_of(errors: Tensor, weight: Tensor, left: Tensor | None = None) -> Tensor:
    """Return the layer's inputs ``(r, k)``: the least-squares solution A of D A = dW, ``(m, r)`` and ``(m, k)``.

    Of a truncated layer no more than ``left^T dW`` is known in all columns, ``left`` being ``(m, t)``.
    """
    errors, weight = errors.double(), weight.double().cpu()
    if left is not None:
        onto = left.double().cpu().T
        errors, weight = onto @ errors, onto @ weight
    found: Tensor = torch.linalg.pinv(errors) @ weight
    return found


def lone_inputs(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return dW_k / db_k of the outputs that any image touched ``(u, k)``, those first that other outputs confirm.

    Where one image alone touched an output, that is what the image put in; else a mixture. Two outputs that agree can
    hardly both be mixtures, so repeats are counted, in the second tensor ``(u,)``, and left out.
    """
    weight, bias = weight.double().cpu(), bias.double().cpu()
    live = (bias.abs() > 1e-4 * bias.abs().max().clamp(min=1e-300)).nonzero().squeeze(1)
    ratios = weight[live] / bias[live, None]
    weights = bias[live].abs()
    sizes = ratios.norm(dim=1).clamp(min=1e-300)
    alike = torch.cdist(ratios, ratios) < 1e-2 * torch.minimum(sizes[:, None], sizes[None])
    left_over = torch.ones(len(live), dtype=torch.bool)
    found: list[Tensor] = []
    votes: list[int] = []
    # Ties by size of db: the same rounding error matters least there.
    for one in sorted(range(len(live)), key=lambda row: (-int(alike[row].sum()), -float(weights[row]))):
        members = alike[one] & left_over
        if not left_over[one]:
            continue
        left_over &= ~members
        share = weights[members] / weights[members].sum()
        found.append(share @ ratios[members])
        votes.append(int(members.sum()))
    if not found:
        return ratios, torch.zeros(0, dtype=torch.int64)
    return torch.stack(found), torch.tensor(votes)
