"""Images of a batch separated by the gradient of one fully connected layer: what each put in, and the loss's derivatives.

The gradient of a layer z = W a + b over n images is dW = D A and db = D 1, with D ``(m, n)`` the derivatives of the loss at
its m outputs, one column an image, and A ``(n, k)`` what went in. For one image D = db, so A follows at once (Geiping et
al. 2020, proposition 3.1). For more images dW fixes the spans of D and of A alone. Two things fix the columns:

- Zeros. A ReLU behind the layer makes an entry of D zero where an output was not positive for an image. With dW = L R of
  rank n, a column of D is L q, and any n - 1 outputs at which the image was inactive fix q up to its length: far more
  entries vanish along it than along any other direction. Candidates are walked down to from random starts, single outputs'
  rows and what lies aside of directions that are there already; some are guessed from sets of outputs. Two images of one
  class pull a young network almost alike, so that the difference of their columns nearly vanishes wherever both are active;
  exact zeros tell it from a column, and one column that is known leads from the difference to the other.
- Labels. Where a head W stands behind the ReLU, the column of an image of label y is m * (W^T (p - e_y)), p being the head's
  predictions and m a mask. So it lies in the span and among the masked slopes of its label. Points of both are searched for
  by averaged reflections from random masks: with the mean prediction, which early in training is nearly everybody's, then
  with predictions of each point's own. A span does not meet a mask over hundreds of outputs by chance, and a mixture of two
  images leaves it wherever just one of them is active. This takes batches several times as large as zeros alone do.

Sources: Dimitrov, Baader, Mueller and Vechev, "SPEAR: Exact Gradient Inversion of Batches in Federated Learning" (NeurIPS
2024), for zeros and guesses from sets; Qu, Sun and Wright, "Finding a sparse vector in a subspace" (IEEE Transactions on
Information Theory 62, 5855-5880, 2016), for walks; Spielman, Wang and Wright, "Exact recovery of sparsely-used
dictionaries" (COLT 2012), for starts at rows; Chartrand and Yin, "Iteratively reweighted algorithms for compressive
sensing" (ICASSP 2008), for weights of shrinking smoothness; Elser, "Phase retrieval by iterated projections" (Journal of
the Optical Society of America A 20, 40-55, 2003), for reflections between sets that are not convex. Masked slopes of labels,
the elimination of one column from another, and reading A through truncated factors are derived here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.inputs.updates import Tangent

RANK = 1e-5
"""Singular values below this share of the largest are rounding."""

EXPLAINED = 1e-2
"""A batch is explained when what it leaves of the layer's gradient is below this share."""

DRAWS = 20_000
"""Sets of outputs that are guessed from."""

SEPARABLE = 12
"""Images up to which sets are guessed from: those that are needed grow like 2^n."""

MOST, MOST_BY_LABELS, SURPLUS = 32, 128, 5
"""Images of a batch that is taken apart by walks, and where labels say the entries that do not vanish; zeros beyond those
that any direction has that attest one."""

_EVERY, _MOST_CLASSES, _TURNS = 10, 32, 4
"""Of reflections: how many between two looks, classes up to which points have predictions of their own (which takes a system
of equations of this size each), and searches with these as long as images of a label are missing."""

_MET, _OWN_MET, _ONE = 0.999, 0.99999, 0.99
"""Cosine of a column and masked slopes from which on it is an image's, where mixtures stay below 0.98; the same where the
slopes were fitted to it; and of two columns from which on they are one."""

_RIDGE, _LEAST_RIDGE, _FITS = 0.1, 1e-6, 3
"""Weights of first predictions in fitting own ones, in shares of a class's mean square: on the way, and before a look; fits
of predictions and masks in turn before a look."""

_ROUNDS, _STARTS, _WALKED, _ASIDE = 16, 256, 20, 0.4
"""Walks: rounds at most, starts of each, steps of each; every second begins aside of so large a share of all directions."""

_FIRST, _LAST, _SHRINK, _SOLVES, _JITTER = 1e-4, 1e-6, 0.5, 2, 1e-15
"""Smoothness of the weights that candidates are fitted with: from, to, in shares of the root mean square, and its factor;
steps of inverse iteration under the same weights; what is added to a diagonal, in shares of its sum."""

