"""Attacks of two parts: one recovers a feature vector for each target, and an inversion makes it an image.

The simplest puts the uploads of several rounds together. One image has to answer T times,

    min_x sum_t ||g_t(x) - r_t||^2 / s_t^2,    s_t the length of representations by g_t,

which is one inversion of the vector (r_1 / s_1, .., r_T / s_T) behind x -> (g_1(x) / s_1, .., g_T(x) / s_T), however
extractors move. Derived here.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, final

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem, Objective, Same, Trained
from fedpriv.attacks.inputs.outputs import Match
from fedpriv.attacks.inputs.targets import (
    observation_of,
    represented,
    require_extractors,
    rounds_of,
    target_feature,
    upload_holds,
)
from fedpriv.attacks.inversion.decoder import DecoderInversion
from fedpriv.attacks.inversion.vector import DipInversion, PixelInversion, uploaded_vectors
from fedpriv.attacks.observation import (
    Knowledge,
    Needs,
    Observation,
    Reconstruction,
    Rehearsal,
    TargetId,
    ThreatModel,
    Unit,
)
from fedpriv.attacks.priors.spectral import images_to_train_on
from fedpriv.uploads.kinds import OF_IMAGES, SEPARATE
from fedpriv.uploads.payloads import Prototypes
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator

_NO_VARIANCE, _LEAST_VARIANCE, _LEAST_UNCERTAIN = 1e-30, 1e-3, 0.02
"""Least variance; that of directions without any, in units of the mean one; least error, in units of the spread."""

_MEASURED = 64  # own images, or images of noise, by which the length of an extractor's representations is measured

Inversion = Literal["auto", "dip", "pixels", "decoder"]

INVERSIONS: dict[str, type[Attack]] = {
    "dip": DipInversion,
    "pixels": PixelInversion,
    "decoder": DecoderInversion,
}
"""The second parts, by name."""


@dataclass(frozen=True)
class Recovered:
    """Vectors that the first part recovered, as T targets in uploads of their own."""

    uploads: tuple[Observation, ...]  # as clients would have uploaded the vectors
    places: tuple[TargetId, ...]  # one for each target of the attack and in their order; rows draw by them
    labels: Tensor | None = None  # (T,) int64 classes that the recovery tells; None for those of the targets
    sound: Tensor | None = None  # (T,) bool, whether the vector can be what it is taken for; None for yes
    distance: Tensor | None = None  # (T,) float32 expected from the true vectors; None where none is expected
    exact: bool = False  # whether vectors of which the uploads say that they are of one image are exact
    knowledge: Knowledge | None = None  # with which vectors are inverted; None for the attack's without defenses
    features: Tensor | None = None  # (T, d) uploaded vectors to record in the place of the recovered ones


@dataclass(frozen=True, kw_only=True)
class RecoverThenInvert(Attack):
    """Recover a vector for each target, then invert it; a subclass writes ``recover``.

    Attributes:
        inversion: of the recovered vectors: ``dip``, ``pixels``, ``decoder`` (which needs attacker data), or
            ``auto``: ``decoder`` where the card grants images, else ``dip``.
        iterations: most steps of the inversion; a ``decoder`` takes them where vectors are exactly one image's.
        restarts: of the inversion.
        match: what of the recovered vectors is believed by ``dip`` and ``pixels``: ``nonzero`` where columns of
            an update were zeroed (the answer to ``soteria``); see :data:`fedpriv.attacks.inputs.outputs.Match`.
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
        inverter = self._inverter(problem.knowledge, recovered)
        learned = isinstance(inverter, DecoderInversion)
        inverted = inverter.run(_inversion_problem(problem, recovered, learned=learned))
        labels, converged, features = inverted.labels, inverted.converged, recovered.features
        if features is None:
            features = uploaded_vectors(replace(problem, observations=recovered.uploads, targets=recovered.places))
        if recovered.labels is not None:
            labels = recovered.labels.to(labels)[:, None].expand_as(labels)
        if recovered.sound is not None:
            converged = converged & recovered.sound.to(converged.device)
        return replace(
            inverted,
            targets=problem.targets,
            labels=labels,
            converged=converged,
            features=features,
        )

    @final
    def objective(self, problem: AttackProblem) -> Objective | None:
        """Return the inversion's, against the vectors recovered from the uploads."""
        recovered = self.recover(problem)
        inverter = self._inverter(problem.knowledge, recovered)
        learned = isinstance(inverter, DecoderInversion)
        return inverter.objective(_inversion_problem(problem, recovered, learned=learned))

    def _inverter(self, knowledge: Knowledge, recovered: Recovered) -> Attack:
        """Return the inversion with its budget; a decoder fits its images to exact vectors alone."""
        chosen = self._chosen(images=knowledge.public_images is not None)
        chosen.needs.refuse(self.name, knowledge.card)
        if issubclass(chosen, DecoderInversion):
            return chosen(refine_steps=self.iterations if recovered.exact else 0)
        options: dict[str, Any] = {"iterations": self.iterations, "restarts": self.restarts, "match": self.match}
        return chosen(**options)


