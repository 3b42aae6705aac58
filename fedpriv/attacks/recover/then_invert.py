"""Attacks of two parts: linear algebra recovers a vector for each target, and an inversion of vectors makes it an image."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.invert.decoder import DecoderInversion
from fedpriv.attacks.invert.inversion import DipInversion, PixelInversion
from fedpriv.attacks.invert.joint import JointInversion
from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Needs, Observation, Reconstruction, TargetId, Unit
from fedpriv.util.seeds import generator
from fedpriv.wire.payloads import Prototypes

Inversion = Literal["dip", "pixels", "decoder", "joint"]

INVERSIONS: dict[Inversion, type[Attack]] = {
    "dip": DipInversion,
    "pixels": PixelInversion,
    "decoder": DecoderInversion,
    "joint": JointInversion,
}
"""The second parts, by name."""


@dataclass(frozen=True)
class Recovered:
    """Vectors that the first part found.

    Attributes:
        uploads: as clients would have uploaded the vectors.
        places: T targets in these uploads, one for each target of the attack and in their order. Rows draw by them.
        labels: ``(T,)`` int64 classes that the recovery tells, or None for those of the targets.
        sound: ``(T,)`` bool, whether the vector can be what it is taken for; None for yes.
        distance: ``(T,)`` float32 expected distance of each vector from the true one; None where none is expected.
        directions: ``(T, d)`` float32 in which each vector stands out from the client's others, or None.
        uncertain: (round, client) -> root mean square of the distances expected of a client's vectors, targets or not:
            as much noise its decoder learns behind. None for that of the targets' vectors.
        exact: whether those vectors are taken for exact of which the uploads say that they are of one image.
    """

    uploads: tuple[Observation, ...]
    places: tuple[TargetId, ...]
    labels: Tensor | None = None
    sound: Tensor | None = None
    distance: Tensor | None = None
    directions: Tensor | None = None
    uncertain: Mapping[tuple[int, int], float] | None = None
    exact: bool = False


@dataclass(frozen=True, kw_only=True)
class RecoverThenInvert(Attack):
    """Recover a vector for each target, then invert it; a subclass writes ``recover``.

    Attributes:
        inversion: of the recovered vectors: ``dip``, ``pixels``, ``decoder`` (needs attacker data), ``joint`` (of class
            means, by several images each), or ``auto``: ``decoder`` where the card grants images, else ``dip``.
        iterations: most steps of the inversion; of ``decoder`` those in which its images are fitted to the vectors, as far
            as it learns that this helps. It fits those alone that the recovery takes for exactly one image's: what a fit
            is worth is learned on exact vectors. Where the recovery says how far its vectors are from the true ones,
            the decoder learns behind as much noise.
        restarts: of the inversion.
    """

    inversion: Inversion | Literal["auto"] = "auto"
    iterations: Annotated[int, Ge(1)] = 800
    restarts: Annotated[int, Ge(1)] = 1

    unit: ClassVar[Unit] = "class"
    budget = "iterations"

    def requirements_for(self, kind: str | None) -> Needs:
        """Return the needs of both parts together."""
        inversion: Inversion = "dip" if self.inversion == "auto" else self.inversion
        return super().requirements_for(kind).together(INVERSIONS[inversion].needs)

    @abstractmethod
    def recover(self, problem: AttackProblem) -> Recovered:
        """Return a vector for each target, or refuse where the observations or grants do not allow it."""

    def inverter(self, knowledge: Knowledge, **options: Any) -> Attack:
        """Return the inversion, made with this attack's budget and further options of its own; a decoder takes none."""
        chosen = self._chosen(knowledge.public_images is not None)
        if chosen == "decoder":
            return DecoderInversion(refine_steps=self.iterations, restarts=self.restarts)
        return INVERSIONS[chosen](**{"iterations": self.iterations, "restarts": self.restarts} | options)

    def trains(self, card: KnowledgeCard) -> str:
        """Return the name of the network that its inversion trains."""
        return INVERSIONS[self._chosen(card.attacker_data != "none")]().trains(card)

    def _chosen(self, images: bool) -> Inversion:
        granted: Inversion = "decoder" if images else "dip"
        return granted if self.inversion == "auto" else self.inversion

    @final
    def run(self, problem: AttackProblem) -> Reconstruction:
        """Recover and invert."""
        found = self.recover(problem)
        inverted = self._inverter(problem.knowledge, found).run(_behind(problem, found))
        labels, converged = inverted.labels, inverted.converged
        if found.labels is not None:
            labels = found.labels.to(labels)[:, None].expand_as(labels)
        if found.sound is not None:
            converged = converged & found.sound.to(converged.device)
        return replace(
            inverted,
            targets=problem.targets,
            labels=labels,
            converged=converged,
            distance=found.distance,
            directions=found.directions,
        )

    @final
    def objective(self, problem: AttackProblem) -> Objective | None:
        """Return the inversion's, against the vectors recovered from the uploads."""
        found = self.recover(problem)
        return self._inverter(problem.knowledge, found).objective(_behind(problem, found))

    def _inverter(self, knowledge: Knowledge, found: Recovered) -> Attack:
        made = self.inverter(knowledge)
        if isinstance(made, DecoderInversion) and not found.exact:
            return replace(made, refine=0)
        return made


