"""Class means from the update of several steps: a regression on simulated clients.

The attacker guesses r_c by q_c, the mean of its own images of the class through the client's extractor. What the update
adds is learned on simulated clients, whose steps on images of the attacker's are followed on the layer alone, with as
many images of a class as the real client, in the same places of the same batches where these are known. With u the update
less the mean of theirs, as rows of equations by coordinates,

    r_c = q_c + E[d_c u^T] E[u u^T]^-1 s(u),        d_c = r_c - q_c

where the same few numbers serve all coordinates (of an angle matrix, of one block). The real extractor moved, so u has
parts that simulated ones never have: s shortens whitened singular values v above the largest w of simulated clients that
validate to w^2 / v, the gain of a Wiener filter. What remains of d_c on these clients, with updates disturbed by what s
took away, is the expected distance. The estimator is our own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedpriv.algebra.matrices import diagonal_blocks
from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.features.base import ClassMeans
from fedpriv.attacks.inputs.extractors import represent
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation
from fedpriv.attacks.trained import Same
from fedpriv.util.seeds import generator

_MOST, _LEAST, _WORK = 96, 24, 2e10
"""Most and fewest simulated clients, and multiplications of their steps: a few seconds of one CPU core."""

_AT_A_TIME = 2**23
"""Numbers in the layers of the clients that are simulated at a time."""

_LEAST_IMAGES = 2
"""Images of a class with fewer of which all of the attacker's images stand for it: one alone says nothing of spread."""

_ROW_RIDGE, _BLOCK_RIDGE = 0.1, 1e-2
"""Shares of their mean that are added to the variances of equations: of all together, and of those of one block."""

_ROUND = 0.5
"""Share of one variance for all in the covariance of coordinates."""

_VALIDATION = 3
"""Of so many simulated clients one validates."""

_TINY = 1e-12

# ---------------------------------------------------------------- simulated clients


@dataclass(frozen=True)
class Work:
    """A client's local steps, as far as the attacker knows them: classes ``(h,)`` of its images, and images of each step.

    ``passes`` ``(e, h)`` are the classes of the images of each pass over them, in order; None where the order is not known.
    """

    labels: Tensor
    passes: Tensor | None
    sizes: tuple[int, ...]
    learning_rate: float

    @property
    def classes(self) -> Tensor:
        """The classes ``(m,)`` that are there, ascending."""
        values: Tensor = self.labels.unique()
        return values

    @property
    def counts(self) -> Tensor:
        """The number of images ``(m,)`` of each of these classes."""
        return torch.bincount(self.labels)[self.classes]


