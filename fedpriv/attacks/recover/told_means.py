"""Class means from the update of several steps, as far as it can be believed: a regression on made-up clients.

While a client takes several steps its extractor moves, and the equations of :mod:`fedpriv.attacks.recover.closed_form` hold
for no extractor at all. The attacker has a guess without them: q_c, the mean of its own images of the class through the
client's extractor. What the update adds is learned on made-up clients (:mod:`fedpriv.attacks.recover.made_up_clients`), of
whom both are known: by how much their class means lie beside q_c, and by how much their update lies beside what is usual.
With u the update less the mean of theirs, as rows of equations by coordinates,

    r_c = q_c + E[d_c u^T] E[u u^T]^-1 s(u),        d_c = r_c - q_c

where the same few numbers serve all coordinates (of an angle matrix, of one block). The made-up clients' extractor stands
still and the real one's did not, so u has parts that theirs never have. In coordinates in which theirs are of unit
variance, its singular values are held against the largest that updates of further made-up clients have, in order of size. A
larger one, v instead of w, is of something else, and s shortens it to w^2 / v: the gain of a Wiener filter, for a signal of
the one size in a whole of the other. Where all is larger than what images explain, nothing is believed: the guess stays.

What remains of d_c, on these further clients with updates disturbed by what s took away, is the expected distance. The
estimator is our own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import Knowledge, Observation
from fedpriv.attacks.read.extractors import represent
from fedpriv.attacks.read.target_features import rounds_of
from fedpriv.attacks.recover.closed_form import ClassMeans
from fedpriv.attacks.recover.made_up_clients import MadeUp, Steps, Work, as_many, made_up, own_of_class
from fedpriv.attacks.trained import Same
from fedpriv.util.seeds import generator

_ROW_RIDGE, _BLOCK_RIDGE = 0.1, 1e-2
"""Shares of their mean that are added to the variances of equations: of all together, and of those of one block."""

_ROUND = 0.5
"""Share of one variance for all in the covariance of coordinates."""

_HELD_OUT = 3
"""Of so many made-up clients one is held out."""

_TINY = 1e-12


@dataclass(frozen=True)
class Told:
    """Class means that an update tells.

    Attributes:
        means: ``(m, d)`` float32.
        distance: ``(m,)`` float32, expected, from the true ones.
    """

    means: Tensor
    distance: Tensor


@dataclass(frozen=True)
class _Signal:
    """Signals, rows of ``(r, d)``, in coordinates in which those of made-up clients have unit variance.

    Attributes:
        rows: ``(r, r)`` lower triangular root of the covariance of rows.
        columns: ``(d, d)`` the same of coordinates.
        gains: ``(m, r)`` from signals to class means' distances from the guess, once columns are turned back.
    """

    rows: Tensor
    columns: Tensor
    gains: Tensor

    def white(self, signals: Tensor) -> Tensor:
        """Return signals ``(..., r, d)`` in these coordinates."""
        found = torch.linalg.solve_triangular(self.rows, signals, upper=False)
        turned: Tensor = torch.linalg.solve_triangular(self.columns, found.mT, upper=False).mT
        return turned

    def moved(self, white: Tensor) -> Tensor:
        """Return the distances ``(..., m, d)`` from the guess that believed signals tell."""
        return self.gains @ white @ self.columns.T


@dataclass(frozen=True)
class Lesson:
    """The relation of updates to class means, as learned on made-up clients.

    Attributes:
        guess: ``(m, d)`` class means of the attacker's own images, q.
        usual: ``(B, p, n)`` mean update of the made-up clients.
        blocks: ``(B, m, p)`` gains of the equations of each group, where there are several; else None.
        signal: of what is left of updates; None where those of the made-up clients are all alike.
        held: ``(K, r, d)`` white signals of clients held out.
        energies: ``(r,)`` squares of their singular values, ascending: of each the largest that any has.
        aside: ``(K, m, d)`` their class means' distances from the guess.
        further: ``(m,)`` factor by which true class means lie further from the guess than made-up ones: the guess is made of
            few images too.
    """

    guess: Tensor
    usual: Tensor
    blocks: Tensor | None
    signal: _Signal | None
    held: Tensor
    energies: Tensor
    aside: Tensor
    further: Tensor

    def told(self, update: Tensor) -> Told:
        """Return the class means that an update ``(B, p, n)`` tells.

        Coordinates in which it is zero throughout tell nothing: a defense may have left them out.
        """
        there = (update != 0).any(1, keepdim=True)
        beside = torch.where(there, update.double() - self.usual, 0.0)
        if self.signal is None or not bool(beside.isfinite().all()):
            return self._as(self.guess, self.aside)
        white = self.signal.white(signals_of(beside[None], self.blocks)[0])
        believed = self._believed(white)
        disturbed = self._believed(self.held + (white - believed))
        return self._as(self.guess + self.signal.moved(believed), self.aside - self.signal.moved(disturbed))

    def _believed(self, white: Tensor) -> Tensor:
        """Return white signals ``(..., r, d)`` with singular values shortened that are larger than those of images."""
        squares, turns = torch.linalg.eigh(white @ white.mT)
        gains = (self.energies / squares.clamp_min(_TINY)).clamp(max=1)
        found: Tensor = (turns * gains[..., None, :]) @ turns.mT @ white
        return found

    def _as(self, means: Tensor, left: Tensor) -> Told:
        distance = left.square().sum(2).mean(0).sqrt() * self.further
        return Told(means.float(), distance.float())


def learn(work: Work, own: Tensor, features: Tensor, steps: Steps, rng: torch.Generator, each: int) -> Lesson:
    """Make clients up and learn from them.

    Args:
        work: of the real client.
        own: ``(p,)`` classes of the attacker's images.
        features: ``(p, d)`` float64 representations of them by the client's extractor.
        steps: of its layer.
        rng: draws.
        each: multiplications that one image takes in a step.
    """
    number = as_many(work, each)
    some = made_up(work, own, number, rng)
    places = [own_of_class(own, label) for label in work.classes.tolist()]
    guess = torch.stack([features[mine].mean(0) for mine in places])
    aside = _means(work, some, features) - guess
    ratio = work.counts.double() / torch.tensor([len(mine) for mine in places])
    updates = steps(some)
    cut = number - number // _HELD_OUT
    usual = updates[:cut].mean(0)
    if not bool(updates.isfinite().all()):
        updates, usual = torch.zeros_like(updates), torch.zeros_like(usual)
    beside = updates - usual
    blocks = _block_gains(beside[:cut], aside[:cut]) if beside.shape[1] > 1 else None
    signals = signals_of(beside, blocks)
    signal = _signal(signals[:cut], aside[:cut])
    held = signals[cut:] if signal is None else signal.white(signals[cut:])
    energies = torch.linalg.eigvalsh(held @ held.mT).amax(0)
    return Lesson(guess, usual, blocks, signal, held, energies, aside[cut:], (1 + ratio).sqrt())


def _means(work: Work, some: MadeUp, features: Tensor) -> Tensor:
    """Return the class means ``(K, m, d)`` of made-up clients."""
    of_class = (work.held == work.classes[:, None]).double() / work.counts[:, None]
    return torch.stack([of_class @ features[mine] for mine in some.held])


def signals_of(beside: Tensor, blocks: Tensor | None) -> Tensor:
    """Return rows ``(K, r, d)`` of updates ``(K, B, p, n)``: of one group as they are, of several what each tells."""
    if blocks is None:
        return beside[:, 0]
    return torch.einsum("bmp,kbpn->kmbn", blocks, beside).flatten(2)


def _block_gains(beside: Tensor, aside: Tensor) -> Tensor:
    """Return the gains ``(B, m, p)`` by which each group's equations tell the distances of class means from the guess."""
    n_clients, n_groups, n_equations, side = beside.shape
    parts = aside.reshape(n_clients, -1, n_groups, side)
    scale = 1 / (n_clients * side)
    inner = scale * torch.einsum("kbpn,kbqn->bpq", beside, beside)
    across = scale * torch.einsum("kmbn,kbqn->bmq", parts, beside)
    spread = inner.diagonal(dim1=1, dim2=2).mean(1)
    added = _BLOCK_RIDGE * spread + 1e-6 * spread.mean() + torch.finfo(spread.dtype).tiny
    inner = inner + added[:, None, None] * torch.eye(n_equations, dtype=inner.dtype)
    gains: Tensor = torch.linalg.solve(inner, across.mT).mT
    return gains


