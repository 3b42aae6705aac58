"""All rounds at once: what a client uploads of the same images is inverted behind each round's own extractor together.

In each of T rounds a client uploads the representation of the same image, or the mean of the same class, by an extractor g_t
that has moved on. So one image has to answer T times:

    min_x sum_t ||g_t(x) - r_t||^2 / s_t^2,    s_t the length of representations by g_t,

which is one inversion of the vector (r_1 / s_1, .., r_T / s_T) behind x -> (g_1(x) / s_1, .., g_T(x) / s_T). What one
extractor has forgotten an earlier one may tell, noise that is drawn anew each round averages out, and blocks that are sent
in turn complete each other, without any assumption on how extractors move. Every inversion of vectors is used as it is; a
decoder learns through the defenses of every round.

Derived here. Averaging rows first (:mod:`fedpriv.attacks.recover.averaging`) needs the last extractor alone, and pays for it
with an extractor's drift.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.invert.decoder import REFINED, DecoderInversion
from fedpriv.attacks.invert.inversion import DipInversion, PixelInversion
from fedpriv.attacks.invert.joint import JointInversion
from fedpriv.attacks.invert.learned import LearnedInversion
from fedpriv.attacks.observation import KnowledgeCard, Needs, Observation, Reconstruction, Rehearsal
from fedpriv.attacks.read.extractors import require_extractors
from fedpriv.attacks.read.target_features import observation_of, rounds_of, target_feature
from fedpriv.attacks.recover.averaging import same_rows, uploaded_rows
from fedpriv.attacks.trained import Same
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed
from fedpriv.wire.kinds import SEPARATE
from fedpriv.wire.payloads import Message

Extractor = Callable[[Tensor], Tensor]
Whole = Literal["dip", "pixels", "decoder", "joint", "learned"]

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
        iterations: most steps of the inversion; of ``decoder`` those in which single images are fitted to the vectors, of
            ``learned`` of its last stage, to which those before are in proportion.
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
        return needs if self.inversion == "auto" else needs.together(self._inversions()[self.inversion].needs)

    def trains(self, card: KnowledgeCard) -> str:
        """Return a name of its own: no other attack decodes what all rounds tell."""
        return self.name

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Put the rounds together and invert.

        Raises:
            UserError: when the extractors or uploads of fewer than two rounds are there for an attacked client.
        """
        seen, device = problem.observations, problem.device
        own = torch.stack([target_feature(seen, target, SEPARATE).to(device) for target in problem.targets])
        return replace(self._inverter(problem).run(self._together(problem)), features=own)

    def objective(self, problem: AttackProblem) -> Objective | None:
        """Return the inversion's, against the uploads of all rounds."""
        return self._inverter(problem).objective(self._together(problem))

    def _inversions(self) -> dict[Whole, Attack]:
        steps, restarts = self.iterations, self.restarts
        return {
            "dip": DipInversion(iterations=steps, restarts=restarts),
            "pixels": PixelInversion(iterations=steps, restarts=restarts),
            "joint": JointInversion(iterations=steps, restarts=restarts),
            "decoder": DecoderInversion(refine_steps=steps, restarts=restarts),
            "learned": LearnedInversion(iterations=steps, restarts=restarts),
        }

    def _inverter(self, problem: AttackProblem) -> Attack:
        granted: Whole = "dip" if problem.knowledge.public_images is None else "decoder"
        chosen = self._inversions()[granted if self.inversion == "auto" else self.inversion]
        chosen.needs.refuse(self.name, problem.knowledge.card)
        return chosen

    def _together(self, problem: AttackProblem) -> AttackProblem:
        """Return the problem of inverting one long vector behind one wide extractor."""
        require_extractors(problem.knowledge, problem.targets)
        observations, extractors, defended = [], {}, {}
        for target in {target.client: target for target in problem.targets}.values():
            newest = observation_of(problem.observations, target)
            versions = self._versions(problem, newest)
            wide, defend = problem.trained.get(*_wide(problem, newest.client, [version.behind for version in versions]))
            rows = torch.cat([v.rows.to(problem.device) / s for v, s in zip(versions, wide.lengths, strict=True)], 1)
            observations.append(replace(newest, upload=_holding(newest, rows)))
            extractors[newest.client] = wide
            if defend is not None:
                defended[newest.round, newest.client] = defend
        return replace(
            problem,
            observations=tuple(observations),
            knowledge=replace(problem.knowledge, extractors=extractors, defended=defended),
        )

    def _versions(self, problem: AttackProblem, newest: Observation) -> list[_Version]:
        """Return the newest rows as a client uploaded them, in at most as many rounds as are wanted."""
        knowledge, held = problem.knowledge, uploaded_rows(newest, self.name)
        found = []
        for seen in rounds_of(problem.observations, newest.client):
            where = (seen.round, seen.client)
            extractor = knowledge.extractors[newest.client] if seen is newest else knowledge.earlier.get(where)
            rows = same_rows(seen.upload, held) if seen.round <= newest.round else None
            if extractor is not None and rows is not None:
                found.append(_Version(rows, _Behind(seen.round, extractor, knowledge.defended.get(where))))
        if len(found) < 2:
            raise UserError(
                f"attack {self.name!r}: of client {newest.client} there is one round with the same rows and an extractor; "
                "expected two at least"
            )
        number = min(self.rounds, len(found))
        return [found[round((len(found) - 1) * place / (number - 1))] for place in range(number)]