_ZERO, _COARSE, _NOISE = 1e-5, 2e-3, 10.0
"""Shares of a column's root mean square below which an entry is zero: at least, whatever the noise is, and at most; and
standard deviations of the noise within which it is."""

_CHUNK, _SAME, _MANY = 4096, 1 - 1e-8, 4
"""Sets that are guessed from at a time; cosine of candidates from which on they are one; candidates of a round that are
kept, for each of the span's dimensions."""

_CONTAINED, _AS_OFTEN, _CONFIRMED, _APART = 0.9, 0.5, 0.998, 1e-2
"""A direction is a mixture when so large a share of its zeros are another one's too; share of the best one's zeros that an
attested one has at least; cosine of columns from which on labels confirm one; length of a unit direction's part beside
others from which on it is another."""

_RATIO, _SWEEPS, _GAIN = 3e-4, 6, 3
"""Of elimination: width of ratios that are one, in shares of it; sweeps at most; zeros that a step must gain."""


class _Search(NamedTuple):
    """Starts for each image of a label and at most, reflections at most, and how widely first predictions are drawn."""

    starts: int
    most: int
    steps: int
    spread: float = 0.0


_ALIKE, _OWN = _Search(16, 512, 400), _Search(64, 1024, 150, spread=2.0)
"""Where predictions are taken for alike, and for those that are left."""


@dataclass(frozen=True)
class LabelSlopes:
    """A head W ``(C, m)`` behind a layer with a ReLU, float64; the mean prediction and images of each label ``(C,)``."""

    head: Tensor
    chances: Tensor
    counts: Tensor

    def at(self, outputs: Tensor) -> LabelSlopes:
        """Return the same at some outputs ``(u,)`` alone."""
        return replace(self, head=self.head[:, outputs].contiguous())

    @cached_property
    def products(self) -> Tensor:
        """Return the products of each two classes' weights ``(m, C C)``."""
        return (self.head.T.unsqueeze(2) * self.head.T.unsqueeze(1)).flatten(1)


def masked_columns(columns: Tensor, known: LabelSlopes, generator: torch.Generator) -> Tensor:
    """Return unit directions ``(s, r)`` q whose columns L q, of L ``(u, r)``, are masked slopes of some label, each once."""
    basis, onto = torch.linalg.qr(columns)
    met = []
    for label, count in enumerate(known.counts.tolist()):
        points = basis.new_zeros(0, basis.shape[1])
        for search in (_ALIKE, *[_OWN] * _TURNS * (len(known.counts) <= _MOST_CLASSES)):
            if len(points) < count:
                points = _Reflections(known, label, search, count, generator).met(basis, points, count)
        met.append(points)
    return functional.normalize(torch.linalg.solve_triangular(onto, torch.cat(met).T, upper=True).T)


class _Reflections:
    """Points on their way to the masked slopes of a label: by the mean prediction, or by each point's own."""

    def __init__(self, known: LabelSlopes, label: int, search: _Search, count: int, generator: torch.Generator) -> None:
        self._known, self._search = known, search
        number, chances = min(search.starts * count, search.most), known.chances
        if search.spread:
            draws = torch.randn(number, len(chances), generator=generator, dtype=chances.dtype)
            chances = (chances.clamp(min=1e-6).log() + search.spread * draws).softmax(1)
        self._first = chances.expand(number, -1).clone()
        self._first[:, label] -= 1
        self._slopes = self._first[: number if search.spread else 1] @ known.head
        masks = torch.rand(number, known.head.shape[1], generator=generator, dtype=chances.dtype).round_()
        self._begin = masks * self._slopes

    def met(self, basis: Tensor, known: Tensor, most: int) -> Tensor:
        """Return points ``(s, r)`` of the span's orthonormal basis ``(u, r)`` at masked slopes, beside known ones."""
        points, least = self._begin, _OWN_MET if self._search.spread else _MET
        for step in range(self._search.steps):
            here = self._nearest(points, _RIDGE)
            points = points + ((2 * here - points) @ basis) @ basis.T - here
            if step % _EVERY == _EVERY - 1:
                judged = self._polished(here, basis)
                inside = judged @ basis
                # The part of a vector inside the span is as long as the cosine of both says.
                near = judged.any(1) & (inside.norm(dim=1) > least * judged.norm(dim=1))
                known = _distinct_points(torch.cat([known, inside[near]]), most)
                if len(known) == most:
                    break
        return known

    def _nearest(self, points: Tensor, ridge: float) -> Tensor:
        """Return masked slopes ``(s, u)`` near to points: their masks by the predictions so far, which are fitted then."""
        nearest = torch.where(points * self._slopes.sign() > 0.5 * self._slopes.abs(), self._slopes, 0.0)
        if not self._search.spread:
            return nearest
        head, number = self._known.head, len(self._known.chances)
        weights = (nearest != 0).to(points)
        sums = (weights @ self._known.products).view(-1, number, number)
        least = ridge * float(head.square().sum()) / number
        sums.diagonal(dim1=1, dim2=2).add_(least)
        wanted = (weights * points) @ head.T + least * self._first
        slopes = torch.cholesky_solve(wanted.unsqueeze(2), torch.linalg.cholesky_ex(sums)[0])[:, :, 0]
        self._slopes = slopes @ head
        return weights * self._slopes

    def _polished(self, points: Tensor, basis: Tensor) -> Tensor:
        """Return masked slopes ``(s, u)`` as they are to be judged: own predictions fitted without regard to the first."""
        if not self._search.spread:
            return points
        kept, inside = self._slopes, points
        for _ in range(_FITS):
            points = self._nearest(inside, _LEAST_RIDGE)
            inside = (points @ basis) @ basis.T
        self._slopes = kept
        return points


