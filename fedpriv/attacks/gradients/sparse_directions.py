"""Directions in a span of columns along which most entries vanish: each is the column of one image of a batch.

Candidates are walked down to from random starts, from single outputs' rows, and from what lies aside of directions that were
found; some are guessed from sets of outputs. All are fitted to their exact zeros. Two images of one class pull a young
network almost alike, so that the difference of their columns nearly vanishes wherever both are active, and draws a walk as
strongly as a column does; only how exact zeros are tells the two apart, and where one column is known the difference leads
to the other.

Sources: Qu, Sun and Wright, "Finding a sparse vector in a subspace" (IEEE Transactions on Information Theory 62, 5855-5880,
2016), that they can be walked down to; Spielman, Wang and Wright, "Exact recovery of sparsely-used dictionaries" (COLT
2012), for starts at rows; Chartrand and Yin, "Iteratively reweighted algorithms for compressive sensing" (ICASSP 2008), for
weights of shrinking smoothness; Dimitrov, Baader, Mueller and Vechev, "SPEAR" (NeurIPS 2024), for guesses from sets. The
elimination of one column from another by their commonest ratio is derived here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.gradients.label_masks import LabelSlopes, masked_columns

MOST = 32
"""Images of a batch that is taken apart by walks: beyond, small systems of equations are no longer small."""

MOST_BY_LABELS = 128
"""The same where labels say what the entries are that do not vanish."""

_ROUNDS, _STARTS, _WALKED, _ASIDE = 16, 256, 20, 0.4
"""Walks: rounds at most, starts of each, steps of each; every second begins aside of so large a share of all directions."""

_FIRST, _LAST, _SHRINK = 1e-4, 1e-6, 0.5
"""Smoothness of the weights that candidates are fitted with: from, to, in shares of the root mean square, and its factor."""

_ZERO, _COARSE = 1e-5, 2e-3
"""Shares of a column's root mean square below which an entry is zero: at least, whatever the noise is, and at most."""

_NOISE = 10.0
"""Standard deviations of the noise within which an entry is zero."""

_SOLVES, _JITTER = 2, 1e-15
"""Steps of inverse iteration under the same weights; what is added to a diagonal, in shares of its sum."""

_CHUNK, _SAME = 4096, 1 - 1e-8
"""Sets that are guessed from at a time; cosine of candidates from which on they are one."""
_MANY = 4
"""Candidates of a round that are kept, for each of the span's dimensions."""
_CONTAINED = 0.9
"""A direction is a mixture when so large a share of its zeros are another one's too."""
_AS_OFTEN = 0.5
"""Share of the best one's zeros that an attested direction has at least."""
_CONFIRMED = 0.998
"""Cosine of columns from which on a direction is one that labels confirm."""
SURPLUS = 5
"""Zeros beyond those that any direction can have that attest one."""

_APART = 1e-2
"""Length of a unit direction's part beside others from which on it is one of its own."""

_RATIO, _SWEEPS, _GAIN = 3e-4, 6, 3
"""Of elimination: width of ratios that are one, in shares of it; sweeps at most; zeros that a step must gain."""


@dataclass(frozen=True)
class Directions:
    """Unit directions q ``(r, rank)``, the zeros ``(r,)`` of each, and how many of them, the first, are attested."""

    found: Tensor
    zeros: Tensor
    attested: int