@dataclass(frozen=True)
class _Uncertain:
    """Representations by an extractor as normally distributed, from the attacker's own images."""

    mean: Tensor  # (d,)
    basis: Tensor  # (d, m) principal directions
    variances: Tensor  # (m,)
    least: Tensor  # variance in the directions in which the images do not vary, and on top of the others

    @classmethod
    def of(
        cls, extractor: Callable[[Tensor], Tensor], images: Tensor, device: torch.device, kept: Trained
    ) -> _Uncertain:
        """Return the distribution of the representations of images."""
        rows = represented(extractor, images, device, kept)
        if not bool(rows.isfinite().all()):
            raise UserError("a decoder got representations of the attacker's own images that are not finite")
        _, values, basis = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
        variances = values.square() / len(rows)
        least = (_LEAST_VARIANCE * variances.sum() / rows.shape[1]).clamp_min(_NO_VARIANCE)
        return cls(rows.mean(0), basis.mT, variances, least)

    def expected(self, rows: Tensor, lengths: Tensor) -> Tensor:
        """Return what rows ``(n, d)`` are expected to be that have errors of root mean square lengths ``(n, 1)``."""
        noise, variances = lengths.square() / len(self.mean), self.variances + self.least
        parts = (rows - self.mean) @ self.basis
        beside = (rows - self.mean - parts @ self.basis.mT) * (self.least / (self.least + noise))
        return self.mean + parts * (variances / (variances + noise)) @ self.basis.mT + beside

    def __call__(self, rows: Tensor, seed: int) -> Tensor:
        """Return what is expected of rows after errors from a fiftieth of their spread to all of it."""
        rng = generator(seed, "uncertain")
        drawn, powers = torch.randn(rows.shape, generator=rng), torch.rand(len(rows), 1, generator=rng)
        lengths = self.variances.sum().sqrt() * _LEAST_UNCERTAIN ** powers.to(rows)
        return self.expected(rows + lengths / math.sqrt(rows.shape[1]) * drawn.to(rows), lengths)


def _inversion_problem(problem: AttackProblem, recovered: Recovered, *, learned: bool) -> AttackProblem:
    """Return the problem of the inversion, of vectors that are undefended.

    Where a network that is ``learned`` inverts, it is one for errors of every length, as it is made for what is expected of
    a vector with its error. Others invert the vectors as they were recovered.
    """
    uploads, knowledge = recovered.uploads, recovered.knowledge
    if knowledge is None:
        knowledge = replace(problem.knowledge, defended={})
        if learned and recovered.distance is not None:
            uploads, knowledge = _expected(problem, recovered)
    return replace(problem, knowledge=knowledge, observations=uploads, targets=recovered.places)


def _expected(problem: AttackProblem, recovered: Recovered) -> tuple[tuple[Observation, ...], Knowledge]:
    """Return uploads of the vectors that are expected, and the grants with the errors as defenses."""
    knowledge, kept, device = problem.knowledge, problem.trained, problem.device
    require_extractors(knowledge, recovered.places)
    images = images_to_train_on(DecoderInversion.name, knowledge)
    assert recovered.distance is not None
    distance = recovered.distance.to(device).nan_to_num(torch.inf)  # an error that nobody knows
    errors = {}
    for client, extractor in knowledge.extractors.items():
        make = partial(_Uncertain.of, extractor, images, device, kept)
        errors[client] = kept.get(("uncertain", Same(extractor), Same(images)), make)
    vectors = [
        errors[place.client].expected(target_feature(recovered.uploads, place, SEPARATE).to(device)[None], length)[0]
        for place, length in zip(recovered.places, distance, strict=True)
    ]
    last = max(place.round for place in recovered.places)
    defended = {(last, client): each for client, each in errors.items()}
    defended |= {(place.round, place.client): errors[place.client] for place in recovered.places}
    return as_uploads(vectors, recovered.places), replace(knowledge, defended=defended)


