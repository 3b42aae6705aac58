"""Images of a batch told apart by the gradient of one fully connected layer: their inputs, and the loss's derivatives.

The gradient of a layer z = W a + b over n images is dW = D A and db = D 1, with D ``(m, n)`` the derivatives of the loss at
its m outputs, one column an image, and A ``(n, k)`` what went in. For one image D = db (Geiping et al. 2020, prop. 3.1). For
more images dW fixes the spans of D and of A alone. Three things fix the columns:

- Zeros. A ReLU behind the layer makes an entry of D zero where an output was not positive for an image: any n - 1 such
  outputs fix the column up to its length, along which far more entries vanish than along others. Columns are guessed from
  sets of outputs, and fitted to what vanishes along them (Dimitrov et al., SPEAR, NeurIPS 2024).
- Labels. Where a head W stands behind the ReLU, the column of an image of label y is m * (W^T (p - e_y)), p being the head's
  predictions and m a mask: points of the span among the masked slopes of a label are searched for by averaged reflections
  (Elser, "Phase retrieval by iterated projections", 2003). This takes batches several times as large.
- The head itself, of which no zeros are needed: n dW = D^T H and n db = D^T 1, the rows of D being softmax(W h_i + b) -
  e_(y_i). With n dW = U R, U ``(C, n)`` orthonormal, the gradient leaves just the square Q in H = Q R open: C n equations
  for n^2 unknowns, solved by the method of Levenberg and Marquardt as long as there are fewer images than classes.

Masked slopes, the elimination of one column from another, the head's equations with their errors, and reading A through
truncated factors are derived here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import jacfwd, vmap
from torch.nn import functional

from fedpriv.attacks.inputs.updates import Tangent

RANK = 1e-5
"""Singular values below this share of the largest are rounding."""

EXPLAINED = 1e-2
"""A batch is explained when what it leaves of the layer's gradient is below this share."""

MOST, MOST_BY_LABELS, MOST_AT_HEAD, SURPLUS = 12, 128, 16, 5
"""Most images taken apart by zeros, for which sets are needed that grow like 2^n, by labels, and by the head; zeros beyond
those of any direction that attest one."""

_EVERY, _MOST_CLASSES, _TURNS = 10, 32, 4
"""Of reflections: how many between two looks, classes up to which points have predictions of their own (which takes a system
of equations of this size each), and searches with these as long as images of a label are missing."""

_MET, _OWN_MET, _ONE = 0.999, 0.99999, 0.99
"""Cosine of a column and masked slopes from which on it is an image's, where mixtures stay below 0.98; the same where the
slopes were fitted to it; and of two columns from which on they are one."""

_RIDGE, _LEAST_RIDGE, _FITS = 0.1, 1e-6, 3
"""Weights of first predictions in fitting own ones, in shares of a class's mean square: on the way, and before a look; fits
of predictions and masks in turn before a look."""

_ZERO, _COARSE, _NOISE = 1e-5, 2e-3, 10.0
"""Shares of a column's root mean square below which an entry is zero: at least, whatever the noise is, and at most; and
standard deviations of the noise within which it is."""

_SMOOTH, _SOLVES, _JITTER = [1e-4 * 0.5**step for step in range(8)], 2, 1e-15
"""Smoothness of the weights that columns are fitted with, in shares of the root mean square; steps of inverse iteration
under the same weights; what is added to a diagonal, in shares of its sum."""

_CHUNK, _CHUNKS, _KEPT, _SAME = 4096, 8, 4, 1 - 1e-6
"""Sets of outputs that are guessed from at a time, times at most, guesses of each that are looked at closely for each
dimension, and cosine from which on two are one."""

_CONTAINED, _AS_OFTEN, _CONFIRMED, _APART = 0.9, 0.5, 0.998, 1e-2
"""A direction is a mixture when so large a share of its zeros are another one's too; share of the best one's zeros that an
attested one has at least; cosine of columns from which on labels confirm one; length of a unit direction's part beside
others from which on it is another."""

SURE, _HEAD_RANK = 0.02, 3e-7
"""Predicted relative error of what an image put into the head below which it is known; singular values of the head's
gradient below this share of the largest are rounding."""