def _distinct_points(points: Tensor, most: int) -> Tensor:
    """Return the first of points ``(s, r)`` that are none twice, at most so many."""
    chosen: list[int] = []
    alike = functional.normalize(points)
    alike = (alike @ alike.T).abs() > _ONE
    for index in range(len(points)):
        if len(chosen) < most and not bool(alike[index, chosen].any()):
            chosen.append(index)
    return points[chosen]


class Directions(NamedTuple):
    """Unit directions q ``(r, rank)``, the zeros ``(r,)`` of each, and how many of them, the first, are attested."""

    found: Tensor
    zeros: Tensor
    attested: int


class _Coordinates:
    """Coordinates in which the columns ``basis diag(values) onto`` ``(u, r)`` of all directions are alike long."""

    basis: Tensor
    values: Tensor

    def __init__(self, columns: Tensor) -> None:
        self.basis, self.values, self._onto = torch.linalg.svd(columns, full_matrices=False)
        self._products = (self.basis.unsqueeze(2) * self.basis.unsqueeze(1)).flatten(1)

    def within(self, directions: Tensor) -> Tensor:
        """Return directions ``(s, r)`` in these coordinates, of length one."""
        return functional.normalize((directions @ self._onto.T) * self.values)

    def without(self, inner: Tensor) -> Tensor:
        """Return directions ``(s, r)`` out of these coordinates, of length one."""
        return functional.normalize((inner / self.values) @ self._onto)

    def reweighted(self, inner: Tensor, smooth: float, noise: float, root: bool) -> Tensor:
        """Return unit directions ``(s, r)`` along which the squares over the sizes of entries are less.

        By inverse iteration from where they are, which is all that the next step's weights need of this one's: the least
        eigenvector takes ten times as long. Weights are smooth in shares of the root mean square, beside entries' ``noise``;
        with ``root`` squares are divided by sizes, else by squares.
        """
        squares = (self.basis @ inner.T).square_()
        weights = squares.add_(smooth**2 * squares.mean(0) + noise**2).reciprocal_()
        if root:
            weights.sqrt_()
        rank = inner.shape[1]
        sums = (weights.T @ self._products).view(-1, rank, rank)
        diagonal = sums.diagonal(dim1=1, dim2=2)
        diagonal.add_(_JITTER * diagonal.sum(1, keepdim=True))
        lower, failed = torch.linalg.cholesky_ex(sums)
        least = inner.unsqueeze(2)
        for _ in range(_SOLVES):
            least = functional.normalize(torch.cholesky_solve(least, lower), dim=1)
        return torch.where((failed == 0).unsqueeze(1), least[:, :, 0], inner)


