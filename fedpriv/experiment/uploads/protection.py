"""Defenses that clients are said to have used on uploads that were handed in, for attackers who know them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedpriv.attacks.observation import Observation, Rehearsal, WeightRehearsal
from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.defenses.shared.adapted import LEARNED
from fedpriv.evidence.rehearsal import changes_rows, changes_uploads, changes_weights, rehearsed, rehearsed_weights
from fedpriv.experiment.federation_settings import texts
from fedpriv.federation.defense import DefensePipeline, defense_facts
from fedpriv.federation.summary import DefenseFacts
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator
from fedpriv.wire.kinds import CLASS_OUTPUTS, FACTORS, MIXTURES, SEPARATE, UPDATES

T = TypeVar("T")

OWN = "own-defense"
"""The label of a defense that is handed in as a function."""

OwnDefense = Callable[[Tensor, torch.Generator], Tensor]
"""(rows ``(n, d)``, where to draw from) -> rows ``(n, d)`` as they are sent."""


BY_ROWS = SEPARATE | MIXTURES | CLASS_OUTPUTS
"""Uploads of which attackers know what a defense makes of other rows."""

BY_WEIGHTS = UPDATES | FACTORS
"""Uploads of which attackers know what a defense makes of other weights."""


@dataclass(frozen=True)
class Told:
    """Defenses that clients are said to have used, by (round, client).

    Attributes:
        rows: what is made of rows.
        weights: what is made of weights.
    """

    rows: Mapping[tuple[int, int], Rehearsal] = field(default_factory=dict)
    weights: Mapping[tuple[int, int], WeightRehearsal] = field(default_factory=dict)


@dataclass(frozen=True)
class _Own:
    """A defense of the caller's own."""

    change: OwnDefense

    def __call__(self, rows: Tensor, seed: int) -> Tensor:
        """Return rows as they would have been sent.

        Raises:
            UserError: where the function fails, or returns something else than rows.
        """
        where = argument("defense")
        try:
            found = self.change(rows.detach().cpu().clone(), generator(seed, "own defense"))
        except Exception as error:
            raise UserError(f"{where}: the function fails on rows {tuple(rows.shape)}: {error}") from error
        if not isinstance(found, Tensor) or found.shape != rows.shape or not found.is_floating_point():
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise UserError(
                f"{where}: the function returns {got} for rows {tuple(rows.shape)}; expected as many floats"
            )
        if not bool(found.isfinite().all()):
            raise UserError(f"{where}: the function returns NaN or infinity")
        return found.detach().to(rows)


def read_defense(given: Any, target: str, observations: Sequence[Observation], n_classes: int) -> Told:
    """Return the defenses of uploads as they are told, for others in their place; none for None.

    Args:
        given: texts ``NAME[:KEY=VALUE,...]``, or, of uploads that hold rows, a function; see :data:`OwnDefense`.
        target: kind of upload.
        observations: the uploads.
        n_classes: C.

    Raises:
        UserError: for an unknown defense, one that could not have made the uploads, or a function that fails on their rows.
    """
    if given is None:
        if target not in FACTORS:
            return Told()
        nothing = DefensePipeline(())  # what is sent is truncated even so
        return Told(weights=_each(given, rehearsed_weights, nothing, target, observations, n_classes))
    if target not in BY_ROWS | BY_WEIGHTS:
        raise UserError(
            f"{argument('defense')}: attackers know defenses of {', '.join(BY_ROWS | BY_WEIGHTS)} uploads alone"
        )
    if callable(given):
        if target not in BY_ROWS:
            raise UserError(f"{argument('defense')}: a function is for uploads of rows; name what was done to weights")
        own = _Own(given)
        for seen in observations:
            own(next(payload.rows() for payload in seen.upload if payload.kind == target), 0)
        return Told({(seen.round, seen.client): own for seen in observations})
    pipeline = _pipeline(given)
    changes = changes_rows if target in BY_ROWS else changes_weights
    if not (changes_uploads(pipeline) and changes(pipeline, target)):
        raise UserError(f"{argument('defense', given)}: changes nothing of {target} uploads")
    if target in BY_ROWS:
        return Told(_each(given, rehearsed, pipeline, target, observations, n_classes))
    return Told(weights=_each(given, rehearsed_weights, pipeline, target, observations, n_classes))


def _each(
    given: Any,
    find: Callable[..., T | None],
    pipeline: DefensePipeline,
    target: str,
    observations: Sequence[Observation],
    n_classes: int,
) -> dict[tuple[int, int], T]:
    found: dict[tuple[int, int], T] = {}
    rounds = len({seen.round for seen in observations})
    for seen in observations:
        one = find(pipeline, seen, target, n_classes, rounds)
        if one is None:
            raise UserError(
                f"{argument('defense', given)}: would not have sent what client {seen.client} sent in round {seen.round}"
            )
        found[seen.round, seen.client] = one
    return found


def stated_defense(given: Any) -> tuple[DefenseFacts, ...]:
    """Return the facts for records of what clients are said to have done; arguments as :func:`read_defense` has them."""
    if given is None:
        return ()
    if not callable(given):
        return tuple(defense_facts(one) for one in _pipeline(given).defenses)
    facts = DefenseFacts(
        name=OWN,
        options={},
        label=OWN,
        source="the caller's function",
        guarantee="not stated",
        answers=LEARNED,
        unanswered="",
        server_view="each",
    )
    return (facts,)


def _pipeline(given: Any) -> DefensePipeline:
    return DefensePipeline(build_defenses([parse_choice(text) for text in texts("defense", given)]))