_TRIES, _STEPS, _FIXED, _OPERATIONS = 8, 120, 1e-9, 2**31
"""Starts at most, steps of each, and the relative gain of a step below which a solution stands still; products of a step of
all starts together, so that fewer are tried where classes are many."""

_SPREAD, _TINY = 0.02, 1e-24
"""Standard deviation of the logits by which a start tells images of one label apart; sum of squares of solved equations."""

_LIKELY, _AS_GOOD, _SOLVED, _EXPLAINED = 1e3, 30.0, 1e-2, 100.0
"""Times the least sum of squares up to which a solution is looked at closely, and up to which it is as good then; share of
the equations that may stay unsolved; times the rounding that the gradient shows up to which it explains what a solution
leaves: others are the bottoms of other valleys."""


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
    """Return unit directions ``(s, r)`` whose columns are the masked slopes of some label, each once.

    Args:
        columns: ``(u, r)`` L; a direction q stands for the column L q.
        known: of the same u outputs.
        generator: draws masks and predictions; on the CPU.
    """
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
    for place in range(len(points)):
        if len(chosen) < most and not bool(alike[place, chosen].any()):
            chosen.append(place)
    return points[chosen]


class _Span:
    """Columns L q of a layer's outputs ``(u, r)``, by coordinates p in which they are as long as p: L q = B p.

    Entries carry noise of a standard deviation for a unit direction q.
    """

    def __init__(self, columns: Tensor, noise: float) -> None:
        self.basis, self._onto = torch.linalg.qr(columns)
        self._noise = noise
        self._products = (self.basis.unsqueeze(2) * self.basis.unsqueeze(1)).flatten(1)

    def within(self, columns: Tensor) -> Tensor:
        """Return the unit coordinates ``(s, r)`` nearest to columns ``(u, s)``."""
        return functional.normalize((self.basis.T @ columns).T)

    def vanishing(self, points: Tensor) -> Tensor:
        """Return at which outputs ``(u, s)`` the column of each unit point ``(s, r)`` is zero."""
        directions = torch.linalg.solve_triangular(self._onto, points.T, upper=True)
        size, noise = len(self.basis) ** -0.5, self._noise * directions.norm(dim=0)
        found: Tensor = (self.basis @ points.T).abs() < (_ZERO * size + _NOISE * noise).clamp(max=_COARSE * size)
        return found

    def fitted(self, points: Tensor) -> Tensor:
        """Return points ``(s, r)`` fitted to the entries that vanish along them, ever more exactly.

        By inverse iteration under weights of shrinking smoothness (Chartrand and Yin, ICASSP 2008).
        """
        number, rank = self.basis.shape
        directions = torch.linalg.solve_triangular(self._onto, points.T, upper=True)
        noise = (self._noise * directions.norm(dim=0)).square()
        for smooth in _SMOOTH:
            weights = ((self.basis @ points.T).square() + smooth**2 / number + noise).reciprocal()
            sums = (weights.T @ self._products).view(len(points), rank, rank)
            diagonal = sums.diagonal(dim1=1, dim2=2)
            diagonal.add_(_JITTER * diagonal.sum(1, keepdim=True))
            lower, failed = torch.linalg.cholesky_ex(sums)
            least = points.unsqueeze(2)
            for _ in range(_SOLVES):
                least = functional.normalize(torch.cholesky_solve(least, lower), dim=1)
            points = torch.where((failed == 0).unsqueeze(1), least[:, :, 0], points)
        return points

    def guessed(self, generator: torch.Generator) -> Tensor:
        """Return the points ``(s, r)`` whose columns vanish at as many drawn outputs as any can vanish at."""
        number, rank = self.basis.shape
        sets = torch.rand(_CHUNK, number, generator=generator).topk(rank - 1).indices
        found: Tensor = torch.linalg.qr(self.basis[sets].mT, mode="complete").Q
        return found[..., -1]


