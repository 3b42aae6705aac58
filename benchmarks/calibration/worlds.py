"""A small simulated federation whose truth is known: who holds which images, and which images its targets are made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.attacks.observation import Knowledge, Observation, TargetId, ThreatModel
from fedpriv.datasets.types import Samples
from fedpriv.sources.case import Case
from fedpriv.sources.source import shuffle
from fedpriv.sources.truth import Holdings, Pool, Truth
from fedpriv.uploads.payloads import Prototypes
from fedpriv.util.seeds import derive_seed

SHAPE = (1, 5, 5)
CLASSES, WIDTH = 6, 8
IMAGES = 24
"""Of a client on average; as many again are held out."""

AUXILIARY = 30
"""Images of each class that no client holds."""

SEVERAL = 3
"""Images behind a target of several."""

ROUND = 1
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class World:
    """A federation whose clients upload class means that name no class.

    Attributes:
        seed: of everything drawn.
        number: of clients.
        each: targets of a client on average, half of one image and half of several.
        look: standard deviation of a client's own brightness, and half of that of its contrast.
        long_tail: whether client k of a random order has images and targets in proportion to 1 / k.
        mixed: whether shares of classes are Dirichlet 0.1; else a client holds each class with a chance of one half.
    """

    seed: int
    number: int = 20
    each: int = 2
    look: float = 0.0
    long_tail: bool = False
    mixed: bool = False

    def rng(self, *parts: int | str) -> np.random.Generator:
        """Return a generator of the world's own."""
        return np.random.default_rng(derive_seed(self.seed, *parts))

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """Size of each client ``(K,)``, one on average."""
        if not self.long_tail:
            return np.ones(self.number)
        ranks = 1 / self.rng("sizes").permutation(np.arange(1, self.number + 1))
        return np.asarray(ranks / ranks.mean())

    @cached_property
    def counts(self) -> Numbers:
        """Images of each client by class ``(K, C)``."""
        rng, rows = self.rng("counts"), []
        for share in self.shares:
            if self.mixed:
                chances = rng.dirichlet(np.full(CLASSES, 0.1))
            else:
                there = rng.permutation(CLASSES) < rng.binomial(CLASSES - 2, 0.5) + 1
                chances = there / there.sum()
            rows.append(rng.multinomial(max(2, round(IMAGES * share)), chances))
        return np.array(rows)

    @cached_property
    def looks(self) -> NDArray[np.float64]:
        """Brightness and contrast of each client ``(K, 2)``, of mean 0 and standard deviation 1."""
        return self.rng("looks").standard_normal((self.number, 2))

    @cached_property
    def patterns(self) -> Tensor:
        """The image of each class ``(C, c, h, w)``, about zero."""
        return torch.as_tensor(self.rng("patterns").standard_normal((CLASSES, *SHAPE)), dtype=torch.float32)

    def draw(self, labels: Numbers, clients: Numbers | None, *parts: int | str, alike: int = 1) -> Tensor:
        """Draw images ``(n, c, h, w)`` in [0, 1] of classes ``(n,)``, of clients ``(n,)`` or each of somebody else.

        Each ``alike`` successive ones have most of what is their own in common.
        """
        rng = self.rng("draw", *parts)
        looks = rng.standard_normal((len(labels), 2)) if clients is None else self.looks[clients]
        looks = self.look * looks[:, :, None, None, None]
        own = rng.standard_normal((len(labels) // alike, *SHAPE)).repeat(alike, 0)
        if alike > 1:
            own = 0.9 * own + 0.44 * rng.standard_normal(own.shape)
        grey = 0.5 + looks[:, 0] + 0.11 * (1 + 2 * looks[:, 1]) * (self.patterns.numpy()[labels] + own)
        return torch.as_tensor(grey, dtype=torch.float32).clamp(0, 1)

    @cached_property
    def held(self) -> Holdings:
        """All images, and who trains on which and holds out which."""
        labels = np.concatenate([np.repeat(np.arange(CLASSES), row) for row in self.counts])
        clients = np.repeat(np.arange(self.number), self.counts.sum(1))
        images = torch.cat([self.draw(labels, clients, part) for part in ("members", "held out")])
        train = {k: np.flatnonzero(clients == k) for k in range(self.number)}
        held_out = {k: index + len(labels) for k, index in train.items()}
        return Holdings(Samples(images, torch.as_tensor(np.tile(labels, 2))), train, held_out=held_out)

    def is_member(self, client: int, images: Tensor) -> Tensor:
        """Return which of some images ``(n, c, h, w)`` the client trains on ``(n,)``."""
        own = self.held.samples.images[torch.as_tensor(self.held.train[client])]
        return torch.cdist(images.double().flatten(1), own.double().flatten(1)).min(1).values < 1e-5

    def brightness(self, client: int, images: Tensor) -> Tensor:
        """Return how much brighter, in a bright client, or darker some images are than grey ``(n,)``."""
        return 10 * (images.double().mean((1, 2, 3)) - 0.5) * float(self.looks[client, 0])

    @cached_property
    def weight(self) -> Tensor:
        """The extractor's ``(c * h * w, d)``."""
        shape = SHAPE[0] * SHAPE[1] * SHAPE[2], WIDTH
        return torch.as_tensor(self.rng("extractor").standard_normal(shape), dtype=torch.float32)

    def represent(self, images: Tensor) -> Tensor:
        """The extractor: images ``(n, c, h, w)`` to representations ``(n, d)``."""
        return torch.tanh((images - 0.5).flatten(1) @ self.weight)

    @cached_property
    def uploads(self) -> tuple[Observation, ...]:
        """What the server sees: class means."""
        seen, images = [], self.held.samples
        rows = self.represent(images.images)
        for client, index in self.held.train.items():
            labels = images.labels[torch.as_tensor(index)]
            classes = labels.unique()
            means = torch.stack([rows[torch.as_tensor(index)][labels == label].mean(0) for label in classes])
            seen.append(Observation(ROUND, client, (Prototypes(means, classes),), ()))
        return tuple(seen)

    @cached_property
    def shuffled(self) -> tuple[Observation, ...] | None:
        """The next client's upload in each client's place."""
        return shuffle(self.uploads)

    def evidence(self, card: ThreatModel) -> Case:
        """What the server sees, and what a threat model adds."""
        known = {} if card.extractor == "none" else dict.fromkeys(range(self.number), self.represent)
        knowledge = Knowledge(card, SHAPE, CLASSES, extractors=known)
        return Case(self.uploads, self.shuffled, knowledge, self.targets)

    @cached_property
    def targets(self) -> tuple[TargetId, ...]:
        """The targets of each client in turn: of one image, of several, and so on."""
        many = np.maximum(1, np.round(self.each * self.shares)).astype(int)
        rng = self.rng("targets")
        return tuple(
            TargetId(ROUND, client, index, int(rng.choice(CLASSES, p=self.counts[client] / self.counts[client].sum())))
            for client in range(self.number)
            for index in range(many[client])
        )

    @cached_property
    def pool(self) -> Pool:
        """Auxiliary images, all of them to make guesses of: nothing here rests on decoys."""
        labels = np.arange(CLASSES).repeat(AUXILIARY)
        images, classes = self.draw(labels, None, "auxiliary"), torch.as_tensor(labels)
        return Pool(images, classes, images[:0], classes[:0])

    @cached_property
    def truths(self) -> tuple[Truth, ...]:
        """The images behind the targets."""
        labels, clients = (np.array([getattr(one, what) for one in self.targets]) for what in ("label", "client"))
        drawn = self.draw(labels.repeat(SEVERAL), clients.repeat(SEVERAL), "targets", alike=SEVERAL)
        found = []
        for place, target in enumerate(self.targets):
            many = SEVERAL if target.index % 2 else 1
            images = drawn[place * SEVERAL : place * SEVERAL + many]
            found.append(Truth.equal(images, torch.full((many,), target.label), self.pool))
        return tuple(found)

    @cached_property
    def behind(self) -> Tensor:
        """The images behind each target ``(T, n, c * h * w)``, one again and again where it is alone."""
        return torch.stack([one.members.double().flatten(1).expand(SEVERAL, -1) for one in self.truths])
