"""A small simulated federation whose truth is known: images by class and client, an extractor, uploads.

Images are so small that a thousand pages run in minutes. Those of a client are alike, as in a real federation, unless a
world divides images by class alone, as a division of a data set does. A class is told from the others by an image of its
own, so that a guess that knows the class is worth something.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from fedpriv.attacks.observation import Knowledge, Observation, TargetId, ThreatModel
from fedpriv.datasets.types import Samples
from fedpriv.sources.case import Case
from fedpriv.sources.guesses import with_guesses
from fedpriv.sources.source import shuffle
from fedpriv.sources.truth import Holdings, Pool, Truth
from fedpriv.uploads.payloads import Prototypes, Representations
from fedpriv.util.seeds import generator

Kind = Literal["representation", "prototype"]
"""Of upload: one vector an image, or one a class."""

SHAPE = (1, 6, 6)
CLASSES, WIDTH = 4, 40
COUNTS = (1, 3, 8, 12)
"""Images of the classes of a client, in an order of its own: one in each stratum."""

AUXILIARY = 60
"""Images of each class that no client holds."""

ROUND = 1


def smooth(number: int, side: int, coarse: int, *seed: int | str) -> Tensor:
    """Draw grey images ``(number, 1, side, side)`` of mean 0 and standard deviation near 1, smoothed from coarse ones."""
    drawn = torch.randn(number, 1, coarse, coarse, generator=generator(*seed))
    return 1.4 * interpolate(drawn, size=(side, side), mode="bilinear", align_corners=False)


@dataclass(frozen=True)
class World:
    """A federation.

    Attributes:
        seed: of everything drawn.
        sizes: how many representations of each client are attacked; a client's prototypes are attacked alternately.
        kind: of upload.
        alike: whether clients' images and auxiliary images' are drawn alike: then a client has nothing of its own.
    """

    seed: int
    sizes: tuple[int, ...]
    kind: Kind
    alike: bool = False

    @cached_property
    def patterns(self) -> Tensor:
        """The image of each class ``(C, c, h, w)``, about zero."""
        return self.smooth(CLASSES, "patterns")

    def smooth(self, number: int, *parts: int | str) -> Tensor:
        """Draw smooth images ``(number, c, h, w)`` of mean 0 and standard deviation near 1."""
        return smooth(number, SHAPE[1], SHAPE[1] // 2, self.seed, *parts)

    def draw(
        self, labels: Tensor, *parts: int | str, patterns: Tensor | None = None, look: Tensor | None = None
    ) -> Tensor:
        """Draw images ``(n, c, h, w)`` in [0, 1] of classes ``(n,)``, of somebody whom ``parts`` name, or of a look."""
        mean = (self.patterns if patterns is None else patterns)[labels]
        somebody = self.smooth(1, "somebody", *parts) if look is None else look
        own = self.smooth(len(labels), "images", *parts)
        return (0.5 + 0.13 * mean + self.of_client * somebody + 0.13 * own).clamp(0, 1)

    @property
    def of_client(self) -> float:
        """Standard deviation of what all images of a client have in common."""
        return 0.0 if self.alike else 0.07

    @property
    def clients(self) -> range:
        """Client numbers."""
        return range(len(self.sizes))

    def own_labels(self, client: int) -> Tensor:
        """Classes ``(n,)`` of a client's images."""
        order = torch.randperm(CLASSES, generator=generator(self.seed, "counts", client))
        return torch.arange(CLASSES).repeat_interleave(torch.tensor(COUNTS)[order])

    @cached_property
    def images(self) -> tuple[Tensor, ...]:
        """Each client's images ``(n, c, h, w)``."""
        return tuple(self.draw(self.own_labels(client), "client", client) for client in self.clients)

    def look(self, client: int) -> Tensor:
        """The part that all images of a client have in common ``(1, c, h, w)``, before :attr:`of_client` scales it."""
        return self.smooth(1, "somebody", "client", client)

    @cached_property
    def held_out(self) -> tuple[Tensor, ...]:
        """Each client's held-out images ``(n, c, h, w)``, of the classes of those that its upload was computed from."""
        return tuple(self.draw(self.own_labels(k), "held out", k, look=self.look(k)) for k in self.clients)

    @cached_property
    def auxiliary(self) -> tuple[Tensor, Tensor]:
        """Images ``(n, c, h, w)`` that no client holds, each of somebody else, and their classes ``(n,)``."""
        labels = torch.arange(CLASSES).repeat_interleave(AUXILIARY)
        somebody = self.of_client * self.smooth(len(labels), "somebody", "auxiliary")
        plain = self.draw(labels, "auxiliary")
        shared = self.of_client * self.smooth(1, "somebody", "auxiliary")
        return (plain - shared + somebody).clamp(0, 1), labels

    @cached_property
    def pool(self) -> Pool:
        """Strangers, in two parts."""
        return Pool.divided(*self.auxiliary, self.seed, "strangers", alike=self.alike)

    @cached_property
    def weight(self) -> Tensor:
        """The extractor's ``(c * h * w, d)``."""
        rng = generator(self.seed, "extractor")
        return torch.randn(SHAPE[0] * SHAPE[1] * SHAPE[2], WIDTH, generator=rng) / SHAPE[1]

    def represent(self, images: Tensor) -> Tensor:
        """The extractor: images ``(n, c, h, w)`` to representations ``(n, d)``."""
        return torch.tanh((images - 0.5).flatten(1) @ self.weight) + 0.1

    @cached_property
    def targets(self) -> tuple[TargetId, ...]:
        """The targets: so many rows of each client's upload, spread over its classes."""
        found = []
        for client, number in zip(self.clients, self.sizes, strict=True):
            labels = self.own_labels(client)
            rows = len(labels) if self.kind == "representation" else CLASSES
            order = torch.randperm(rows, generator=generator(self.seed, "targets", client))[:number].sort().values
            found += [
                TargetId(ROUND, client, row, int(labels[row]) if self.kind == "representation" else row)
                for row in order.tolist()
            ]
        return tuple(found)

    def behind(self, target: TargetId) -> Tensor:
        """The images ``(m, c, h, w)`` behind a target."""
        own = self.images[target.client]
        if self.kind == "representation":
            return own[target.index : target.index + 1]
        return own[self.own_labels(target.client) == target.label]

    @cached_property
    def uploads(self) -> tuple[Observation, ...]:
        """The server's view, client by client."""
        found = []
        for client in self.clients:
            own, labels = self.represent(self.images[client]), self.own_labels(client)
            if self.kind == "representation":
                upload: Representations | Prototypes = Representations(own, labels)
            else:
                means = torch.stack([own[labels == label].mean(0) for label in range(CLASSES)])
                counts = torch.bincount(labels, minlength=CLASSES)
                upload = Prototypes(means, torch.arange(CLASSES), counts)
            found.append(Observation(ROUND, client, (upload,), ()))
        return tuple(found)

    @cached_property
    def knowledge(self) -> Knowledge:
        """White-box extractors, and classes, which uploads tell."""
        return Knowledge(ThreatModel(), SHAPE, CLASSES, extractors=dict.fromkeys(self.clients, self.represent))

    @cached_property
    def evidence(self) -> Case:
        """The attacker's knowledge, and the same with the next client's upload in each client's place."""
        return Case(self.uploads, shuffle(self.uploads), self.knowledge, self.targets)

    @cached_property
    def truths(self) -> tuple[Truth, ...]:
        """The truth behind the targets, and guesses at them without their upload."""
        unit: Literal["upload", "class"] = "upload" if self.kind == "representation" else "class"
        found = []
        for target in self.targets:
            members = self.behind(target)
            feature = self.represent(members).mean(0) if unit == "class" else None
            found.append(Truth.equal(members, torch.full((len(members),), target.label), self.pool, feature))
        return with_guesses(found, self.evidence, self.kind, unit, device=torch.device("cpu"))

    @cached_property
    def held(self) -> Holdings:
        """All images, and who holds which."""
        strange, strange_labels = self.auxiliary
        images = torch.cat([*self.images, *self.held_out, strange])
        own = [self.own_labels(client) for client in self.clients]
        ends = np.cumsum([0, *map(len, own), *map(len, own)])
        held: Mapping[int, NDArray[np.int64]] = {k: np.arange(ends[k], ends[k + 1]) for k in self.clients}
        held_out = {k: held[k] + ends[len(own)] for k in self.clients}
        return Holdings(Samples(images, torch.cat([*own, *own, strange_labels])), held, held_out=held_out)