def work_of(facts: BatchFacts, labels: Tensor | None, shares: Tensor) -> Work:
    """Return a client's work by the facts of its local steps; epochs show by the smaller batch that each ends with.

    Given ``labels`` are of the images of all steps in order, or of the client's images; where there are none, ``shares``
    ``(C,)`` of the classes (any multiple) allot them.
    """
    sizes = facts.sizes or (facts.batch_size,) * facts.steps
    ends = sum(size < max(sizes) for size in sizes)
    repeats = ends and len(sizes) % ends == 0 and sizes == sizes[: len(sizes) // ends] * ends
    total, epochs = sum(sizes), ends if repeats else 1
    if labels is None:
        return Work(_allotted(shares, total // epochs), None, sizes, facts.learning_rate)
    labels = labels.cpu().long()
    if len(labels) != total:
        return Work(labels, None, sizes, facts.learning_rate)
    passes = labels.view(epochs, -1)
    if not bool((passes.sort(1).values == passes[0].sort().values).all()):
        passes = labels[None]
    return Work(passes[0], passes, sizes, facts.learning_rate)


def _allotted(shares: Tensor, number: int) -> Tensor:
    """Return as many labels, of each class by its share, by the largest remainders; of each class that is there one."""
    wanted = shares.double() / shares.double().sum().clamp_min(1e-12) * number
    counts = torch.where(shares > 0, wanted.floor().clamp_min(1), 0.0).long()
    for position in (wanted - counts).argsort(descending=True, stable=True).tolist():
        if int(counts.sum()) >= number:
            break
        counts[position] += int(shares[position] > 0)
    return torch.arange(len(shares)).repeat_interleave(counts)


@dataclass(frozen=True)
class SimulatedClients:
    """The images ``(K, h)`` of simulated clients, as places among the attacker's, and the order ``(K, n)`` of their use."""

    images: Tensor
    order: Tensor

    def batches(self, work: Work) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield for each step the images' places ``(K, b)`` among the attacker's, and their classes ``(K, b)``."""
        for part in self.order.split(list(work.sizes), 1):
            yield self.images.gather(1, part), work.labels[part]


def images_for_class(labels: Tensor, label: int) -> Tensor:
    """Return the places of the attacker's images, of classes ``(p,)``, that stand for a class."""
    places = (labels == label).nonzero().squeeze(1)
    return places if len(places) >= _LEAST_IMAGES else torch.arange(len(labels))


def simulate_clients(work: Work, labels: Tensor, number: int, rng: torch.Generator) -> SimulatedClients:
    """Draw the images of clients, with replacement, from the attacker's of classes ``(p,)``."""
    images = torch.empty(number, len(work.labels), dtype=torch.int64)
    for label, count in zip(work.classes.tolist(), work.counts.tolist(), strict=True):
        places = images_for_class(labels, label)
        images[:, work.labels == label] = places[torch.randint(len(places), (number, count), generator=rng)]
    return SimulatedClients(images, torch.stack([_order(work, rng) for _ in range(number)]))


def _order(work: Work, rng: torch.Generator) -> Tensor:
    """Draw which of its images a client uses when: each once a pass, in passes of known classes by these."""
    number, total = len(work.labels), sum(work.sizes)
    if work.passes is None:
        return torch.cat([torch.randperm(number, generator=rng) for _ in range(-(-total // number))])[:total]
    order = []
    for labels in work.passes:
        drawn = torch.randperm(number, generator=rng)
        by_class = drawn[work.labels[drawn].argsort(stable=True)]
        order.append(torch.empty_like(by_class).scatter_(0, labels.argsort(stable=True), by_class))
    return torch.cat(order)


Steps = Callable[[SimulatedClients], Tensor]
"""Simulated clients -> updates over the learning rate ``(K, B, p, n)``: in B groups of n coordinates p equations each."""


def head_steps(work: Work, head: tuple[Tensor, Tensor], features: Tensor) -> Steps:
    """Return the steps of a linear layer on representations ``(p, d)``: one group, ``(K, 1, C, d)``."""

    def run(clients: SimulatedClients) -> Tensor:
        first = head[0].double().expand(len(clients.images), -1, -1)
        weight, bias = first.clone(), head[1].double().expand(len(clients.images), -1).clone()
        for places, labels in clients.batches(work):
            rows = features[places]
            errors = (rows @ weight.mT + bias[:, None]).softmax(2) - one_hot(labels, len(head[1]))
            weight -= work.learning_rate * errors.mT @ rows / places.shape[1]
            bias -= work.learning_rate * errors.mean(1)
        return ((first - weight) / work.learning_rate)[:, None]

    return _in_parts(run, head[0].numel())


def angle_steps(work: Work, angle: Tensor, head: tuple[Tensor, Tensor], n_blocks: int, features: Tensor) -> Steps:
    """Return the steps of an angle matrix ``(d, d)`` before a head that stands still, on representations ``(p, d)``.

    Each block of side s is a group ``(K, k, s, s)``. The whole matrix moves, though only its blocks are uploaded.
    """
    weight, bias = (value.double() for value in head)

    def run(clients: SimulatedClients) -> Tensor:
        first = angle.double().expand(len(clients.images), -1, -1)
        moved = first.clone()
        for places, labels in clients.batches(work):
            rows = features[places]
            errors = ((rows + rows @ moved) @ weight.T + bias).softmax(2) - one_hot(labels, len(bias))
            moved -= work.learning_rate * rows.mT @ (errors @ weight) / places.shape[1]
        change = (first - moved) / work.learning_rate
        return torch.stack([diagonal_blocks(matrix, n_blocks) for matrix in change]).mT

    return _in_parts(run, angle.numel())


def _in_parts(run: Steps, numbers: int) -> Steps:
    """Return the steps of so many clients at a time as memory is meant for, whose layers hold so many numbers each."""
    size = max(1, _AT_A_TIME // max(1, numbers))

    def together(clients: SimulatedClients) -> Tensor:
        parts = zip(clients.images.split(size), clients.order.split(size), strict=True)
        return torch.cat([run(SimulatedClients(*part)) for part in parts])

    return together


# ---------------------------------------------------------------- regression

Estimate = Callable[[Tensor], tuple[Tensor, Tensor]]
"""An update ``(B, p, n)`` -> class means ``(m, d)`` and their expected distances ``(m,)``, float32."""


def _regress(work: Work, labels: Tensor, features: Tensor, steps: Steps, rng: torch.Generator, each: int) -> Estimate:
    """Simulate clients and learn from them; ``each`` multiplications are what one image takes in a step."""
    number = max(_LEAST, min(_MOST, int(_WORK / max(1, sum(work.sizes) * each))))
    clients = simulate_clients(work, labels, number, rng)
    places = [images_for_class(labels, label) for label in work.classes.tolist()]
    guess = torch.stack([features[of_class].mean(0) for of_class in places])
    averaging = (work.labels == work.classes[:, None]).double() / work.counts[:, None]
    differences = torch.stack([averaging @ features[images] for images in clients.images]) - guess
    # True class means lie further from the guess than simulated ones: the guess is made of few images too.
    further = (1 + work.counts.double() / torch.tensor([len(of_class) for of_class in places])).sqrt()
    updates = steps(clients)
    cut = number - number // _VALIDATION
    usual = updates[:cut].mean(0)
    if not bool(updates.isfinite().all()):
        updates, usual = torch.zeros_like(updates), torch.zeros_like(usual)
    rest = updates - usual
    blocks = _block_gains(rest[:cut], differences[:cut]) if rest.shape[1] > 1 else None
    signals = _signals(rest, blocks)
    whitening = _whitening(signals[:cut], differences[:cut])
    held_out = differences[cut:]
    if whitening is None:  # updates of simulated clients are all alike
        return lambda update: (guess.float(), (held_out.square().sum(2).mean(0).sqrt() * further).float())
    white, moved = whitening
    validation = white(signals[cut:])
    energies = torch.linalg.eigvalsh(validation @ validation.mT).amax(0)

    def shortened(rows: Tensor) -> Tensor:
        squares, turns = torch.linalg.eigh(rows @ rows.mT)
        gains = (energies / squares.clamp_min(_TINY)).clamp(max=1)
        values: Tensor = (turns * gains[..., None, :]) @ turns.mT @ rows
        return values

    def estimate(update: Tensor) -> tuple[Tensor, Tensor]:
        # Coordinates in which it is zero throughout tell nothing: a defense may have left them out.
        left = torch.where((update != 0).any(1, keepdim=True), update.double() - usual, 0.0)
        means, rest = guess, held_out
        if bool(left.isfinite().all()):
            rows = white(_signals(left[None], blocks)[0])
            believed = shortened(rows)
            means, rest = means + moved(believed), rest - moved(shortened(validation + (rows - believed)))
        return means.float(), (rest.square().sum(2).mean(0).sqrt() * further).float()

    return estimate


def _signals(rest: Tensor, blocks: Tensor | None) -> Tensor:
    """Return rows ``(K, r, d)`` of updates ``(K, B, p, n)``: of one group as they are, of several what each tells."""
    return rest[:, 0] if blocks is None else torch.einsum("bmp,kbpn->kmbn", blocks, rest).flatten(2)


def _block_gains(rest: Tensor, differences: Tensor) -> Tensor:
    """Return the gains ``(B, m, p)`` by which each group's equations tell the differences of class means from the guess."""
    n_clients, n_groups, n_equations, side = rest.shape
    parts = differences.reshape(n_clients, -1, n_groups, side)
    scale = 1 / (n_clients * side)
    inner = scale * torch.einsum("kbpn,kbqn->bpq", rest, rest)
    across = scale * torch.einsum("kmbn,kbqn->bmq", parts, rest)
    spread = inner.diagonal(dim1=1, dim2=2).mean(1)
    added = _BLOCK_RIDGE * spread + 1e-6 * spread.mean() + torch.finfo(spread.dtype).tiny
    inner = inner + added[:, None, None] * torch.eye(n_equations, dtype=inner.dtype)
    gains: Tensor = torch.linalg.solve(inner, across.mT).mT
    return gains


def _whitening(
    signals: Tensor, differences: Tensor
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] | None:
    """Return the maps of signals ``(.., r, d)`` to unit variance of rows and columns, and of these to differences."""
    n_clients, n_rows, width = signals.shape
    covariance = torch.einsum("krn,ksn->rs", signals, signals) / (n_clients * width)
    if not float(covariance.diagonal().mean()) > 0:
        return None
    rows = torch.linalg.cholesky(_rounded(covariance, 0, _ROW_RIDGE))
    half = torch.linalg.solve_triangular(rows, signals, upper=False)
    covariance = torch.einsum("krn,kro->no", half, half) / (n_clients * n_rows)
    columns = torch.linalg.cholesky(_rounded(covariance, _ROUND, _ROUND))
    gains = torch.einsum("kmn,krn->mr", differences, half) / (n_clients * width)

    def white(some: Tensor) -> Tensor:
        turned = torch.linalg.solve_triangular(rows, some, upper=False)
        values: Tensor = torch.linalg.solve_triangular(columns, turned.mT, upper=False).mT
        return values

    return white, lambda some: gains @ some @ columns.T


def _rounded(covariance: Tensor, less: float, more: float) -> Tensor:
    """Return (1 - less) of a covariance and as much more of its mean variance in all directions alike."""
    spread = covariance.diagonal().mean()
    return (1 - less) * covariance + more * spread * torch.eye(len(covariance), dtype=covariance.dtype)


# ---------------------------------------------------------------- use in an attack


def simulates(knowledge: Knowledge) -> bool:
    """True where clients take several steps, and labelled images are granted.

    A client of a single step counts, if others take several: its extractor is known as it was afterwards, too.
    """
    facts = [each for each in (knowledge.batch, *knowledge.batches.values()) if each is not None]
    labels = knowledge.public_labels
    granted = knowledge.public_images is not None and labels is not None and bool((labels >= 0).any())
    return granted and any(each.steps > 1 for each in facts)


def clients_to_solve(problem: AttackProblem) -> list[int]:
    """Return the clients of the targets, and with simulated clients all whose extractors are known.

    However targets are grouped, a decoder then learns behind the same noise.
    """
    uploaded = {seen.client for seen in problem.observations} & set(problem.knowledge.extractors)
    return sorted({*problem.clients, *(uploaded if simulates(problem.knowledge) else ())})


def multi_step_means(
    problem: AttackProblem, seen: Observation, work: Work, steps: Callable[[Tensor], Steps], each: int, update: Tensor
) -> ClassMeans:
    """Return the means of a client's classes, with their expected distances.

    Clients are simulated once for all uploads that answer the same broadcast with the same work: the control's too.
    ``steps`` makes the steps on representations, in which one image takes ``each`` multiplications; ``update``
    ``(B, p, n)`` is the client's over the learning rate.
    """
    knowledge, client = problem.knowledge, seen.client
    images, current = knowledge.public_images, knowledge.public_labels
    assert images is not None
    assert current is not None

    def regress() -> Estimate:
        features = represent(knowledge, client, images, problem.trained).double()
        rng = generator(problem.seed, "made-up clients", seen.round, client)
        return _regress(work, current.cpu(), features, steps(features), rng, each)

    labels = tuple(work.labels.tolist()) if work.passes is None else tuple(work.passes.flatten().tolist())
    parts = (Same(knowledge.extractors.get(client)), Same(knowledge.heads.get(client)), Same(images), Same(current))
    done = (work.passes is None, labels, work.sizes, work.learning_rate, tuple(update.shape))
    key = ("simulated clients", problem.seed, seen.round, client, Same(seen.broadcast), *parts, *done)
    means, distance = problem.trained.get(key, regress)(update)
    return ClassMeans(work.classes, means, math.inf, math.inf, settled=True, distance=distance)