@dataclass(frozen=True)
class _Uncertain:
    """Noise of a root mean square length on rows: that by which recovered vectors are expected to be wrong."""

    length: float

    def __call__(self, rows: Tensor, seed: int) -> Tensor:
        """Return rows ``(n, d)`` with noise."""
        drawn = torch.randn(rows.shape, generator=generator(seed, "uncertain"))
        return rows + self.length / math.sqrt(rows.shape[1]) * drawn.to(rows)


def _behind(problem: AttackProblem, found: Recovered) -> AttackProblem:
    """Return the problem of the inversion: vectors that no defense has changed any more, as uncertain as they are."""
    lengths = _expected(found) if found.uncertain is None else found.uncertain
    # The very same object for the same length: decoders that learned behind it are kept by it.
    uncertain = {
        where: problem.trained.get(("uncertain", length), partial(_Uncertain, length))
        for where, length in lengths.items()
    }
    knowledge = replace(problem.knowledge, defended=uncertain)
    return replace(problem, knowledge=knowledge, observations=found.uploads, targets=found.places)


def _expected(found: Recovered) -> dict[tuple[int, int], float]:
    """Return the root mean square of the distances that are expected of the targets' vectors, by round and client."""
    squares: dict[tuple[int, int], list[float]] = {}
    if found.distance is not None:
        for place, distance in zip(found.places, found.distance.tolist(), strict=True):
            squares.setdefault((place.round, place.client), []).append(distance**2)
    return {where: (sum(own) / len(own)) ** 0.5 for where, own in squares.items()}


def as_uploads(
    found: Sequence[Tensor], targets: Sequence[TargetId], counts: Sequence[int | None] | None = None
) -> tuple[Observation, ...]:
    """Return observations in which each target's place holds its vector ``(d,)``; places without a target hold zeros.

    Targets keep their generators whatever the vectors were found with.

    Args:
        found: a vector for each target.
        targets: their places.
        counts: images that each vector is the mean of; None where that is not known. An upload says them where all of its
            targets' are known.
    """
    rows: dict[tuple[int, int], dict[int, tuple[Tensor, int | None]]] = {}
    numbers = [None] * len(found) if counts is None else counts
    for target, vector, number in zip(targets, found, numbers, strict=True):
        rows.setdefault((target.round, target.client), {})[target.index] = (vector.detach().cpu().float(), number)
    made = []
    for (round_, client), held in rows.items():
        table = torch.zeros(max(held) + 1, len(next(iter(held.values()))[0]))
        images = torch.zeros(len(table), dtype=torch.int64)
        for index, (vector, number) in held.items():
            table[index], images[index] = vector, number or 0
        said = None if any(number is None for _, number in held.values()) else images
        made.append(Observation(round_, client, (Prototypes(table, torch.arange(len(table)), said),), ()))
    return tuple(made)