@dataclass(frozen=True)
class _Behind:
    """Extractor and defenses between images and the upload of a round."""

    round: int
    extractor: Extractor
    defend: Rehearsal | None


@dataclass(frozen=True)
class _Version:
    """Rows ``(n, d)`` as they were uploaded in a round, and what they came through."""

    rows: Tensor
    behind: _Behind


@dataclass(frozen=True, eq=False)
class _Wide:
    """T extractors side by side.

    Attributes:
        extractors: one a round.
        lengths: what each round's representations are divided by.
    """

    extractors: tuple[Extractor, ...]
    lengths: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """Return ``(n, d_1 + .. + d_T)`` for images ``(n, c, h, w)``."""
        return torch.cat([own(images) / s for own, s in zip(self.extractors, self.lengths, strict=True)], 1)


@dataclass(frozen=True, eq=False)
class _Defended:
    """The defenses of T rounds, on rows of T extractors side by side.

    Attributes:
        each: the defenses of each round's upload, or None.
        lengths: what each round's representations were divided by.
        widths: of each round's representations.
    """

    each: tuple[Rehearsal | None, ...]
    lengths: tuple[float, ...]
    widths: tuple[int, ...]

    def __call__(self, rows: Tensor, seed: int) -> Tensor:
        """Return rows as they would have been sent, each round by its own defenses."""
        parts = zip(rows.split(self.widths, 1), self.each, self.lengths, strict=True)
        return torch.cat(
            [
                part if defend is None else defend(part * length, derive_seed(seed, place)) / length
                for place, (part, defend, length) in enumerate(parts)
            ],
            1,
        )


def _wide(
    problem: AttackProblem, client: int, behind: Sequence[_Behind]
) -> tuple[Hashable, Callable[[], tuple[_Wide, _Defended | None]]]:
    """Return a key, and what makes a client's extractors one; made once, so that all that is trained on it is shared."""

    def make() -> tuple[_Wide, _Defended | None]:
        own = problem.knowledge.public_images
        if own is None:
            rng = torch.Generator().manual_seed(derive_seed(problem.seed, "all rounds", client))
            own = torch.rand(_MEASURED, *problem.knowledge.image_shape, generator=rng)
        with torch.no_grad():
            tried = [one.extractor(own[:_MEASURED].to(problem.device)) for one in behind]
        lengths = tuple(max(float(rows.norm(dim=1).mean()), 1e-12) for rows in tried)
        each = tuple(one.defend for one in behind)
        undefended = all(one is None for one in each)
        defended = None if undefended else _Defended(each, lengths, tuple(rows.shape[1] for rows in tried))
        return _Wide(tuple(one.extractor for one in behind), lengths), defended

    parts = [(one.round, Same(one.extractor), Same(one.defend)) for one in behind]
    return ("all rounds", client, problem.seed, *parts), make


def _holding(seen: Observation, rows: Tensor) -> Message:
    return tuple(
        replace(payload, **{str(payload.values_field()): rows}) if payload.kind in SEPARATE else payload
        for payload in seen.upload
    )
