"""Attacks of two parts: linear algebra recovers a feature vector for each target, and an inversion makes it an image."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.inversion.decoder import DecoderInversion
from fedpriv.attacks.inversion.learned import LearnedInversion
from fedpriv.attacks.inversion.vector import DipInversion, JointInversion, PixelInversion
from fedpriv.attacks.observation import Knowledge, Needs, Observation, Reconstruction, TargetId, ThreatModel, Unit
from fedpriv.attacks.search.objectives import Match
from fedpriv.util.seeds import generator
from fedpriv.wire.payloads import Prototypes

Inversion = Literal["auto", "dip", "pixels", "decoder", "joint", "learned"]

INVERSIONS: dict[str, type[Attack]] = {
    "dip": DipInversion,
    "pixels": PixelInversion,
    "decoder": DecoderInversion,
    "joint": JointInversion,
    "learned": LearnedInversion,
}
"""The second parts, by name."""


@dataclass(frozen=True)
class Recovered:
    """Vectors that the first part recovered.

    Attributes:
        uploads: as clients would have uploaded the vectors.
        places: T targets in these uploads, one for each target of the attack and in their order. Rows draw by them.
        labels: ``(T,)`` int64 classes that the recovery tells, or None for those of the targets.
        sound: ``(T,)`` bool, whether the vector can be what it is taken for; None for yes.
        distance: ``(T,)`` float32 expected distance of each vector from the true one; None where none is expected.
        directions: ``(T, d)`` float32 in which each vector stands out from the client's others, or None.
        exact: whether those vectors are taken for exact of which the uploads say that they are of one image.
        knowledge: the grants with which the vectors are inverted; None for those of the attack without defenses.
        features: ``(T, d)`` uploaded vectors that are recorded in the place of the recovered ones, or None.
    """

    uploads: tuple[Observation, ...]
    places: tuple[TargetId, ...]
    labels: Tensor | None = None
    sound: Tensor | None = None
    distance: Tensor | None = None
    directions: Tensor | None = None
    exact: bool = False
    knowledge: Knowledge | None = None
    features: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class RecoverThenInvert(Attack):
    """Recover a vector for each target, then invert it; a subclass writes ``recover``.

    Attributes:
        inversion: of the recovered vectors: ``dip``, ``pixels``, ``decoder`` and ``learned`` (which need attacker data),
            ``joint`` (of class means, by several images each), or ``auto``: ``decoder`` where the card grants images, else
            ``dip``.
        iterations: most steps of the inversion; a ``decoder`` takes them where vectors are exactly one image's.
        restarts: of the inversion.
        match: what of the recovered vectors is believed by ``dip``, ``pixels`` and ``joint``: ``nonzero`` where columns of
            an update were zeroed (the answer to ``soteria``); see :data:`fedpriv.attacks.search.objectives.Match`.
    """

    inversion: Inversion = "auto"
    iterations: Annotated[int, Ge(1)] = 800
    restarts: Annotated[int, Ge(1)] = 1
    match: Match = "vector"

    unit: ClassVar[Unit] = "class"
    budget = "iterations"

    def requirements_for(self, kind: str | None) -> Needs:
        """Return the needs of both parts together."""
        return super().requirements_for(kind).together(self._chosen(images=False).needs)

    @abstractmethod
    def recover(self, problem: AttackProblem) -> Recovered:
        """Return a vector for each target, or refuse where the observations or grants do not allow it."""

    def trains(self, card: ThreatModel) -> str:
        """Return the name of the network that its inversion trains."""
        return self._chosen(images=card.attacker_data != "none")().trains(card)

    def _chosen(self, *, images: bool) -> type[Attack]:
        granted: Inversion = "decoder" if images else "dip"
        return INVERSIONS[granted if self.inversion == "auto" else self.inversion]

    @final
    def run(self, problem: AttackProblem) -> Reconstruction:
        """Recover and invert."""
        recovered = self.recover(problem)
        inverted = self._inverter(problem.knowledge, recovered).run(_inversion_problem(problem, recovered))
        labels, converged = inverted.labels, inverted.converged
        if recovered.labels is not None:
            labels = recovered.labels.to(labels)[:, None].expand_as(labels)
        if recovered.sound is not None:
            converged = converged & recovered.sound.to(converged.device)
        return replace(
            inverted,
            targets=problem.targets,
            labels=labels,
            converged=converged,
            features=inverted.features if recovered.features is None else recovered.features,
            distance=recovered.distance,
            directions=recovered.directions,
        )

    @final
    def objective(self, problem: AttackProblem) -> Objective | None:
        """Return the inversion's, against the vectors recovered from the uploads."""
        recovered = self.recover(problem)
        return self._inverter(problem.knowledge, recovered).objective(_inversion_problem(problem, recovered))

    def _inverter(self, knowledge: Knowledge, recovered: Recovered) -> Attack:
        """Return the inversion with its budget; a decoder fits its images to exact vectors alone."""
        chosen = self._chosen(images=knowledge.public_images is not None)
        chosen.needs.refuse(self.name, knowledge.card)
        if issubclass(chosen, DecoderInversion):
            return chosen(refine_steps=self.iterations if recovered.exact else 0)
        options: dict[str, Any] = {"iterations": self.iterations, "restarts": self.restarts}
        return chosen(**options if chosen is LearnedInversion else options | {"match": self.match})


