"""Clients that the attacker makes up of its own images, whose local steps on one layer it follows to the end.

Each holds as many images of a class as the real client, in the same places of the same batches where these are known, and
starts from the very broadcast. The layer moves by plain SGD; what is before and behind it stands still, as it was granted.
All made-up clients step together: of a linear layer, or of an angle matrix, the gradients are written down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedpriv.algebra.matrices import diagonal_blocks
from fedpriv.attacks.observation import BatchFacts

MOST, LEAST = 96, 24
"""Made-up clients of a client: so many, fewer where :data:`_WORK` does not allow them, but never less than the second."""

_WORK = 2e10
"""Multiplications that the steps of all made-up clients of a client should not exceed: a few seconds of one CPU core."""

_HELD = 2**23
"""Numbers that made-up clients hold at a time."""

LEAST_OWN = 2
"""Images of a class with fewer of which all of the attacker's images stand for it: one alone says nothing of spread."""


@dataclass(frozen=True)
class Work:
    """A client's local steps, as far as the attacker knows them.

    Attributes:
        held: ``(h,)`` int64 classes of the client's images.
        passes: ``(e, h)`` int64 classes of the images of each pass over them, in order; None where the order is not known.
        sizes: images of each step.
        learning_rate: SGD's.
    """

    held: Tensor
    passes: Tensor | None
    sizes: tuple[int, ...]
    learning_rate: float

    @property
    def classes(self) -> Tensor:
        """The classes ``(m,)`` that are there, ascending."""
        found: Tensor = self.held.unique()
        return found

    @property
    def counts(self) -> Tensor:
        """The number of images ``(m,)`` of each of these classes."""
        return torch.bincount(self.held)[self.classes]


