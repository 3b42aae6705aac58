"""The attack on what a client uploads in several rounds, inverted together.

One image has to answer T times,

    min_x sum_t ||g_t(x) - r_t||^2 / s_t^2,    s_t the length of representations by g_t,

which is one inversion of the vector (r_1 / s_1, .., r_T / s_T) behind x -> (g_1(x) / s_1, .., g_T(x) / s_T), however
extractors move. Derived here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, NamedTuple

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.features.base import Recovered, RecoverThenInvert
from fedpriv.attacks.inputs.targets import (
    observation_of,
    require_extractors,
    rounds_of,
    target_feature,
    upload_holds,
)
from fedpriv.attacks.observation import Needs, Observation, Rehearsal, ThreatModel
from fedpriv.attacks.trained import Same
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed
from fedpriv.wire.kinds import OF_IMAGES, SEPARATE

_MEASURED = 64
"""Images of the attacker's own, or of noise, by which the length of an extractor's representations is measured."""


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
    labels in the same order, prototypes of all the classes) and whose extractor is granted.

    Attributes:
        rounds: most rounds that are put together, the newest and others spread evenly over those before.
    """

    iterations: Annotated[int, Ge(1)] = 600
    rounds: Annotated[int, Ge(2)] = 10

    name = "all-rounds"
    summary = "what a client uploads of the same images in all rounds, inverted together, each behind its own extractor"
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
                f"attack {self.name!r}: of client {newest.client} there is one round with the same rows and an extractor; "
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