@dataclass(frozen=True)
class _Coordinates:
    """Coordinates in which all directions' columns are alike long: columns are ``basis diag(values) onto``.

    Attributes:
        basis: ``(u, r)``, orthonormal.
        values: ``(r,)``.
        onto: ``(r, r)``.
        products: ``(u, r r)`` of each two entries of a row of the basis.
    """

    basis: Tensor
    values: Tensor
    onto: Tensor
    products: Tensor

    @classmethod
    def of(cls, columns: Tensor) -> _Coordinates:
        basis, values, onto = torch.linalg.svd(columns, full_matrices=False)
        return cls(basis, values, onto, (basis.unsqueeze(2) * basis.unsqueeze(1)).flatten(1))

    def within(self, directions: Tensor) -> Tensor:
        """Return directions ``(s, r)`` in these coordinates, of length one."""
        return functional.normalize((directions @ self.onto.T) * self.values)

    def without(self, found: Tensor) -> Tensor:
        """Return directions ``(s, r)`` out of these coordinates, of length one."""
        return functional.normalize((found / self.values) @ self.onto)

    def reweighted(self, found: Tensor, smooth: float, noise: float, power: float) -> Tensor:
        """Return unit directions ``(s, r)`` along which the squares over the sizes of entries are less.

        By inverse iteration from where they are, which is all that the next step's weights need of this one's: the least
        eigenvector takes ten times as long.

        Args:
            found: ``(s, r)``.
            smooth: smoothness of the weights, in shares of the root mean square.
            noise: standard deviation of the entries.
            power: of the squares that entries are divided by: 1 or 0.5.
        """
        squares = (self.basis @ found.T).square_()
        weights = squares.add_(smooth**2 * squares.mean(0) + noise**2).reciprocal_()
        if power == 0.5:
            weights.sqrt_()
        rank = found.shape[1]
        sums = (weights.T @ self.products).view(-1, rank, rank)
        diagonal = sums.diagonal(dim1=1, dim2=2)
        diagonal.add_(_JITTER * diagonal.sum(1, keepdim=True))
        lower, failed = torch.linalg.cholesky_ex(sums)
        least = found.unsqueeze(2)
        for _ in range(_SOLVES):
            least = functional.normalize(torch.cholesky_solve(least, lower), dim=1)
        return torch.where((failed == 0).unsqueeze(1), least[:, :, 0], found)


class Span:
    """Columns L ``(u, rank)``, whose entries carry noise of a standard deviation for a unit direction."""

    def __init__(self, columns: Tensor, noise: float) -> None:
        self.columns, self.noise = columns, noise
        self.rank = columns.shape[1]
        self._even = _Coordinates.of(functional.normalize(columns))
        self._plain = _Coordinates.of(columns)

    def vanishing(self, directions: Tensor) -> Tensor:
        """Return at which outputs ``(u, r)`` the column of each direction ``(r, rank)`` is zero."""
        columns = self.columns @ directions.T
        sizes = columns.square().mean(0).sqrt()
        return columns.abs() < (_ZERO * sizes + _NOISE * self.noise).minimum(_COARSE * sizes)

    def walked(self, starts: Tensor, aside: Tensor) -> Tensor:
        """Walk from ``starts`` ``(s, rank)`` to directions that make the entries' mean size least among those near by.

        Entries count relative to the length of their output's row, and directions are told apart in coordinates in which
        all are alike long. Each step minimises the squares over the sizes that the entries had before (iteratively
        reweighted least squares). Starts have no part along the directions ``aside`` ``(a, rank)``.
        """
        even = self._even
        if len(aside):
            known = torch.linalg.qr(even.within(aside).T)[0]
            starts = starts - (starts @ known) @ known.T
        found = functional.normalize(starts)
        for step in range(_WALKED):
            found = even.reweighted(found, max(0.3 * 0.75**step, 1e-4), 0.0, 0.5)
        return even.without(found)

    def rows(self, picked: Tensor) -> Tensor:
        """Return single outputs' rows as starts."""
        return self._even.basis[picked]

    def fitted(self, directions: Tensor) -> Tensor:
        """Return directions ``(s, rank)`` fitted to the entries that vanish along them, ever more exactly."""
        plain = self._plain
        found, smooth = plain.within(directions), _FIRST
        # In these coordinates a unit direction is longer than one by as much as a column is short.
        noise = self.noise / float(plain.values.min())
        while smooth > _LAST:
            found = plain.reweighted(found, smooth, noise, 1.0)
            smooth *= _SHRINK
        return plain.without(found)


