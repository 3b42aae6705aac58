"""The attack on what a client uploads in several rounds, inverted together.

One image has to answer T times,

    min_x sum_t ||g_t(x) - r_t||^2 / s_t^2,    s_t the length of representations by g_t,

which is one inversion of the vector (r_1 / s_1, .., r_T / s_T) behind x -> (g_1(x) / s_1, .., g_T(x) / s_T), however
extractors move. Derived here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem, Objective, Same
from fedpriv.attacks.features.base import INVERSIONS, make_inversion
from fedpriv.attacks.inputs.extractors import require_extractors
from fedpriv.attacks.inputs.targets import observation_of, rounds_of, target_feature, upload_holds
from fedpriv.attacks.inversion.decoder import REFINED
from fedpriv.attacks.inversion.learned import LearnedInversion
from fedpriv.attacks.observation import Needs, Observation, Reconstruction, Rehearsal, ThreatModel
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed
from fedpriv.wire.kinds import SEPARATE
from fedpriv.wire.payloads import Message, Prototypes, Representations, find_payload

Extractor = Callable[[Tensor], Tensor]
Whole = Literal["dip", "pixels", "decoder", "joint", "learned"]

_WHOLE_INVERSIONS: dict[str, type[Attack]] = {**INVERSIONS, "learned": LearnedInversion}

_MEASURED = 64
"""Images of the attacker's own, or of noise, by which the length of an extractor's representations is measured."""


@dataclass(frozen=True, kw_only=True)
class AllRoundsInversion(Attack):
    """Invert a client's uploads of several rounds together.

    A target is a row of the newest upload. Rounds count whose upload holds the same rows (representations with the same
    labels in the same order, prototypes of all the classes) and whose extractor is granted.

    Attributes:
        inversion: ``decoder`` (needs attacker data), ``dip``, ``pixels``, ``joint`` (of class means, by several images
            each), ``learned`` (needs attacker data), or ``auto``: ``decoder`` where the card grants images, else ``dip``.
        iterations: most steps of the inversion; of ``decoder`` those in which single images are fitted to the vectors.
        restarts: of the inversion.
        rounds: most rounds that are put together, the newest and others spread evenly over those before.
    """

    inversion: Whole | Literal["auto"] = "auto"
    iterations: Annotated[int, Ge(1)] = REFINED
    restarts: Annotated[int, Ge(1)] = 1
    rounds: Annotated[int, Ge(2)] = 10

    name = "all-rounds"
    summary = "what a client uploads of the same images in all rounds, inverted together, each behind its own extractor"
    version = 4
    targets = SEPARATE
    unit = "upload"
    budget = "iterations"
    needs = Needs(extractor=("white_box", "query"), min_rounds=2, every_extractor=True)
    only_by_name = True

    def requirements_for(self, kind: str | None) -> Needs:
        """Return the needs of this attack and of its inversion together."""
        needs = super().requirements_for(kind)
        return needs if self.inversion == "auto" else needs.together(_WHOLE_INVERSIONS[self.inversion].needs)

    def trains(self, card: ThreatModel) -> str:
        """Return a name of its own: no other attack decodes what all rounds tell."""
        return self.name

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Put the rounds together and invert; refuse fewer than two with the same rows and an extractor."""
        seen, device = problem.observations, problem.device
        newest = torch.stack([target_feature(seen, target, SEPARATE).to(device) for target in problem.targets])
        return replace(self._inverter(problem).run(self._together(problem)), features=newest)

    def objective(self, problem: AttackProblem) -> Objective | None:
        """Return the inversion's, against the uploads of all rounds."""
        return self._inverter(problem).objective(self._together(problem))

    def _inverter(self, problem: AttackProblem) -> Attack:
        granted: Whole = "dip" if problem.knowledge.public_images is None else "decoder"
        kind = _WHOLE_INVERSIONS[granted if self.inversion == "auto" else self.inversion]
        chosen = make_inversion(kind, self.iterations, self.restarts)
        chosen.needs.refuse(self.name, problem.knowledge.card)
        return chosen

    def _together(self, problem: AttackProblem) -> AttackProblem:
        """Return the problem of inverting one long vector behind one wide extractor."""
        require_extractors(problem.knowledge, problem.targets)
        observations, extractors, defended = [], {}, {}
        for target in {target.client: target for target in problem.targets}.values():
            newest = observation_of(problem.observations, target)
            versions = self._versions(problem, newest)
            extractor, defend, lengths = problem.trained.get(*_wide(problem, newest.client, versions))
            rows = torch.cat([v.rows.to(problem.device) / s for v, s in zip(versions, lengths, strict=True)], 1)
            upload = tuple(
                replace(payload, **{str(payload.values_field()): rows}) if payload.kind in SEPARATE else payload
                for payload in newest.upload
            )
            observations.append(replace(newest, upload=upload))
            extractors[newest.client] = extractor
            if defend is not None:
                defended[newest.round, newest.client] = defend
        return replace(
            problem,
            observations=tuple(observations),
            knowledge=replace(problem.knowledge, extractors=extractors, defended=defended),
        )

    def _versions(self, problem: AttackProblem, newest: Observation) -> list[_Version]:
        """Return the newest rows as a client uploaded them, in at most as many rounds as are wanted."""
        knowledge, newest_rows = problem.knowledge, _uploaded_rows(newest)
        versions = []
        for seen in rounds_of(problem.observations, newest.client):
            where = (seen.round, seen.client)
            extractor = knowledge.extractors[newest.client] if seen is newest else knowledge.earlier.get(where)
            rows = _same_rows(seen.upload, newest_rows) if seen.round <= newest.round else None
            if extractor is not None and rows is not None:
                versions.append(_Version(seen.round, rows, extractor, knowledge.defended.get(where)))
        if len(versions) < 2:
            raise UserError(
                f"attack {self.name!r}: of client {newest.client} there is one round with the same rows and an extractor; "
                "expected two at least"
            )
        number = min(self.rounds, len(versions))
        return [versions[round((len(versions) - 1) * index / (number - 1))] for index in range(number)]


