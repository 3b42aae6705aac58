"""Images of a batch separated by the gradient of a fully connected layer, or of the head: what each put in, and slopes.

The gradient of a layer z = W a + b over n images is dW = D A and db = D 1, with D ``(m, n)`` the derivatives of the loss
at its m outputs and A ``(n, k)`` the inputs. For one image D = db (Geiping et al. 2020, proposition 3.1). For more, dW
fixes the spans of D and of A alone, and two things fix the columns:

- Zeros. A ReLU behind the layer makes an entry of D zero where an output was not positive. With dW = L R of rank n, a column
  of D is L q, along which far more entries vanish than along any other direction. Candidates are walked down to from random
  starts and single outputs' rows. Two images of one class can make a difference of columns that nearly vanishes; exact zeros
  tell it from a column.
- Labels. Where a head W stands behind the ReLU, the column of an image of label y is m * (W^T (p - e_y)), p being the
  head's predictions and m a mask. Points of the span and of these masked slopes are searched for by averaged reflections.
  This takes batches several times as large as zeros alone.

Of the head itself, under a cross-entropy, n dW = D^T H and n db = D^T 1, a row of D being softmax(z) - e_y. With n dW = U
R, U orthonormal, only Q in H = Q R is open, and D(Q R)^T Q = U is solved by Levenberg and Marquardt, for fewer images
than classes. Images that rounding cannot distinguish are solved for as one.

Sources: Dimitrov et al., SPEAR (NeurIPS 2024), for zeros; Qu, Sun and Wright (IEEE Trans. Inf. Theory 62, 2016), for
walks; Spielman, Wang and Wright (COLT 2012), for starts at rows; Chartrand and Yin (ICASSP 2008), for weights of
shrinking smoothness; Elser (J. Opt. Soc. Am. A 20, 2003), for reflections; Fan et al. 2025, Maui, for labels and the
head. Masked slopes, elimination, reading A through truncated factors, and the head's equations are derived here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.gradients.update import Tangent

_RANK = 1e-5  # singular values below this share of the largest are rounding
EXPLAINED = 1e-2  # a batch is explained when what it leaves of the layer's gradient is below this share
_MOST, MOST_BY_LABELS = 32, 128  # images of a batch that is separated by walks, and by labels
_SURPLUS = 5  # zeros beyond those that any direction has that attest one

_EVERY, _TURNS = 10, 4  # reflections between two looks; searches with own predictions as long as images are missing
_MOST_CLASSES = 32  # classes up to which points have own predictions, a system of equations of this size each
_MET, _OWN_MET = 0.999, 0.99999  # cosine of a column and masked slopes that meet (mixtures: 0.98); of fitted ones
_ONE = 0.99  # cosine of two columns from which on they are one
_RIDGE, _LEAST_RIDGE = 0.1, 1e-6  # weights of first predictions in fitting own ones, on the way and before a look
_FITS = 3  # fits of predictions and masks in turn before a look

_ROUNDS, _STARTS, _WALKED = 16, 256, 20  # of walks at most; starts of each; steps of each
_ASIDE = 0.4  # every second round begins aside of so large a share of all directions
_FIRST, _LAST, _SHRINK = 1e-4, 1e-6, 0.5  # smoothness of the weights of a fit, in root mean squares: from, to, factor
_SOLVES, _JITTER = 2, 1e-15  # steps of inverse iteration under the same weights; share of its sum added to a diagonal
_ZERO, _COARSE = 1e-5, 2e-3  # shares of a column's root mean square below which an entry is zero: at least and at most
_NOISE = 10.0  # standard deviations of the noise within which it is
_SAME, _MANY = 1 - 1e-8, 4  # cosine of equal candidates; candidates kept for each of the span's dimensions
_CONTAINED = 0.9  # a direction is a mixture when so large a share of its zeros are another one's too
_AS_OFTEN = 0.5  # share of the best one's zeros that an attested one has at least
_CONFIRMED = 0.998  # cosine of columns from which on labels confirm one
_APART = 1e-2  # length of a unit direction's part beside others from which on it is another
_RATIO, _SWEEPS, _GAIN = 3e-4, 6, 3  # of elimination: width of equal ratios, sweeps, and zeros that a step must gain

MOST_AT_HEAD = 16  # images of a batch that is separated at the head
SURE, _HEAD_RANK = 0.02, 3e-7  # predicted relative error below which inputs are known; as _RANK, of the head's gradient
_TRIES, _STEPS, _FIXED = 8, 120, 1e-9  # starts; steps of each; relative gain of a step that stands still
_OPERATIONS, _ENTRIES = 2**31, 2**23  # products of a step of all starts together; entries of derivatives held at once
_SPREAD, _TINY = 0.02, 1e-24  # deviation of logits by which a start separates one label; squares of solved equations
_LIKELY, _AS_GOOD = 1e3, 30.0  # times the least sum of squares of solutions looked at closely, and then as good
_SOLVED, _EXPLAINED = 1e-2, 100.0  # share of equations that may stay unsolved; times the rounding that may be left


class _Search(NamedTuple):
    starts: int  # for each image of a label
    most: int
    steps: int  # reflections at most
    spread: float = 0.0  # with which first predictions are drawn


_ALIKE, _OWN = _Search(16, 512, 400), _Search(64, 1024, 150, spread=2.0)
"""Where predictions are taken for alike, and for those that are left."""


@dataclass(frozen=True)
class LabelSlopes:
    """A head W ``(C, m)`` behind a layer with a ReLU, float64; the mean prediction and images of each label ``(C,)``."""

    head: Tensor
    chances: Tensor
    counts: Tensor

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


class _Coordinates:
    """Coordinates in which the columns ``basis diag(values) onto`` ``(u, r)`` of all directions are alike long."""

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
        """Return unit directions ``(s, r)`` along which squares over entries' sizes (or squares: no ``root``) are less.

        By inverse iteration from where they are: the least eigenvector takes ten times as long. Weights are smooth in shares
        of the root mean square, beside entries' ``noise``.
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