def sparse_directions(
    span: Span,
    generator: torch.Generator,
    draws: int,
    by_label: LabelSlopes | None = None,
    columns: Tensor | None = None,
) -> Directions:
    """Return directions whose columns vanish far more often than by chance; see :func:`distinct`.

    Args:
        span: L at the outputs that some image touched, so that rounding is alike in all its entries.
        generator: draws starts and sets; on the CPU.
        draws: how many sets of outputs are guessed from, after two rounds of walks.
        by_label: what labels make of these outputs: columns that are masked slopes of theirs are taken before all else.
        columns: ``(u, s)`` of which everything is known but their lengths: taken likewise.
    """
    none = span.columns.new_zeros(0, span.rank)
    labelled = none if by_label is None else masked_columns(span.columns, by_label, generator)
    if columns is not None and columns.shape[1]:
        there = torch.linalg.lstsq(span.columns, columns, driver="gelsd").solution.T
        labelled = torch.cat([labelled, functional.normalize(there)])
    known = distinct(span, span.fitted(labelled), labelled) if len(labelled) else Directions(none, none[:, 0].long(), 0)
    if known.attested == span.rank:
        return known
    before, attested = -1, [known.found[: known.attested]]
    for candidates in _candidates(span, generator, draws, attested):
        found = span.fitted(candidates)
        zeros = span.vanishing(found).sum(0)
        order = zeros.argsort(descending=True, stable=True)
        promising, fresh = found[order[zeros[order] >= span.rank - 1 + SURPLUS]], [known.found]
        while len(promising) and len(fresh) <= _MANY * span.rank:
            fresh.append(promising[:1])
            promising = promising[(promising @ promising[0]).abs() < _SAME]
        known = distinct(span, torch.cat(fresh), labelled)
        known = distinct(span, torch.cat([eliminated(span, known.found), known.found]), labelled)
        attested[0] = known.found[: known.attested]
        total = int(known.zeros[: known.attested].sum())
        if known.attested == span.rank and total == before:
            break
        before = total
    return known