def _uploaded_rows(seen: Observation) -> Representations | Prototypes:
    rows = find_payload(seen.upload, Representations) or find_payload(seen.upload, Prototypes)
    if rows is not None:
        return rows
    raise UserError(f"attack 'all-rounds': {upload_holds(seen)}; expected representation or prototype")


def _same_rows(upload: Message, newest: Representations | Prototypes) -> Tensor | None:
    """Return another round's versions ``(n, d)`` of the newest rows, in their order; None where they are not all there."""
    if isinstance(newest, Representations):
        raw = find_payload(upload, Representations)
        return raw.features if raw is not None and torch.equal(raw.labels, newest.labels) else None
    means = find_payload(upload, Prototypes)
    if means is None or not len(means.classes):
        return None
    match = newest.classes[:, None] == means.classes[None]
    return means.features[match.int().argmax(1)] if bool(match.any(1).all()) else None


@dataclass(frozen=True)
class _Version:
    """Rows ``(n, d)`` as they were uploaded in a round, and the extractor and defenses that they came through."""

    round: int
    rows: Tensor
    extractor: Extractor
    defend: Rehearsal | None


Wide = tuple[Extractor, Rehearsal | None, tuple[float, ...]]
"""T extractors side by side, whose representations are divided by lengths; the defenses of their rows; the lengths."""


def _wide(problem: AttackProblem, client: int, versions: Sequence[_Version]) -> tuple[Hashable, Callable[[], Wide]]:
    """Return a key, and what makes a client's extractors one; made once, so that all that is trained on it is shared."""

    def make() -> Wide:
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

    parts = [(version.round, Same(version.extractor), Same(version.defend)) for version in versions]
    return ("all rounds", client, problem.seed, *parts), make
