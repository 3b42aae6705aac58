"""The attack adapted to noise on rows: average what a client uploads of the same images over rounds, then invert that.

Noise, differentially private or not, and stochastic rounding are drawn anew in every round, while the image behind a row of
representations, and the images behind a class's prototype, stay the same. See :mod:`fedpriv.attacks.recover.averaging`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem
from fedpriv.attacks.invert.feature_matching import Match
from fedpriv.attacks.observation import Needs, Observation
from fedpriv.attacks.read.target_features import observation_of
from fedpriv.attacks.recover.averaging import Averaged, average
from fedpriv.attacks.recover.then_invert import Recovered, RecoverThenInvert
from fedpriv.attacks.recover.unmixing import Family
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import SEPARATE
from fedpriv.wire.payloads import Message, Prototypes, Representations, find_payload

Rows = Representations | Prototypes


@dataclass(frozen=True, kw_only=True)
class AveragedInversion(RecoverThenInvert):
    """Average a client's rows over all rounds seen, then invert those of the targets.

    A target is a row of the newest upload. Representations are averaged over the rounds whose rows have the same labels in
    the same order, prototypes over the rounds that hold all classes of the newest; other rounds are left out.

    Attributes:
        family: which estimators may be chosen; see :mod:`fedpriv.attacks.recover.unmixing`.
        zeros: ``sent``; or ``missing``: a coordinate that is zero in all rows of a round was not sent (``diagonal``), and
            rounds that show different coordinates are put together.
        match: what of the averaged vector is believed, by all inversions but ``decoder``; see
            :data:`fedpriv.attacks.invert.feature_matching.Match`.
    """

    family: Family = "auto"
    zeros: Literal["sent", "missing"] = "sent"
    match: Match = "vector"

    name = "average"
    summary = "what a client uploads of the same images averaged over rounds, then inverted"
    targets = SEPARATE
    unit = "row"
    needs = Needs(min_rounds=2)
    only_by_name = True

    def recover(self, problem: AttackProblem) -> Recovered:
        """Average the newest upload of every attacked client over rounds.

        Raises:
            UserError: when an upload holds neither representations nor prototypes.
        """
        seen = problem.observations
        newest = {target.client: observation_of(seen, target) for target in problem.targets}
        averaged = tuple(
            replace(one, upload=averaged_upload(seen, one, self.family, self.zeros == "missing"))
            for one in newest.values()
        )
        return Recovered(averaged, problem.targets)

    def inverter(self, **options: Any) -> Attack:
        """Return the inversion, which believes of the averaged vectors what ``match`` says."""
        return super().inverter(**options, **({} if self.inversion == "decoder" else {"match": self.match}))


def averaged_upload(
    observations: Sequence[Observation], newest: Observation, family: Family = "auto", missing: bool = False
) -> Message:
    """Return the newest upload with its rows averaged over rounds; counts and labels stay.

    Args:
        observations: what the server saw, of any clients and rounds.
        newest: the upload to improve; rounds after it have no part.
        family: which estimators to consider.
        missing: whether coordinates that are zero in all rows of a round were not sent.

    Raises:
        UserError: when it holds neither representations nor prototypes.
    """
    rows = average_rows(observations, newest, family, missing).rows
    return tuple(
        replace(payload, **{str(payload.values_field()): rows}) if payload.kind in SEPARATE else payload
        for payload in newest.upload
    )


def average_rows(
    observations: Sequence[Observation], newest: Observation, family: Family = "auto", missing: bool = False
) -> Averaged:
    """Return the rows of the newest upload averaged over rounds; arguments as of :func:`averaged_upload`."""
    held = _rows(newest)
    own = sorted(
        (o for o in observations if o.client == newest.client and o.round <= newest.round), key=lambda o: o.round
    )
    versions = [found for seen in own if (found := _same_rows(seen.upload, held)) is not None]
    stacked = torch.stack(versions)
    return average(stacked, (stacked != 0).any(1) if missing else None, family)


def _rows(seen: Observation) -> Rows:
    found = find_payload(seen.upload, Representations) or find_payload(seen.upload, Prototypes)
    if found is not None:
        return found
    raise UserError(
        f"attack 'average': upload of client {seen.client} in round {seen.round} holds "
        f"{', '.join(payload.kind for payload in seen.upload) or 'nothing'}; expected representation or prototype"
    )


def _same_rows(upload: Message, newest: Rows) -> Tensor | None:
    """Return another round's versions ``(n, d)`` of the newest rows, in their order; None where they are not all there."""
    if isinstance(newest, Representations):
        raw = find_payload(upload, Representations)
        return raw.features if raw is not None and torch.equal(raw.labels, newest.labels) else None
    means = find_payload(upload, Prototypes)
    if means is None or not len(means.classes):
        return None
    match = newest.classes[:, None] == means.classes[None]
    return means.features[match.int().argmax(1)] if bool(match.any(1).all()) else None