def sparse_columns(
    span: _Span, generator: torch.Generator, by_label: LabelSlopes | None, known: Tensor | None
) -> tuple[Tensor, int]:
    """Return columns ``(u, s)`` that vanish far more often than by chance, and how many of them, the first, are attested.

    Masked slopes of labels, and ``known`` columns ``(u, l)``, are taken before guesses from sets of outputs.
    """
    rank = span.basis.shape[1]
    labelled = span.basis.new_zeros(0, rank)
    if by_label is not None:
        labelled = masked_columns(span.basis, by_label, generator)
    if known is not None:
        labelled = torch.cat([labelled, span.within(known)])
    points, attested = _distinct(span, span.fitted(labelled), labelled)
    if attested == rank or rank > MOST:
        return span.basis @ points.T, attested
    before = -1
    for _ in range(_CHUNKS):
        guesses = span.guessed(generator)
        zeros = span.vanishing(guesses).sum(0)
        left, kept = guesses[zeros.argsort(descending=True)][: int((zeros >= rank - 1 + SURPLUS).sum())], []
        while len(left) and len(kept) < _KEPT * rank:
            kept.append(left[0])
            left = left[(left @ left[0]).abs() < _SAME]
        fitted = span.fitted(torch.stack(kept)) if kept else points[:0]
        points, attested = _distinct(span, torch.cat([points, fitted]), labelled)
        total = int(span.vanishing(points).sum())
        if attested == rank and total == before:
            break
        before = total
    return span.basis @ points.T, attested


def _distinct(span: _Span, points: Tensor, labelled: Tensor) -> tuple[Tensor, int]:
    """Return points ``(s, r)`` without repeats, and how many of them, the first, are attested.

    Attested are those near ``labelled`` ones ``(l, r)``, and those that vanish about as often as the best, and not only
    where a better one does: a mixture of two columns vanishes where both do. Others fill up, most zeros first: a mixture in
    place of one of its own parts spoils no image but theirs.
    """
    rank = points.shape[1]
    chosen: list[int] = []
    if not len(points):
        return points, 0
    vanish = span.vanishing(points)
    zeros = vanish.sum(0)
    confirmed = ((points @ labelled.T).abs() > _CONFIRMED).any(1).tolist()
    order = [
        one for one in zeros.argsort(descending=True).tolist() if zeros[one] >= rank - 1 + SURPLUS or confirmed[one]
    ]

    def fills(one: int) -> bool:
        """True where a point has a part beside the chosen ones."""
        basis = torch.linalg.qr(points[chosen].T)[0] if chosen else points.new_zeros(rank, 0)
        return len(chosen) < rank and float((points[one] - basis @ (basis.T @ points[one])).norm()) > _APART

    for one in sorted(order, key=lambda one: not confirmed[one]):
        if not confirmed[one]:
            if zeros[one] < _AS_OFTEN * zeros[order[0]]:
                break
            shared = (vanish[:, chosen] & vanish[:, [one]]).sum(0)
            if chosen and int(shared.max()) >= _CONTAINED * zeros[one]:
                continue
        if fills(one):
            chosen.append(one)
    attested = len(chosen)
    for one in order:
        if one not in chosen and fills(one):
            chosen.append(one)
    return points[chosen], attested


class Separation(NamedTuple):
    """Columns of D ``(m, r)``, float64, of as many images as were separated; the first ``attested`` surely are images'."""

    errors: Tensor
    attested: int