class Span:
    """Columns L ``(u, rank)``, whose entries carry noise of a standard deviation for a unit direction."""

    def __init__(self, columns: Tensor, noise: float) -> None:
        self.columns, self.noise, self.rank = columns, noise, columns.shape[1]
        self._even, self._plain = _Coordinates(functional.normalize(columns)), _Coordinates(columns)

    def vanishing(self, directions: Tensor) -> Tensor:
        """Return at which outputs ``(u, r)`` the column of each direction ``(r, rank)`` is zero."""
        columns = self.columns @ directions.T
        sizes = columns.square().mean(0).sqrt()
        return columns.abs() < (_ZERO * sizes + _NOISE * self.noise).minimum(_COARSE * sizes)

    def walked(self, starts: Tensor, aside: Tensor) -> Tensor:
        """Walk from ``starts`` ``(s, rank)`` to directions that make the entries' mean size least among those near by.

        Entries count relative to the length of their output's row. Each step minimises the squares over the sizes that the
        entries had before. Starts have no part along the directions ``aside`` ``(a, rank)``.
        """
        if len(aside):
            known = torch.linalg.qr(self._even.within(aside).T)[0]
            starts = starts - (starts @ known) @ known.T
        inner = functional.normalize(starts)
        for step in range(_WALKED):
            inner = self._even.reweighted(inner, max(0.3 * 0.75**step, 1e-4), 0.0, root=True)
        return self._even.without(inner)

    def rows(self, picked: Tensor) -> Tensor:
        """Return single outputs' rows as starts."""
        return self._even.basis[picked]

    def fitted(self, directions: Tensor) -> Tensor:
        """Return directions ``(s, rank)`` fitted to the entries that vanish along them, ever more exactly."""
        inner, smooth = self._plain.within(directions), _FIRST
        # In these coordinates a unit direction is longer than one by as much as a column is short.
        noise = self.noise / float(self._plain.values.min())
        while smooth > _LAST:
            inner = self._plain.reweighted(inner, smooth, noise, root=False)
            smooth *= _SHRINK
        return self._plain.without(inner)


def sparse_directions(
    span: Span, generator: torch.Generator, draws: int, by_label: LabelSlopes | None = None
) -> Directions:
    """Return directions whose columns vanish far more often than by chance; masked slopes of labels before all else."""
    none = span.columns.new_zeros(0, span.rank)
    labelled = none if by_label is None else masked_columns(span.columns, by_label, generator)
    known = distinct(span, span.fitted(labelled), labelled) if len(labelled) else Directions(none, none[:, 0].long(), 0)
    if known.attested == span.rank:
        return known
    before, attested = -1, [known.found[: known.attested]]
    for candidates in _candidates(span, generator, draws, attested):
        fitted = span.fitted(candidates)
        zeros = span.vanishing(fitted).sum(0)
        order = zeros.argsort(descending=True, stable=True)
        promising, fresh = fitted[order[zeros[order] >= span.rank - 1 + SURPLUS]], [known.found]
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

    Either kind leads to directions that the other takes long for, and to mixtures that fewer zeros tell from them.
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
    cleaned = directions.clone()
    for _ in range(_SWEEPS):
        changed = False
        for index in range(len(cleaned)):
            better = _without_others(span, cleaned, index)
            if better is not None:
                cleaned[index], changed = better, True
        if not changed:
            break
    return cleaned


def _without_others(span: Span, directions: Tensor, number: int) -> Tensor | None:
    columns, zeros = span.columns @ directions.T, span.vanishing(directions)
    column, vanishes = columns[:, [number]], zeros[:, [number]]
    compared = ~zeros & ~vanishes
    compared[:, number] = False
    ratios = torch.where(compared, column / columns.where(~zeros, torch.ones_like(columns)), torch.inf).T.sort(1).values
    counted = ratios.isfinite()
    ratios = ratios.where(counted, torch.finfo(ratios.dtype).max / 2).contiguous()
    ends = torch.searchsorted(ratios, ratios + _RATIO * ratios.abs(), right=True)
    counts = (ends - torch.arange(ratios.shape[1])) * counted
    most, first = counts.max(1)
    gain = most - (vanishes & ~zeros).sum(0)
    gain[number] = -1
    other = int(gain.argmax())
    if int(gain[other]) < _GAIN:
        return None
    begin = int(first[other])
    ratio = ratios[other, begin : begin + int(most[other])].median()
    better = span.fitted(functional.normalize((directions[number] - ratio * directions[other])[None]))
    return better[0] if int(span.vanishing(better).sum()) > int(vanishes.sum()) else None