def work_of(facts: BatchFacts, labels: Tensor | None, shares: Tensor) -> Work:
    """Return a client's work.

    Of several epochs of a number of images that batches do not divide, every epoch ends with a smaller batch; by these an
    image that was used several times is told from several images.

    Args:
        facts: of its local steps.
        labels: given classes, of the images of all steps in order, or of the client's images; None where not given.
        shares: ``(C,)`` of the classes, for labels that are not given; any multiple.
    """
    sizes = facts.sizes or (facts.batch_size,) * facts.steps
    total, epochs = sum(sizes), _epochs(sizes)
    if labels is None:
        return Work(_allotted(shares, total // epochs), None, sizes, facts.learning_rate)
    labels = labels.cpu().long()
    if len(labels) != total:
        return Work(labels, None, sizes, facts.learning_rate)
    passes = labels.view(epochs, -1)
    if not bool((passes.sort(1).values == passes[0].sort().values).all()):
        passes = labels[None]
    return Work(passes[0], passes, sizes, facts.learning_rate)


def _epochs(sizes: tuple[int, ...]) -> int:
    ends = [place + 1 for place, size in enumerate(sizes) if size < max(sizes)]
    if not ends or len(sizes) % len(ends):
        return 1
    period = len(sizes) // len(ends)
    return len(ends) if sizes == sizes[:period] * len(ends) else 1


def _allotted(shares: Tensor, number: int) -> Tensor:
    """Return as many labels, of each class by its share, by the largest remainders; of each class that is there one."""
    wanted = shares.double() / shares.double().sum().clamp_min(1e-12) * number
    counts = torch.where(shares > 0, wanted.floor().clamp_min(1), 0.0).long()
    for place in (wanted - counts).argsort(descending=True, stable=True).tolist():
        if int(counts.sum()) >= number:
            break
        counts[place] += int(shares[place] > 0)
    return torch.arange(len(shares)).repeat_interleave(counts)


@dataclass(frozen=True)
class MadeUp:
    """The images of K made-up clients, as places among those of the attacker's own.

    Attributes:
        held: ``(K, h)`` the images that each holds, whose classes are those of ``Work.held``.
        order: ``(K, n)`` the images of all steps in turn, places among the h.
    """

    held: Tensor
    order: Tensor

    def batches(self, work: Work) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield for each step the images' places ``(K, b)`` among all of the attacker's, and their classes ``(K, b)``."""
        for part in self.order.split(list(work.sizes), 1):
            yield self.held.gather(1, part), work.held[part]

    def some(self, start: int, end: int) -> MadeUp:
        """Return some of the clients."""
        return MadeUp(self.held[start:end], self.order[start:end])


def own_of_class(own: Tensor, label: int) -> Tensor:
    """Return the places of the attacker's images, of classes ``(p,)``, that stand for a class; see :data:`LEAST_OWN`."""
    places = (own == label).nonzero().squeeze(1)
    return places if len(places) >= LEAST_OWN else torch.arange(len(own))


def made_up(work: Work, own: Tensor, number: int, rng: torch.Generator) -> MadeUp:
    """Draw the images of clients, with replacement, from the attacker's own of classes ``(p,)``."""
    held = torch.empty(number, len(work.held), dtype=torch.int64)
    for label, count in zip(work.classes.tolist(), work.counts.tolist(), strict=True):
        places = own_of_class(own, label)
        held[:, work.held == label] = places[torch.randint(len(places), (number, count), generator=rng)]
    total = sum(work.sizes)
    return MadeUp(held, torch.stack([_order(work, total, rng) for _ in range(number)]))


def _order(work: Work, total: int, rng: torch.Generator) -> Tensor:
    """Draw which of its images a client uses when: each once a pass, in passes of known classes by these."""
    n_held = len(work.held)
    if work.passes is None:
        turns = [torch.randperm(n_held, generator=rng) for _ in range(-(-total // n_held))]
        return torch.cat(turns)[:total]
    found = []
    for wanted in work.passes:
        drawn = torch.randperm(n_held, generator=rng)
        mine = drawn[work.held[drawn].argsort(stable=True)]
        found.append(torch.empty_like(mine).scatter_(0, wanted.argsort(stable=True), mine))
    return torch.cat(found)


def as_many(work: Work, multiplications: int) -> int:
    """Return the number of clients to make up, where one image takes so many multiplications in a step."""
    return max(LEAST, min(MOST, int(_WORK / max(1, sum(work.sizes) * multiplications))))


Steps = Callable[[MadeUp], Tensor]
"""Made-up clients -> updates over the learning rate ``(K, B, p, n)``: in B groups of n coordinates p equations each."""


def head_steps(work: Work, head: tuple[Tensor, Tensor], features: Tensor) -> Steps:
    """Return the steps of a linear layer, weight ``(C, d)`` and bias ``(C,)``, on representations ``(p, d)``.

    One group; the equations of a coordinate are those of the C rows: ``(K, 1, C, d)``.
    """

    def run(some: MadeUp) -> Tensor:
        first = head[0].double().expand(len(some.held), -1, -1)
        weight, bias = first.clone(), head[1].double().expand(len(some.held), -1).clone()
        for places, labels in some.batches(work):
            rows = features[places]
            errors = (rows @ weight.mT + bias[:, None]).softmax(2) - one_hot(labels, len(head[1]))
            weight -= work.learning_rate * errors.mT @ rows / places.shape[1]
            bias -= work.learning_rate * errors.mean(1)
        return ((first - weight) / work.learning_rate)[:, None]

    return _in_parts(run, head[0].numel())


def angle_steps(work: Work, angle: Tensor, head: tuple[Tensor, Tensor], n_blocks: int, features: Tensor) -> Steps:
    """Return the steps of an angle matrix ``(d, d)`` before a head that stands still, on representations ``(p, d)``.

    Each block of side s is a group; the equations of a coordinate are the entries of its row: ``(K, k, s, s)``. The whole
    matrix moves, though only its blocks are uploaded.
    """
    weight, bias = (value.double() for value in head)

    def run(some: MadeUp) -> Tensor:
        first = angle.double().expand(len(some.held), -1, -1)
        moved = first.clone()
        for places, labels in some.batches(work):
            rows = features[places]
            errors = ((rows + rows @ moved) @ weight.T + bias).softmax(2) - one_hot(labels, len(bias))
            moved -= work.learning_rate * rows.mT @ (errors @ weight) / places.shape[1]
        change = (first - moved) / work.learning_rate
        return torch.stack([diagonal_blocks(one, n_blocks) for one in change]).mT

    return _in_parts(run, angle.numel())


def _in_parts(run: Steps, numbers: int) -> Steps:
    """Return the steps of so many clients at a time as memory is meant for, each of whom holds so many numbers."""
    size = max(1, _HELD // max(1, numbers))

    def together(some: MadeUp) -> Tensor:
        return torch.cat([run(some.some(start, start + size)) for start in range(0, len(some.held), size)])

    return together