class _Span:
    """Columns L ``(u, rank)``, whose entries carry noise of a standard deviation for a unit direction."""

    def __init__(self, columns: Tensor, noise: float) -> None:
        self.columns, self.noise, self.rank = columns, noise, columns.shape[1]
        self._even, self._plain = _Coordinates(functional.normalize(columns)), _Coordinates(columns)

    def vanishing(self, directions: Tensor) -> Tensor:
        """Return at which outputs ``(u, r)`` the column of each direction ``(r, rank)`` is zero."""
        columns = self.columns @ directions.T
        sizes = columns.square().mean(0).sqrt()
        return columns.abs() < (_ZERO * sizes + _NOISE * self.noise).minimum(_COARSE * sizes)

    def walked(self, aside: Tensor, generator: torch.Generator) -> Tensor:
        """Walk from random starts and single outputs' rows to directions that make the entries' mean size least near by."""
        drawn = torch.randn(_STARTS // 2, self.rank, generator=generator, dtype=self.columns.dtype)
        picked = torch.randint(len(self.columns), (_STARTS // 2,), generator=generator)
        starts = torch.cat([drawn, self._even.basis[picked]])
        if len(aside):
            known = torch.linalg.qr(self._even.within(aside).T)[0]
            starts = starts - (starts @ known) @ known.T
        inner = functional.normalize(starts)
        for step in range(_WALKED):
            inner = self._even.reweighted(inner, max(0.3 * 0.75**step, 1e-4), 0.0, root=True)
        return self._even.without(inner)

    def fitted(self, directions: Tensor) -> Tensor:
        """Return directions ``(s, rank)`` fitted to the entries that vanish along them, ever more exactly."""
        inner, smooth = self._plain.within(directions), _FIRST
        # In these coordinates a unit direction is longer than one by as much as a column is short.
        noise = self.noise / float(self._plain.values.min())
        while smooth > _LAST:
            inner = self._plain.reweighted(inner, smooth, noise, root=False)
            smooth *= _SHRINK
        return self._plain.without(inner)


def _sparse_directions(span: _Span, generator: torch.Generator, by_label: LabelSlopes | None) -> tuple[Tensor, int]:
    """Return unit directions ``(r, rank)`` whose columns vanish more often than by chance; the first so many attested."""
    labelled = found = span.columns.new_zeros(0, span.rank)
    attested, before = 0, -1
    if by_label is not None:
        labelled = masked_columns(span.columns, by_label, generator)
        found, attested, _ = _distinct(span, span.fitted(labelled), labelled)
    for turn in range(_ROUNDS if span.rank <= _MOST and attested < span.rank else 0):
        some = torch.randperm(attested, generator=generator)[: int(_ASIDE * span.rank) if turn % 2 else 0]
        fitted = span.fitted(span.walked(found[some], generator))
        zeros = span.vanishing(fitted).sum(0)
        order = zeros.argsort(descending=True, stable=True)
        promising, fresh = fitted[order[zeros[order] >= span.rank - 1 + _SURPLUS]], [found]
        while len(promising) and len(fresh) <= _MANY * span.rank:
            fresh.append(promising[:1])
            promising = promising[(promising @ promising[0]).abs() < _SAME]
        found, _, _ = _distinct(span, torch.cat(fresh), labelled)
        found, attested, total = _distinct(span, torch.cat([_eliminated(span, found), found]), labelled)
        if attested == span.rank and total == before:
            break
        before = total
    return found, attested


def _eliminated(span: _Span, directions: Tensor) -> Tensor:
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


def _without_others(span: _Span, directions: Tensor, number: int) -> Tensor | None:
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


def _distinct(span: _Span, directions: Tensor, labelled: Tensor) -> tuple[Tensor, int, int]:
    """Return directions without repeats, how many of them, the first, are attested, and the zeros of these together.

    Attested are those that vanish about as often as the best, and not only where a better one does (as a mixture would),
    and those whose column is one of the ``labelled`` ``(l, rank)``. Others fill up, most zeros first: a mixture in place
    of one of its own parts spoils no image but theirs. Those with hardly more than the ``rank - 1`` zeros of any are left
    out.
    """
    if not len(directions):
        return directions, 0, 0
    vanish = span.vanishing(directions)
    zeros, rank = vanish.sum(0), span.rank
    # Of the directions that nearly are a labelled one it is the one with the most zeros.
    columns, expected = (functional.normalize(span.columns @ some.T, dim=0) for some in (directions, labelled))
    alike = (columns.T @ expected).abs() > _CONFIRMED
    confirmed = set(torch.where(alike, zeros.unsqueeze(1), -1).argmax(0)[alike.any(0)].tolist())
    order = zeros.argsort(descending=True, stable=True).tolist()
    order = [entry for entry in order if zeros[entry] >= rank - 1 + _SURPLUS or entry in confirmed]
    chosen: list[int] = []

    def fills(number: int) -> bool:
        """True where a direction has a part beside the chosen ones."""
        basis = torch.linalg.qr(directions[chosen].T)[0] if chosen else directions.new_zeros(rank, 0)
        return float((directions[number] - basis @ (basis.T @ directions[number])).norm()) > _APART

    for entry in sorted(order, key=lambda item: item not in confirmed):
        if len(chosen) == rank:
            break
        if entry not in confirmed:
            if zeros[entry] < _AS_OFTEN * zeros[order[0]]:
                break
            shared = (vanish[:, chosen] & vanish[:, [entry]]).sum(0)
            if chosen and int(shared.max()) >= _CONTAINED * zeros[entry]:
                continue
        if fills(entry):
            chosen.append(entry)
    attested, total = len(chosen), int(zeros[chosen].sum())
    for entry in order:
        if len(chosen) < rank and entry not in chosen and fills(entry):
            chosen.append(entry)
    return directions[chosen], attested, total


def _rank(values: Tensor) -> int:
    return int((values > _RANK * values[0].clamp(min=1e-300)).sum())


def separate(
    weight: Tensor, bias: Tensor, count: int, generator: torch.Generator, by_label: LabelSlopes | None = None
) -> tuple[Tensor, int]:
    """Return the columns of D ``(m, r)``, float64, of as many images as can be separated; the first so many are attested.

    ``weight`` is dW ``(m, k)``, or its product with anything from the right that keeps its rank; ``bias`` is db ``(m,)``.
    """
    weight, bias = weight.double().cpu(), bias.double().cpu()
    if count == 1:
        return bias[:, None], 1
    left, values, _ = torch.linalg.svd(weight, full_matrices=False)
    rank = min(count, _rank(values))
    # Outputs that no image touched carry rounding only, and would be zeros of every direction.
    lengths = weight.norm(dim=1)
    live = (lengths > _RANK * lengths.max().clamp(min=1e-300)).nonzero().squeeze(1)
    span = left[:, :rank] * values[:rank]
    if rank < 1 or len(live) <= rank:
        return weight.new_zeros(len(weight), 0), 0
    directions, attested = weight.new_ones(1, 1), 0
    if rank > 1:
        # What is left of the gradient beside its n largest parts is rounding, spread evenly over the entries.
        left_over = float(values[rank]) if len(values) > rank else 0.0
        noise = left_over / (math.sqrt(len(weight)) + math.sqrt(weight.shape[1]))
        at_live = by_label and replace(by_label, head=by_label.head[:, live].contiguous())
        directions, attested = _sparse_directions(_Span(span[live], noise), generator, at_live)
    columns = span @ directions.T
    # Each column has its true length when all of them sum to db.
    scales = torch.linalg.lstsq(columns, bias[:, None], driver="gelsd").solution[:, 0]
    sound = scales.abs() * columns.norm(dim=0) > _RANK * bias.norm()
    return (columns * scales)[:, sound], int(sound[:attested].sum())


def lone_inputs(weight: Tensor, bias: Tensor) -> Tensor:
    """Return dW_k / db_k of the outputs that any image touched ``(u, k)``, once each, confirmed ones first.

    Where one image alone touched an output, that is what it put in; two outputs that agree can hardly both be mixtures.
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


class LinearGradient:
    """The gradient of a linear layer ``(m, k)`` as far as an update says it, float64 on the CPU; if truncated projected.

    ``rows`` are those along ``onto`` ``(k, r)``, along which a truncated layer's are known; None for everything.
    """

    def __init__(self, gradient: Mapping[str, Tensor], project: Any, layer: str) -> None:
        name = f"{layer}.weight"
        tangent = project if isinstance(project, Tangent) else Tangent()
        right = tangent.right.get(name)
        self.weight, self.bias = gradient[name].double().cpu(), gradient[f"{layer}.bias"].double().cpu()
        self._left = tangent.left.get(name)
        self.onto = None if right is None else right.double().cpu().T
        self.rows = self.weight if self.onto is None else self.weight @ self.onto

    def inputs(self, errors: Tensor) -> Tensor:
        """Return the layer's inputs ``(r, k)``: the least-squares solution A of D A = dW, ``(m, r)`` and ``(m, k)``."""
        weight = self.weight
        if self._left is not None:  # no more is known in all columns
            onto = self._left.double().cpu().T
            errors, weight = onto @ errors, onto @ weight
        inputs: Tensor = torch.linalg.pinv(errors) @ weight
        return inputs

    def unexplained(self, inputs: Tensor) -> float:
        """Return the share of the rows that is no combination of inputs ``(n, k)``."""
        seen = inputs if self.onto is None else inputs @ self.onto
        rest = self.rows - self.rows @ torch.linalg.pinv(seen) @ seen
        return float(rest.norm() / self.rows.norm().clamp(min=1e-300))

    def parts(self, count: int, draw: torch.Generator, by_label: LabelSlopes | None = None) -> Parts | None:
        """Return the parts of one step, an image each; None where there are not as many parts as images."""
        if count > (_MOST if by_label is None else MOST_BY_LABELS):
            return None
        errors, attested = separate(self.rows, self.bias, count, draw, by_label)
        missing = count - errors.shape[1]
        if missing and (by_label is None or errors.shape[1] < _rank(torch.linalg.svdvals(self.rows))):
            return None
        inputs = self.inputs(errors)
        # Derivatives are n times an image's share of the mean loss; zeros stand for one that the network is sure of.
        derivatives, inputs = (functional.pad(values, (0, 0, 0, missing)) for values in (count * errors.T, inputs))
        explained = self.unexplained(inputs) < EXPLAINED
        return Parts(derivatives.float(), inputs.float(), explained, attested == count)


@dataclass(frozen=True)
class HeadMembers:
    """The images of one step at the head, in the order of the labels."""

    derivatives: Tensor  # (n, C) of the loss at the logits
    inputs: Tensor  # (n, d), an estimate or the mean of the label's images for those that are not sure
    sure: Tensor  # (n,)


@dataclass(frozen=True)
class _Equations:
    """D(Q R)^T Q = U, of groups of images that share their representation."""

    left: Tensor  # U (C, g)
    values: Tensor  # (g,) singular values of n dW; R is they times the right singular vectors
    logits: Tensor  # (g, C) R W^T, what R makes of the logits
    bias: Tensor  # b (C,)
    slope: Tensor  # n db (C,)
    truth: Tensor  # (g, C) one-hot labels
    sizes: Tensor  # (g,) images of each group

    def derivatives(self, mixing: Tensor) -> Tensor:
        """Return the rows of D ``(..., g, C)`` of mixings ``(..., g, g)``, those of a group summed."""
        chances: Tensor = (mixing @ self.logits + self.bias).softmax(-1)
        return self.sizes.unsqueeze(1) * (chances - self.truth)

    def left_over(self, mixing: Tensor, weights: Tensor) -> Tensor:
        """Return the part that stays unsolved ``(..., C g + C)``, columns of the first part times ``weights`` ``(g,)``."""
        pulls = self.derivatives(mixing)
        first = (pulls.mT @ mixing - self.left) * weights
        return torch.cat([first.flatten(-2), pulls.sum(-2) - self.slope], -1)

    def slopes(self, mixing: Tensor, weights: Tensor) -> Tensor:
        """Return the derivative of :meth:`left_over` at mixings ``(k, g, g)``, ``(k, C g + C, g g)``."""
        chances: Tensor = (mixing @ self.logits + self.bias).softmax(-1)
        number, n_classes = self.truth.shape
        # How D_jc moves with Q_jl: s_j p_jc (L_lc - sum_m p_jm L_lm); of another row it does not.
        leads = self.logits - (chances @ self.logits.mT).unsqueeze(-1)
        turns = self.sizes[:, None, None] * chances.unsqueeze(-2) * leads
        first = torch.einsum("bjk,bjlc->bckjl", mixing, turns)
        first.diagonal(dim1=2, dim2=4).add_(self.derivatives(mixing).permute(0, 2, 1).unsqueeze(-1))
        first = first * weights[:, None, None]
        second = turns.permute(0, 3, 1, 2)
        unknowns = number * number
        return torch.cat([first.reshape(-1, n_classes * number, unknowns), second.reshape(-1, n_classes, unknowns)], 1)


def members_of_head(
    weight: Tensor, bias: Tensor, head: tuple[Tensor, Tensor], labels: Tensor, generator: torch.Generator
) -> HeadMembers | None:
    """Return each image's inputs to a head; None where the equations have no solution that can be found.

    Of gradients dW ``(C, d)`` and db ``(C,)`` of the mean cross-entropy, W and b before the step, and labels ``(n,)``.
    """
    count, labels = len(labels), labels.cpu()
    given = [value.double().cpu() for value in (weight, bias, *head)]
    if not 2 <= count <= min(MOST_AT_HEAD, len(given[1]) - 1) or int(labels.min()) < 0:
        return None
    classes, of_class = labels.unique(return_inverse=True)
    tried = [(torch.arange(count), labels), (of_class, classes)]
    for groups, current in tried if len(classes) < count else tried[:1]:
        sizes = torch.bincount(groups)
        result = _solved(given, current, sizes.double(), count, generator)
        if result is not None:
            pulls, inputs, errors = result
            sure = (errors < SURE) & (sizes == 1)
            return HeadMembers((pulls / sizes.unsqueeze(1))[groups].float(), inputs[groups].float(), sure[groups])
    return None


def _solved(
    given: list[Tensor], labels: Tensor, sizes: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return D ``(g, C)``, representations ``(g, d)`` and their relative errors ``(g,)`` of groups; None for no solution."""
    weight, bias, head, head_bias = given
    left, values, right = torch.linalg.svd(count * weight, full_matrices=False)
    number, n_classes = len(labels), len(bias)
    if len(values) < number or float(values[number - 1]) <= _HEAD_RANK * float(values[0]):
        return None
    basis = values[:number, None] * right[:number]
    truth = functional.one_hot(labels, n_classes).double()
    equations = _Equations(left[:, :number], values[:number], basis @ head.T, head_bias, count * bias, truth, sizes)
    tried, losses = _tried(equations, count, generator)
    least = float(losses.min())
    if not least <= _SOLVED**2 * number:
        return None
    # In the gradient's own units rounding is alike everywhere, which is what errors follow from.
    weights = equations.values / equations.values[0]
    polished, lefts = _descended(equations, tried[losses < max(_LIKELY * least, _TINY)], weights)
    best, loss = polished[lefts.argmin()], float(lefts.min())
    others = polished[lefts < max(_AS_GOOD * loss, _TINY)] @ basis
    rounding = float(values[number]) if len(values) > number else 0.0
    rounding = max(rounding / (math.sqrt(n_classes) + math.sqrt(weight.shape[1])), 1e-8 * float(values[0]))
    rounding, noise = rounding / float(values[0]), math.sqrt(loss / (number * n_classes))
    inputs, errors = best @ basis, _errors(equations, best, max(rounding, noise))
    if noise > _EXPLAINED * rounding:
        errors = torch.full_like(errors, torch.inf)
    for other in others:
        apart = torch.cdist(inputs, other).where(labels.unsqueeze(1) == labels, torch.inf).amin(1)
        errors = errors.maximum(apart / inputs.norm(dim=1))
    return equations.derivatives(best), inputs, errors


def _start(equations: _Equations, count: int, generator: torch.Generator) -> Tensor:
    """Return a first mixing ``(g, g)``: that of derivatives by the mean prediction, images of one label drawn apart."""
    total = (equations.sizes.unsqueeze(1) * equations.truth).sum(0)
    mean = ((equations.slope + total) / count).clamp(min=1e-9)
    draws = torch.randn(equations.truth.shape, generator=generator, dtype=mean.dtype)
    pulls = equations.sizes.unsqueeze(1) * ((mean.log() + _SPREAD * draws).softmax(1) - equations.truth)
    values: Tensor = torch.linalg.pinv(pulls.T, rtol=1e-2) @ equations.left
    draws = torch.randn(values.shape, generator=generator, dtype=mean.dtype)
    values += 1e-3 * float(values.norm()) / len(values) * draws
    return values


def _tried(equations: _Equations, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the solutions ``(k, g, g)`` of one start, or of all where that fails, and what they leave ``(k,)``."""
    ones, (number, n_classes) = torch.ones(len(equations.values)).double(), equations.truth.shape
    first = _descended(equations, _start(equations, count, generator)[None], ones)
    tries = min(_OPERATIONS // (n_classes * (number + 1) * number**4), _TRIES - 1)
    if float(first[1]) <= _FIXED or not tries:
        return first
    starts = torch.stack([_start(equations, count, generator) for _ in range(tries)])
    points, losses = zip(first, _descended(equations, starts, ones), strict=True)
    return torch.cat(points), torch.cat(losses)


def _descended(equations: _Equations, starts: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the solutions ``(k, g, g)`` that starts lead to, and the sums of squares ``(k,)`` that are left."""
    number, n_classes = equations.truth.shape
    at_once = max(_ENTRIES // (n_classes * (number + 1) * number**2), 1)
    points, losses = zip(*(_side_by_side(equations, some, weights) for some in starts.split(at_once)), strict=True)
    return torch.cat(points), torch.cat(losses)


def _side_by_side(equations: _Equations, starts: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same of starts that are followed at once, each with a damping of its own until it ends."""
    points = starts.clone()
    rest = equations.left_over(points, weights)
    losses = rest.square().sum(1)
    dampings, steps = torch.full_like(losses, 1e-3), torch.zeros_like(losses)
    going = losses.isfinite()
    losses = losses.where(going, torch.inf)
    while bool(going.any()):
        rows = going.nonzero().flatten()
        at, damping = points[rows], dampings[rows]
        slopes = equations.slopes(at, weights)
        squares, pull = slopes.mT @ slopes, slopes.mT @ rest[rows].unsqueeze(2)
        current = squares.diagonal(dim1=1, dim2=2)
        steep = squares + torch.diag_embed(damping[:, None] * (current + 1e-14 * current.sum(1, keepdim=True)))
        step, failed = torch.linalg.solve_ex(steep, -pull)
        there = at + step.view(at.shape)
        left = equations.left_over(there, weights)
        values = left.square().sum(1)
        better = (failed == 0) & (values < losses[rows])
        gains = (losses[rows] - values).where(better, torch.inf)
        moved = rows[better]
        points[moved], rest[moved], losses[moved] = there[better], left[better], values[better]
        dampings[rows] = (damping / 5).clamp(min=1e-14).where(better, damping * 4)
        steps[rows] += better
        still = (gains < _FIXED * losses[rows]) | (losses[rows] < _TINY) | (steps[rows] >= _STEPS)
        going[rows] = ~still & (dampings[rows] < 1e6)
    return points, losses


def _errors(equations: _Equations, mixing: Tensor, noise: float) -> Tensor:
    """Return the relative error ``(g,)`` of each representation that noise of the equations makes."""
    number = len(mixing)
    slopes = equations.slopes(mixing[None], equations.values / equations.values[0])[0]
    # In units of what each unknown does to a representation, so that what is left open shows as what it is.
    scaled = slopes / equations.values.repeat(number)
    _, sizes, ways = torch.linalg.svd(scaled, full_matrices=False)
    spread = (ways / sizes.clamp(min=_TINY).unsqueeze(1)).square().sum(0).view(number, number).sum(1)
    result: Tensor = noise * spread.sqrt() / (mixing * equations.values).norm(dim=1)
    return result