def _signal(signals: Tensor, aside: Tensor) -> _Signal | None:
    n_clients, n_rows, width = signals.shape
    covariance = torch.einsum("krn,ksn->rs", signals, signals) / (n_clients * width)
    if not float(covariance.diagonal().mean()) > 0:
        return None
    rows = torch.linalg.cholesky(_rounded(covariance, 0, _ROW_RIDGE))
    white = torch.linalg.solve_triangular(rows, signals, upper=False)
    covariance = torch.einsum("krn,kro->no", white, white) / (n_clients * n_rows)
    columns = torch.linalg.cholesky(_rounded(covariance, _ROUND, _ROUND))
    gains = torch.einsum("kmn,krn->mr", aside, white) / (n_clients * width)
    return _Signal(rows, columns, gains)


def _rounded(covariance: Tensor, less: float, more: float) -> Tensor:
    """Return (1 - less) of a covariance and as much more of its mean variance in all directions alike."""
    spread = covariance.diagonal().mean()
    return (1 - less) * covariance + more * spread * torch.eye(len(covariance), dtype=covariance.dtype)


@dataclass(frozen=True)
class Layer:
    """The part of a model that travels.

    Attributes:
        steps: representations ``(p, d)`` of the attacker's images -> the steps of made-up clients on them.
        each: multiplications that one image takes in a step.
        update: ``(B, p, n)`` of the real client, over the learning rate.
    """

    steps: Callable[[Tensor], Steps]
    each: int
    update: Tensor