def _noisy(length: float, rows: Tensor, seed: int) -> Tensor:
    """Return rows with Gaussian noise of a root mean square length."""
    drawn = torch.randn(rows.shape, generator=generator(seed, "uncertain"))
    return rows + length / math.sqrt(rows.shape[1]) * drawn.to(rows)


def _inversion_problem(problem: AttackProblem, recovered: Recovered) -> AttackProblem:
    """Return the problem of the inversion: undefended vectors, with the root mean square of a client's expected errors."""
    if recovered.knowledge is not None:
        knowledge = recovered.knowledge
        return replace(problem, knowledge=knowledge, observations=recovered.uploads, targets=recovered.places)
    squares: dict[tuple[int, int], list[float]] = {}
    if recovered.distance is not None:
        for position, distance in zip(recovered.places, recovered.distance.tolist(), strict=True):
            squares.setdefault((position.round, position.client), []).append(distance**2)

    # The very same object for the same length: decoders that learned behind it are kept by it.
    def defense(length: float) -> partial[Tensor]:
        return problem.trained.get(("uncertain", length), lambda: partial(_noisy, length))

    defended = {where: defense((sum(values) / len(values)) ** 0.5) for where, values in squares.items()}
    knowledge = replace(problem.knowledge, defended=defended)
    return replace(problem, knowledge=knowledge, observations=recovered.uploads, targets=recovered.places)


def as_uploads(
    vectors: Sequence[Tensor], targets: Sequence[TargetId], counts: Sequence[int | None] | None = None
) -> tuple[Observation, ...]:
    """Return observations in which each target's place holds its vector ``(d,)``; places without a target hold zeros.

    ``counts`` are the images that each vector is the mean of, None where not known; an upload states them where all are.
    """
    by_upload: dict[tuple[int, int], dict[int, tuple[Tensor, int | None]]] = {}
    for target, vector, count in zip(targets, vectors, counts or [None] * len(vectors), strict=True):
        by_upload.setdefault((target.round, target.client), {})[target.index] = (vector.detach().cpu().float(), count)
    uploads = []
    for (round_, client), rows in by_upload.items():
        table = torch.zeros(max(rows) + 1, len(next(iter(rows.values()))[0]))
        images = torch.zeros(len(table), dtype=torch.int64)
        for index, (vector, count) in rows.items():
            table[index], images[index] = vector, count or 0
        known = None if any(count is None for _, count in rows.values()) else images
        uploads.append(Observation(round_, client, (Prototypes(table, torch.arange(len(table)), known),), ()))
    return tuple(uploads)