def separate(
    weight: Tensor,
    bias: Tensor,
    count: int,
    generator: torch.Generator,
    by_label: LabelSlopes | None = None,
    known: Tensor | None = None,
) -> Separation:
    """Return the columns of D of as many images as can be separated.

    Args:
        weight: ``(m, k)`` gradient dW, or its product with anything from the right that keeps its rank.
        bias: ``(m,)`` gradient db.
        count: n.
        generator: draws masks and sets of outputs; on the CPU.
        by_label: what the labels make of the outputs that are positive, or None.
        known: ``(m, s)`` columns of which everything is known but their lengths, or None.
    """
    weight, bias = weight.double().cpu(), bias.double().cpu()
    if count == 1:
        return Separation(bias[:, None], 1)
    # The left side of R' is that of weight = R' Q', and much cheaper.
    left, values, _ = torch.linalg.svd(torch.linalg.qr(weight.T, mode="r").R.T, full_matrices=False)
    rank = min(count, int((values > RANK * values[0].clamp(min=1e-300)).sum()))
    # Outputs that no image touched carry rounding only, and would be zeros of every direction.
    lengths = weight.norm(dim=1)
    live = (lengths > RANK * lengths.max().clamp(min=1e-300)).nonzero().squeeze(1)
    span = left[:, :rank] * values[:rank]
    if rank < 1 or len(live) <= rank:
        return Separation(weight.new_zeros(len(weight), 0), 0)
    columns, attested = span.clone(), 0
    if rank > 1:
        # What is left of the gradient beside its n largest parts is rounding, spread evenly over the entries.
        noise = float(values[rank]) if len(values) > rank else 0.0
        noise /= math.sqrt(len(weight)) + math.sqrt(weight.shape[1])
        there = None if known is None else known.double().cpu()[live]
        found, attested = sparse_columns(_Span(span[live], noise), generator, by_label and by_label.at(live), there)
        columns = weight.new_zeros(len(weight), found.shape[1])
        columns[live] = found
    # Each column has its true length when all of them sum to db.
    scales = torch.linalg.lstsq(columns, bias[:, None], driver="gelsd").solution[:, 0]
    sound = scales.abs() * columns.norm(dim=0) > RANK * bias.norm()
    return Separation((columns * scales)[:, sound], int(sound[:attested].sum()))


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