def learns_of(seen: Sequence[Observation], knowledge: Knowledge) -> bool:
    """True where clients take several steps, one round of the client is seen, and labelled images are granted.

    A client of a single step counts, if others take several: its extractor is known as it was afterwards, too.
    """
    facts = [one for one in (knowledge.batch, *knowledge.batches.values()) if one is not None]
    labels = knowledge.public_labels
    granted = knowledge.public_images is not None and labels is not None and bool((labels >= 0).any())
    return granted and len(seen) == 1 and any(one.steps > 1 for one in facts)


def told_clients(problem: AttackProblem) -> list[int]:
    """Return the clients to recover vectors of: those of the targets, and where made-up clients teach, all that are known.

    However targets are grouped, a decoder then learns behind the same noise.
    """
    knowledge = problem.knowledge
    known = [k for k in knowledge.extractors if learns_of(rounds_of(problem.observations, k), knowledge)]
    return sorted({*problem.clients, *known})


def told_means(problem: AttackProblem, seen: Observation, work: Work, layer: Layer) -> ClassMeans:
    """Return the means of a client's classes, with their expected distances, as its update tells them.

    Clients are made up once for all uploads that answer the same broadcast with the same work: the control's too.
    """
    knowledge, client = problem.knowledge, seen.client
    images, own = knowledge.public_images, knowledge.public_labels
    assert images is not None
    assert own is not None

    def make_up() -> Lesson:
        features = represent(knowledge, client, images, problem.trained).double()
        rng = generator(problem.seed, "made-up clients", seen.round, client)
        return learn(work, own.cpu(), features, layer.steps(features), rng, layer.each)

    labels = tuple(work.held.tolist()) if work.passes is None else tuple(work.passes.flatten().tolist())
    parts = (Same(knowledge.extractors.get(client)), Same(knowledge.heads.get(client)), Same(images), Same(own))
    done = (work.passes is None, labels, work.sizes, work.learning_rate, tuple(layer.update.shape))
    key = ("made-up clients", problem.seed, seen.round, client, Same(seen.broadcast), *parts, *done)
    told = problem.trained.get(key, make_up).told(layer.update)
    return ClassMeans(told.means, math.inf, math.inf, settled=True, distance=told.distance)