def _candidates(span: Span, generator: torch.Generator, draws: int, attested: list[Tensor]) -> Iterator[Tensor]:
    """Yield unit directions ``(s, rank)`` whose columns may vanish often: by walks, and between them by guesses.

    Either kind finds directions that the other takes long for, and mixtures that fewer zeros tell from them.
    """
    number, rank = span.columns.shape
    rounds, chunks = (_ROUNDS if rank <= MOST else 0), list(range(0, draws, _CHUNK))
    for turn in range(max(rounds, len(chunks) + 1)):
        if turn < rounds:
            drawn = torch.randn(_STARTS // 2, rank, generator=generator, dtype=span.columns.dtype)
            picked = span.rows(torch.randint(number, (_STARTS // 2,), generator=generator))
            some = torch.randperm(len(attested[0]), generator=generator)[: int(_ASIDE * rank)]
            yield span.walked(torch.cat([drawn, picked]), attested[0][some if turn % 2 else some[:0]])
        if 1 <= turn <= len(chunks):
            size = min(_CHUNK, draws - chunks[turn - 1])
            sets = torch.rand(size, number, generator=generator).topk(rank - 1).indices
            yield torch.linalg.svd(span.columns[sets], full_matrices=True)[2][..., -1, :]


def eliminated(span: Span, directions: Tensor) -> Tensor:
    """Return directions ``(r, rank)`` from which others are taken away as long as more entries vanish without them.

    Where one column of two is mixed into another, their ratio is the same at all outputs that the other image left alone:
    the commonest ratio says how much of it to take away.
    """
    found = directions.clone()
    for _ in range(_SWEEPS):
        changed = False
        for place in range(len(found)):
            better = _without_others(span, found, place)
            if better is not None:
                found[place], changed = better, True
        if not changed:
            break
    return found


def _without_others(span: Span, directions: Tensor, place: int) -> Tensor | None:
    columns, zeros = span.columns @ directions.T, span.vanishing(directions)
    own, vanishes = columns[:, [place]], zeros[:, [place]]
    asked = ~zeros & ~vanishes
    asked[:, place] = False
    ratios = torch.where(asked, own / columns.where(~zeros, torch.ones_like(columns)), torch.inf).T.sort(1).values
    counted = ratios.isfinite()
    ratios = ratios.where(counted, torch.finfo(ratios.dtype).max / 2).contiguous()
    ends = torch.searchsorted(ratios, ratios + _RATIO * ratios.abs(), right=True)
    counts = (ends - torch.arange(ratios.shape[1])) * counted
    most, first = counts.max(1)
    gain = most - (vanishes & ~zeros).sum(0)
    gain[place] = -1
    other = int(gain.argmax())
    if int(gain[other]) < _GAIN:
        return None
    begin = int(first[other])
    ratio = ratios[other, begin : begin + int(most[other])].median()
    better = span.fitted(functional.normalize((directions[place] - ratio * directions[other])[None]))
    gained = int(span.vanishing(better).sum()) > int(vanishes.sum())
    return better[0] if gained else None


def distinct(span: Span, directions: Tensor, labelled: Tensor) -> Directions:
    """Return directions without repeats, how often they vanish, and how many of them, the first, are attested.

    Attested are those that vanish about as often as the best, and not only where a better one does: a mixture of two
    columns vanishes where both do. So are those whose column is one of the ``labelled`` ``(l, rank)``. Others fill up, most
    zeros first: a mixture in place of one of its own parts spoils no image but theirs. Directions whose zeros are hardly
    more than the ``rank - 1`` that any can have are left out.
    """
    vanish = span.vanishing(directions)
    zeros, rank = vanish.sum(0), span.rank
    confirmed = _confirmed(span, directions, labelled, zeros)
    order = zeros.argsort(descending=True, stable=True).tolist()
    order = [one for one in order if zeros[one] >= rank - 1 + SURPLUS or confirmed[one]]
    chosen: list[int] = []
    for one in sorted(order, key=lambda one: not confirmed[one]):
        if len(chosen) == rank:
            break
        if not confirmed[one]:
            if zeros[one] < _AS_OFTEN * zeros[order[0]]:
                break
            shared = (vanish[:, chosen] & vanish[:, [one]]).sum(0)
            if chosen and int(shared.max()) >= _CONTAINED * zeros[one]:
                continue
        if _apart(directions[chosen], directions[one]):
            chosen.append(one)
    attested = len(chosen)
    for one in order:
        if len(chosen) == rank:
            break
        if one not in chosen and _apart(directions[chosen], directions[one]):
            chosen.append(one)
    return Directions(directions[chosen], zeros[chosen], attested)


def _confirmed(span: Span, directions: Tensor, labelled: Tensor, zeros: Tensor) -> list[bool]:
    """Return which directions are one of the labelled ones each: of those that nearly are, the one with the most zeros."""
    columns, expected = (functional.normalize(span.columns @ some.T, dim=0) for some in (directions, labelled))
    alike = (columns.T @ expected).abs() > _CONFIRMED
    best = torch.where(alike, zeros.unsqueeze(1), -1).argmax(0) if len(directions) else zeros
    found = [False] * len(directions)
    for one, there in zip(best.tolist(), alike.any(0).tolist(), strict=True):
        found[one] = found[one] or there
    return found


def _apart(chosen: Tensor, one: Tensor) -> bool:
    """True where a unit vector has a part of its own beside the chosen ones."""
    if not len(chosen):
        return True
    basis = torch.linalg.qr(chosen.T)[0]
    return float((one - basis @ (basis.T @ one)).norm()) > _APART