def as_uploads(
    vectors: Sequence[Tensor], targets: Sequence[TargetId], counts: Sequence[int | None] | None = None
) -> tuple[Observation, ...]:
    """Return observations in which each target's place holds its vector ``(d,)``; places without a target hold zeros.

    ``counts`` are the images that each vector is the mean of, None where not known; an upload has them where all are.
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


class _Version(NamedTuple):
    """Rows ``(n, d)`` as they were uploaded in a round, and the extractor and defenses that they came through."""

    round: int
    rows: Tensor
    extractor: Callable[[Tensor], Tensor]
    defend: Rehearsal | None


@dataclass(frozen=True, kw_only=True)
class AllRoundsInversion(RecoverThenInvert):
    """Invert a client's uploads of several rounds together.

    A target is a row of the newest upload. Rounds count whose upload holds the same rows (representations with the same
    labels in order, prototypes of all the classes) and whose extractor is granted.

    Attributes:
        rounds: most rounds that are put together, the newest and others spread evenly over those before.
    """

    iterations: Annotated[int, Ge(1)] = 600
    rounds: Annotated[int, Ge(2)] = 10

    name = "all-rounds"
    summary = "the same images behind the extractors of all rounds, inverted together"
    version = 4
    targets = SEPARATE
    unit = "upload"
    needs = Needs(extractor=("white_box", "query"), min_rounds=2, every_extractor=True)
    only_by_name = True

    def requirements_for(self, kind: str | None) -> Needs:
        """Return the needs of this attack, and of its inversion where one is named."""
        return self.needs if self.inversion == "auto" else super().requirements_for(kind)

    def trains(self, card: ThreatModel) -> str:
        """Return a name of its own: no other attack decodes what all rounds tell."""
        return self.name

    def recover(self, problem: AttackProblem) -> Recovered:
        """Return one long vector a target behind one wide extractor; refuse fewer than two rounds with the same rows."""
        seen, device = problem.observations, problem.device
        require_extractors(problem.knowledge, problem.targets)
        observations, extractors, defended = [], {}, {}
        for target in {target.client: target for target in problem.targets}.values():
            newest = observation_of(seen, target)
            versions = self._versions(problem, newest)
            parts = [(version.round, Same(version.extractor), Same(version.defend)) for version in versions]
            make = partial(_wide, problem, newest.client, versions)
            # Made once, so that all that is trained on it is shared.
            extractor, defend, lengths = problem.trained.get(("all rounds", newest.client, problem.seed, *parts), make)
            rows = torch.cat([v.rows.to(device) / s for v, s in zip(versions, lengths, strict=True)], 1)
            upload = tuple(
                replace(payload, **{str(payload.values_field()): rows}) if payload.kind in SEPARATE else payload
                for payload in newest.upload
            )
            observations.append(replace(newest, upload=upload))
            extractors[newest.client] = extractor
            if defend is not None:
                defended[newest.round, newest.client] = defend
        return Recovered(
            tuple(observations),
            problem.targets,
            exact=True,
            knowledge=replace(problem.knowledge, extractors=extractors, defended=defended),
            features=torch.stack([target_feature(seen, target, SEPARATE).to(device) for target in problem.targets]),
        )

    def _versions(self, problem: AttackProblem, newest: Observation) -> list[_Version]:
        """Return the newest rows as a client uploaded them, in at most as many rounds as are wanted."""
        knowledge, versions = problem.knowledge, []
        for seen in rounds_of(problem.observations, newest.client):
            where = (seen.round, seen.client)
            extractor = knowledge.extractors[newest.client] if seen is newest else knowledge.earlier.get(where)
            rows = _same_rows(seen, newest) if seen.round <= newest.round else None
            if extractor is not None and rows is not None:
                versions.append(_Version(seen.round, rows, extractor, knowledge.defended.get(where)))
        if len(versions) < 2:
            raise UserError(
                f"attack {self.name!r}: of client {newest.client} one round has the same targets and an extractor; "
                "expected two at least"
            )
        number = min(self.rounds, len(versions))
        return [versions[round((len(versions) - 1) * index / (number - 1))] for index in range(number)]


def _same_rows(seen: Observation, newest: Observation) -> Tensor | None:
    """Return a round's versions ``(n, d)`` of the newest rows, in their order; None where they are not all there."""
    sent, wanted = SEPARATE.first(seen.upload), SEPARATE.first(newest.upload)
    if wanted is None:
        raise UserError(f"attack 'all-rounds': {upload_holds(newest)}; expected representation or prototype")
    if sent is None or sent.kind != wanted.kind:
        return None
    labels, goal = sent.said("classes"), wanted.said("classes")
    assert labels is not None
    assert goal is not None
    if wanted.kind in OF_IMAGES:
        return sent.rows() if torch.equal(labels, goal) else None
    match = goal[:, None] == labels[None]
    return sent.rows()[match.int().argmax(1)] if len(labels) and bool(match.any(1).all()) else None


def _wide(
    problem: AttackProblem, client: int, versions: Sequence[_Version]
) -> tuple[Callable[[Tensor], Tensor], Rehearsal | None, tuple[float, ...]]:
    """Return extractors side by side, with representations divided by lengths; the defenses of their rows; the lengths."""
    images = problem.knowledge.public_images
    if images is None:
        rng = torch.Generator().manual_seed(derive_seed(problem.seed, "all rounds", client))
        images = torch.rand(_MEASURED, *problem.knowledge.image_shape, generator=rng)
    with torch.no_grad():
        tried = [version.extractor(images[:_MEASURED].to(problem.device)) for version in versions]
    lengths = tuple(max(float(rows.norm(dim=1).mean()), 1e-12) for rows in tried)
    widths = [rows.shape[1] for rows in tried]

    def extract(images: Tensor) -> Tensor:
        return torch.cat([v.extractor(images) / s for v, s in zip(versions, lengths, strict=True)], 1)

    def defend(rows: Tensor, seed: int) -> Tensor:
        sent = list(rows.split(widths, 1))
        for index, (version, length) in enumerate(zip(versions, lengths, strict=True)):
            if version.defend is not None:
                sent[index] = version.defend(sent[index] * length, derive_seed(seed, index)) / length
        return torch.cat(sent, 1)

    return extract, defend if any(version.defend for version in versions) else None, lengths