def distinct(span: Span, directions: Tensor, labelled: Tensor) -> Directions:
    """Return directions without repeats, how often they vanish, and how many of them, the first, are attested.

    Attested are those that vanish about as often as the best, and not only where a better one does: a mixture of two
    columns vanishes where both do. So are those whose column is one of the ``labelled`` ``(l, rank)``. Others fill up, most
    zeros first: a mixture in place of one of its own parts spoils no image but theirs. Directions whose zeros are hardly
    more than the ``rank - 1`` that any can have are left out.
    """
    if not len(directions):
        return Directions(directions, directions.new_zeros(0, dtype=torch.int64), 0)
    vanish = span.vanishing(directions)
    zeros, rank = vanish.sum(0), span.rank
    # Of the directions that nearly are a labelled one it is the one with the most zeros.
    columns, expected = (functional.normalize(span.columns @ some.T, dim=0) for some in (directions, labelled))
    alike = (columns.T @ expected).abs() > _CONFIRMED
    best = torch.where(alike, zeros.unsqueeze(1), -1).argmax(0)[alike.any(0)]
    confirmed = set(best.tolist())
    order = zeros.argsort(descending=True, stable=True).tolist()
    order = [entry for entry in order if zeros[entry] >= rank - 1 + SURPLUS or entry in confirmed]
    chosen: list[int] = []

    def fills(number: int) -> bool:
        """True where a direction has a part beside the chosen ones."""
        basis = torch.linalg.qr(directions[chosen].T)[0] if chosen else directions.new_zeros(rank, 0)
        return float((directions[number] - basis @ (basis.T @ directions[number])).norm()) > _APART

    for items in sorted(order, key=lambda item: item not in confirmed):
        if len(chosen) == rank:
            break
        if items not in confirmed:
            if zeros[items] < _AS_OFTEN * zeros[order[0]]:
                break
            shared = (vanish[:, chosen] & vanish[:, [items]]).sum(0)
            if chosen and int(shared.max()) >= _CONTAINED * zeros[items]:
                continue
        if fills(items):
            chosen.append(items)
    attested = len(chosen)
    for items in order:
        if len(chosen) < rank and items not in chosen and fills(items):
            chosen.append(items)
    return Directions(directions[chosen], zeros[chosen], attested)


class Separation(NamedTuple):
    """Columns of D ``(m, r)``, float64, of as many images as were separated, and the zeros ``(r,)`` of each.

    The first ``attested`` of them show too many zeros to be anything but an image's.
    """

    errors: Tensor
    zeros: Tensor
    attested: int