def lone_inputs(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return dW_k / db_k of the outputs that any image touched ``(u, k)``, those first that other outputs confirm.

    Where one image alone touched an output, that is what the image put in; else a mixture. Two outputs that agree can
    hardly both be mixtures, so repeats are counted, in the second tensor ``(u,)``, and left out.
    """
    weight, bias = weight.double().cpu(), bias.double().cpu()
    live = (bias.abs() > 1e-4 * bias.abs().max().clamp(min=1e-300)).nonzero().squeeze(1)
    ratios, weights = weight[live] / bias[live, None], bias[live].abs()
    sizes = ratios.norm(dim=1).clamp(min=1e-300)
    alike = torch.cdist(ratios, ratios) < 1e-2 * torch.minimum(sizes[:, None], sizes[None])
    rest = torch.ones(len(live), dtype=torch.bool)
    inputs, votes = [], []
    # Ties by size of db: the same rounding error matters least there.
    for one in sorted(range(len(live)), key=lambda row: (-int(alike[row].sum()), -float(weights[row]))):
        members = alike[one] & rest
        if not rest[one]:
            continue
        rest &= ~members
        inputs.append(weights[members] / weights[members].sum() @ ratios[members])
        votes.append(int(members.sum()))
    return torch.stack(inputs) if inputs else ratios, torch.tensor(votes, dtype=torch.int64)


class Parts(NamedTuple):
    """The images of one step at a linear layer, in no particular order.

    Attributes:
        derivatives: ``(n, m)`` of the loss of each image at the layer's outputs.
        inputs: ``(n, k)`` what each put into the layer.
        explained: whether they leave next to nothing of the layer's gradient.
        attested: whether each shows by itself that it is no mixture, by how often it vanishes.
    """

    derivatives: Tensor
    inputs: Tensor
    explained: bool
    attested: bool


@dataclass(frozen=True)
class LinearGradient:
    """The gradient of a linear layer as far as an update says it, float64 on the CPU.

    Attributes:
        weight: ``(m, k)`` of its weight.
        bias: ``(m,)`` of its bias.
        left: factor that the columns of a truncated layer are known along, or None.
        onto: ``(k, r)``, its rows likewise.
    """

    weight: Tensor
    bias: Tensor
    left: Tensor | None
    onto: Tensor | None

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
            errors, attested = separate(self.rows, self.bias, count, draw, by_label)
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
    """Return the gradient of a layer as an update says it.

    Args:
        gradient: by name of the parameter, already projected where the upload is truncated.
        project: the projection, of truncated uploads a :class:`fedpriv.attacks.read.updates.Tangent`.
        layer: name of the layer.
    """
    name = f"{layer}.weight"
    tangent = project if isinstance(project, Tangent) else Tangent()
    left, right = tangent.left.get(name), tangent.right.get(name)
    weight, bias = gradient[name].double().cpu(), gradient[f"{layer}.bias"].double().cpu()
    return LinearGradient(weight, bias, left, None if right is None else right.double().cpu().T)


class HeadMembers(NamedTuple):
    """The images of one step at the head, in the order of the labels.

    Attributes:
        derivatives: ``(n, C)`` of the loss of each image at the logits.
        inputs: ``(n, d)`` what each put in; of those that are not sure an estimate, or what images of its label put in on
            the whole.
        sure: ``(n,)`` whether an image's own inputs are known.
    """

    derivatives: Tensor
    inputs: Tensor
    sure: Tensor


def members_of_head(
    weight: Tensor, bias: Tensor, head: tuple[Tensor, Tensor], labels: Tensor, generator: torch.Generator
) -> HeadMembers | None:
    """Return each image's inputs to a head; None where the equations have no solution that can be found.

    Args:
        weight: ``(C, d)`` gradient dW of the mean cross-entropy.
        bias: ``(C,)`` gradient db.
        head: W ``(C, d)`` and b ``(C,)`` before the step.
        labels: ``(n,)``; n is at least 2 and less than C.
        generator: draws the starts; on the CPU.
    """
    count, labels = len(labels), labels.cpu()
    given = [value.double().cpu() for value in (weight, bias, *head)]
    if not 2 <= count <= min(MOST_AT_HEAD, len(given[1]) - 1) or int(labels.min()) < 0:
        return None
    classes, of_class = labels.unique(return_inverse=True)
    # Where rounding hides what tells images of one label apart, they are solved for as one.
    for groups, own in ((torch.arange(count), labels), (of_class, classes))[: 1 + (len(classes) < count)]:
        sizes = torch.bincount(groups)
        found = _solved(given, own, sizes.double(), count, generator)
        if found is not None:
            slopes, inputs, errors = found
            sure = (errors < SURE) & (sizes == 1)
            return HeadMembers((slopes / sizes.unsqueeze(1))[groups].float(), inputs[groups].float(), sure[groups])
    return None


@dataclass(frozen=True)
class _Equations:
    """D(Q R)^T Q = U and D^T 1 = n db, of g groups of images that share their representation.

    Attributes:
        left: U ``(C, g)``.
        values: ``(g,)`` singular values of n dW; R is they times the right singular vectors.
        logits: ``(g, C)`` R W^T, what R makes of the logits.
        bias: b ``(C,)``.
        slope: n db ``(C,)``.
        truth: ``(g, C)`` one-hot labels.
        sizes: ``(g,)`` images of each group.
    """

    left: Tensor
    values: Tensor
    logits: Tensor
    bias: Tensor
    slope: Tensor
    truth: Tensor
    sizes: Tensor

    def derivatives(self, mixing: Tensor) -> Tensor:
        """Return the rows of D ``(..., g, C)`` of mixings Q ``(..., g, g)``, those of a group summed."""
        chances: Tensor = (mixing @ self.logits + self.bias).softmax(-1)
        return self.sizes.unsqueeze(1) * (chances - self.truth)

    def left_over(self, mixing: Tensor, weights: Tensor) -> Tensor:
        """Return the part that stays unsolved ``(..., C g + C)``, columns of the first part times ``weights`` ``(g,)``."""
        slopes = self.derivatives(mixing)
        first = (slopes.mT @ mixing - self.left) * weights
        return torch.cat([first.flatten(-2), slopes.sum(-2) - self.slope], -1)

    def jacobian(self, mixing: Tensor, weights: Tensor) -> Tensor:
        """Return the derivative of :meth:`left_over` at mixings ``(k, g, g)``, ``(k, C g + C, g g)``."""
        found: Tensor = vmap(jacfwd(lambda own: self.left_over(own, weights)))(mixing)
        return found.flatten(2)


def _solved(
    given: list[Tensor], labels: Tensor, sizes: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return D ``(g, C)``, representations ``(g, d)`` and their relative errors ``(g,)`` of groups; None for no solution.

    An error is what the gradient's rounding makes, or by what solutions differ that are as good.
    """
    weight, bias, head, head_bias = given
    left, values, right = torch.linalg.svd(count * weight, full_matrices=False)
    number, n_classes = len(labels), len(bias)
    if len(values) < number or float(values[number - 1]) <= _HEAD_RANK * float(values[0]):
        return None
    basis = values[:number, None] * right[:number]
    truth = functional.one_hot(labels, n_classes).double()
    equations = _Equations(left[:, :number], values[:number], basis @ head.T, head_bias, count * bias, truth, sizes)
    ones = torch.ones_like(equations.values)
    tried, losses = _descended(equations, _starts(equations, 1, count, generator), ones)
    tries = min(_OPERATIONS // (n_classes * (number + 1) * number**4), _TRIES - 1)
    if float(losses[0]) > _FIXED and tries:
        points, others = _descended(equations, _starts(equations, tries, count, generator), ones)
        tried, losses = torch.cat([tried, points]), torch.cat([losses, others])
    least = float(losses.min())
    if not least <= _SOLVED**2 * number:
        return None
    # In the gradient's own units rounding is alike everywhere, which is what errors follow from.
    weights = equations.values / equations.values[0]
    polished, lefts = _descended(equations, tried[losses < max(_LIKELY * least, _TINY)], weights)
    best, loss = polished[lefts.argmin()], float(lefts.min())
    rounding = float(values[number]) if len(values) > number else 0.0
    rounding = max(rounding / (math.sqrt(n_classes) + math.sqrt(weight.shape[1])), 1e-8 * float(values[0]))
    rounding, noise = rounding / float(values[0]), math.sqrt(loss / (number * n_classes))
    inputs = best @ basis
    if noise > _EXPLAINED * rounding:
        return equations.derivatives(best), inputs, torch.full((number,), torch.inf)
    # In units of what each unknown does to a representation, so that what is left open shows as what it is.
    scaled = equations.jacobian(best[None], weights)[0] / equations.values.repeat(number)
    _, steep, ways = torch.linalg.svd(scaled, full_matrices=False)
    spread = (ways / steep.clamp(min=_TINY).unsqueeze(1)).square().sum(0).view(number, number).sum(1).sqrt()
    errors = max(rounding, noise) * spread / inputs.norm(dim=1)
    for other in polished[lefts < max(_AS_GOOD * loss, _TINY)] @ basis:
        apart = torch.cdist(inputs, other).where(labels.unsqueeze(1) == labels, torch.inf).amin(1)
        errors = errors.maximum(apart / inputs.norm(dim=1))
    return equations.derivatives(best), inputs, errors


def _starts(equations: _Equations, number: int, count: int, generator: torch.Generator) -> Tensor:
    """Return first mixings ``(k, g, g)``: of derivatives by the mean prediction, images of one label drawn apart."""
    found, total = [], (equations.sizes.unsqueeze(1) * equations.truth).sum(0)
    mean = ((equations.slope + total) / count).clamp(min=1e-9)
    for _ in range(number):
        draws = torch.randn(equations.truth.shape, generator=generator, dtype=mean.dtype)
        slopes = equations.sizes.unsqueeze(1) * ((mean.log() + _SPREAD * draws).softmax(1) - equations.truth)
        start = torch.linalg.pinv(slopes.T, rtol=1e-2) @ equations.left
        draws = torch.randn(start.shape, generator=generator, dtype=mean.dtype)
        found.append(start + 1e-3 * float(start.norm()) / len(start) * draws)
    return torch.stack(found)


def _descended(equations: _Equations, starts: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the solutions ``(k, g, g)`` that starts lead to, and the sums of squares ``(k,)`` that are left.

    All are followed at once, each with a damping of its own until it ends.
    """
    points = starts.clone()
    rest = equations.left_over(points, weights)
    losses = rest.square().sum(1)
    dampings, steps = torch.full_like(losses, 1e-3), torch.zeros_like(losses)
    going = losses.isfinite()
    losses = losses.where(going, torch.inf)
    while bool(going.any()):
        rows = going.nonzero().flatten()
        at, damping = points[rows], dampings[rows]
        slopes = equations.jacobian(at, weights)
        squares, pull = slopes.mT @ slopes, slopes.mT @ rest[rows].unsqueeze(2)
        own = squares.diagonal(dim1=1, dim2=2)
        steep = squares + torch.diag_embed(damping[:, None] * (own + 1e-14 * own.sum(1, keepdim=True)))
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