def separate(
    weight: Tensor, bias: Tensor, count: int, generator: torch.Generator, by_label: LabelSlopes | None = None
) -> Separation:
    """Return the columns of D of as many images as can be separated.

    ``weight`` is dW ``(m, k)``, or its product with anything from the right that keeps its rank; ``bias`` is db ``(m,)``.
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
        apart = Directions(torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64), 0)
    else:
        # What is left of the gradient beside its n largest parts is rounding, spread evenly over the entries.
        left_over = float(values[rank]) if len(values) > rank else 0.0
        noise = left_over / (math.sqrt(len(weight)) + math.sqrt(weight.shape[1]))
        draws = DRAWS if count <= SEPARABLE else 0
        apart = sparse_directions(Span(span[live], noise), generator, draws, by_label and by_label.at(live))
    columns = span @ apart.found.T
    # Each column has its true length when all of them sum to db.
    scales = torch.linalg.lstsq(columns, bias[:, None], driver="gelsd").solution[:, 0]
    sound = scales.abs() * columns.norm(dim=0) > RANK * bias.norm()
    return Separation((columns * scales)[:, sound], apart.zeros[sound], int(sound[: apart.attested].sum()))


def inputs_of(errors: Tensor, weight: Tensor, left: Tensor | None = None) -> Tensor:
    """Return the layer's inputs ``(r, k)``: the least-squares solution A of D A = dW, ``(m, r)`` and ``(m, k)``.

    Of a truncated layer no more than ``left^T dW`` is known in all columns, ``left`` being ``(m, t)``.
    """
    errors, weight = errors.double(), weight.double().cpu()
    if left is not None:
        onto = left.double().cpu().T
        errors, weight = onto @ errors, onto @ weight
    inputs: Tensor = torch.linalg.pinv(errors) @ weight
    return inputs


def lone_inputs(weight: Tensor, bias: Tensor) -> Tensor:
    """Return dW_k / db_k of the outputs that any image touched ``(u, k)``, those first that other outputs confirm.

    Where one image alone touched an output, that is what the image put in; else a mixture. Two outputs that agree can
    hardly both be mixtures; repeats are left out.
    """
    weight, bias = weight.double().cpu(), bias.double().cpu()
    live = (bias.abs() > 1e-4 * bias.abs().max().clamp(min=1e-300)).nonzero().squeeze(1)
    ratios, weights = weight[live] / bias[live, None], bias[live].abs()
    sizes = ratios.norm(dim=1).clamp(min=1e-300)
    alike = torch.cdist(ratios, ratios) < 1e-2 * torch.minimum(sizes[:, None], sizes[None])
    rest = torch.ones(len(live), dtype=torch.bool)
    inputs = []
    # Ties by size of db: the same rounding error matters least there.
    for index in sorted(range(len(live)), key=lambda row: (-int(alike[row].sum()), -float(weights[row]))):
        members = alike[index] & rest
        if rest[index]:
            rest &= ~members
            inputs.append(weights[members] / weights[members].sum() @ ratios[members])
    return torch.stack(inputs) if inputs else ratios


class Parts(NamedTuple):
    """The images of one step at a linear layer, in no particular order."""

    derivatives: Tensor  # (n, m) of the loss of each image at the layer's outputs
    inputs: Tensor  # (n, k) of the layer
    explained: bool  # whether they leave next to nothing of the layer's gradient
    attested: bool  # whether each shows by itself that it is no mixture, by how often it vanishes


@dataclass(frozen=True)
class LinearGradient:
    """The gradient of a linear layer as far as an update says it, float64 on the CPU."""

    weight: Tensor  # (m, k)
    bias: Tensor  # (m,)
    left: Tensor | None  # factor that the columns of a truncated layer are known along
    onto: Tensor | None  # (k, r), its rows likewise

    @property
    def rows(self) -> Tensor:
        """Of a truncated layer all rows are known along V, and all columns along U."""
        return self.weight if self.onto is None else self.weight @ self.onto

    def unexplained(self, inputs: Tensor) -> float:
        """Return the share of the rows that is no combination of inputs ``(n, k)``."""
        seen = inputs if self.onto is None else inputs @ self.onto
        rest = self.rows - self.rows @ torch.linalg.pinv(seen) @ seen
        return float(rest.norm() / self.rows.norm().clamp(min=1e-300))

    def parts(self, count: int, draw: torch.Generator, by_label: LabelSlopes | None = None) -> Parts | None:
        """Return the parts of one step, an image each; None where there are not as many parts as images.

        The mean loss's share of each image is what it put into the bias's gradient, so derivatives are n times that.
        Arguments are as of :func:`separate`.
        """
        if count == 1:
            errors, attested = self.bias[:, None], 1
        elif count > (MOST if by_label is None else MOST_BY_LABELS):
            return None
        else:
            errors, _, attested = separate(self.rows, self.bias, count, draw, by_label)
            if errors.shape[1] != count:
                values = torch.linalg.svdvals(self.rows)
                rank = int((values > RANK * values[0].clamp(min=1e-300)).sum())
                if by_label is None or errors.shape[1] < rank:
                    return None
        inputs = inputs_of(errors, self.weight, self.left)
        # Of an image that the network is sure of the gradient says nothing: a part of zeros stands for it.
        silent = (0, 0, 0, count - errors.shape[1])
        derivatives, inputs = (functional.pad(values, silent) for values in (count * errors.T, inputs))
        explained = self.unexplained(inputs) < EXPLAINED
        return Parts(derivatives.float(), inputs.float(), explained, attested == count)


def linear_gradient(gradient: Mapping[str, Tensor], project: Any, layer: str) -> LinearGradient:
    """Return the gradient of a layer as an update says it, already projected where the upload is truncated."""
    name = f"{layer}.weight"
    tangent = project if isinstance(project, Tangent) else Tangent()
    left, right = tangent.left.get(name), tangent.right.get(name)
    weight, bias = gradient[name].double().cpu(), gradient[f"{layer}.bias"].double().cpu()
    return LinearGradient(weight, bias, left, None if right is None else right.double().cpu().T)
