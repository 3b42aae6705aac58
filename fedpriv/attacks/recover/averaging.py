"""The attack adapted to noise on rows: average what a client uploads of the same images over rounds, then invert that.

A client uploads the representation of the same image, or the prototype of the same class, in each of T rounds: p(t) + e_t
with independent disturbances e_t of zero mean (noise, stochastic rounding). A mean over T rounds divides their variance by
T, but the extractor moves from round to round, so that old versions are of another p.

Estimators are means over the last rounds, with a linear drift or without, and a mean that forgets (the Kalman filter of a
random walk, which at the last round equals the smoother).
Which one, and over how many rounds, is chosen by how well it predicts each of the last uploads from those before, for all
rows of a client together: they share the extractor and so its drift.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem
from fedpriv.attacks.observation import Knowledge, Needs, Observation
from fedpriv.attacks.optim.objectives import Match
from fedpriv.attacks.read.target_features import observation_of, rounds_of, upload_holds
from fedpriv.attacks.recover.then_invert import Recovered, RecoverThenInvert
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import SEPARATE
from fedpriv.wire.payloads import Message, Prototypes, Representations, find_payload

_WINDOWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_DRIFTING = 4
"""Rounds from which a linear drift is worth fitting."""

HELD_OUT = 3
"""Last uploads that are predicted from those before, to choose an estimator."""

_WALKS = tuple(10.0**power for power in (-6, -5, -4, -3, -2, -1, 0, 1, 2))
_PRIORS = tuple(10.0**power for power in (0, 2, 4))

Family = Literal["auto", "window", "random_walk"]
Rows = Representations | Prototypes


@dataclass(frozen=True, kw_only=True)
class AveragedInversion(RecoverThenInvert):
    """Average a client's rows over all rounds seen, then invert those of the targets.

    A target is a row of the newest upload. Representations are averaged over the rounds whose rows have the same labels in
    the same order, prototypes over the rounds that hold all classes of the newest; other rounds are left out.

    Attributes:
        family: which estimators may be chosen: of a ``window``, the ``random_walk``, or ``auto``, both.
        zeros: ``sent``; or ``missing``: a coordinate that is zero in all rows of a round was not sent (``diagonal``), and
            rounds that show different coordinates are put together.
        match: what of the averaged vector is believed, by all inversions but ``decoder``; see
            :data:`fedpriv.attacks.optim.objectives.Match`.
    """

    family: Family = "auto"
    zeros: Literal["sent", "missing"] = "sent"
    match: Match = "vector"

    name = "average"
    summary = "what a client uploads of the same images averaged over rounds, then inverted"
    version = 5
    targets = SEPARATE
    unit = "row"
    needs = Needs(min_rounds=2)
    only_by_name = True

    def recover(self, problem: AttackProblem) -> Recovered:
        """Average the newest upload of every attacked client over rounds."""
        seen = problem.observations
        newest = {target.client: observation_of(seen, target) for target in problem.targets}
        averaged = tuple(
            replace(one, upload=averaged_upload(seen, one, self.family, self.zeros == "missing"))
            for one in newest.values()
        )
        # Without a defense the newest rows are exact; of noise that is left, fits under total variation take some away.
        return Recovered(averaged, problem.targets, exact=True)

    def inverter(self, knowledge: Knowledge, **options: Any) -> Attack:
        """Return the inversion, which believes of the averaged vectors what ``match`` says."""
        return super().inverter(knowledge, **options, match=self.match)


def averaged_upload(
    observations: Sequence[Observation], newest: Observation, family: Family = "auto", missing: bool = False
) -> Message:
    """Return the newest upload with its rows averaged over its and earlier rounds; counts and labels stay.

    With ``missing``, coordinates that are zero in all rows of a round were not sent.
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
    held = uploaded_rows(newest, AveragedInversion.name)
    own = [seen for seen in rounds_of(observations, newest.client) if seen.round <= newest.round]
    versions = [found for seen in own if (found := same_rows(seen.upload, held)) is not None]
    stacked = torch.stack(versions)
    return average(stacked, (stacked != 0).any(1) if missing else None, family)


def uploaded_rows(seen: Observation, attack: str) -> Rows:
    """Return the representations or prototypes that an upload holds, or refuse in the name of an attack."""
    found = find_payload(seen.upload, Representations) or find_payload(seen.upload, Prototypes)
    if found is not None:
        return found
    raise UserError(f"attack {attack!r}: {upload_holds(seen)}; expected representation or prototype")


def same_rows(upload: Message, newest: Rows) -> Tensor | None:
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
class Averaged:
    """Rows ``(n, d)`` float32 as of the last round.

    Attributes:
        rows: see above.
        prediction_error: relative squared error with which the held-out uploads were predicted, disturbance included; of
            several groups of coordinates, of the largest.
    """

    rows: Tensor
    prediction_error: float


def average(uploads: Tensor, sent: Tensor | None = None, family: Family = "auto") -> Averaged:
    """Average T uploads ``(T, n, d)`` of the same n rows, in the order of rounds.

    ``sent`` ``(T, d)`` says which coordinates were sent at all in a round. Those that were sent in the same rounds are
    averaged together, over those rounds; those never sent are zero.
    """
    _, n_rows, width = uploads.shape
    present = torch.ones(len(uploads), width, dtype=torch.bool) if sent is None else sent.cpu()
    rows = uploads.new_zeros(n_rows, width, device="cpu")
    largest, error_there = 0, math.inf
    patterns, member = present.T.unique(dim=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        if not bool(pattern.any()):
            continue
        columns = (member == number).nonzero().flatten()
        values = uploads.cpu().double()[pattern][:, :, columns].flatten(1)
        chosen, error = _choose(values, family)
        rows[:, columns] = estimate(values, chosen).view(n_rows, -1).to(rows.dtype)
        if len(columns) > largest:
            largest, error_there = len(columns), error
    return Averaged(rows, error_there)


@dataclass(frozen=True)
class Estimator:
    """A window of the last ``rounds``, with a linear drift or without, or the random walk's Kalman filter of all."""

    rounds: int
    drift: bool = False
    random_walk: bool = False


def candidates(n_rounds: int, family: Family) -> list[Estimator]:
    """Return the estimators worth trying on T rounds: windows, with drift from four rounds on, the walk from three on."""
    sizes = sorted({size for size in _WINDOWS if size < n_rounds} | {n_rounds})
    windows = [Estimator(size) for size in sizes]
    windows += [Estimator(size, drift=True) for size in sizes if size >= _DRIFTING]
    walk = [Estimator(0, random_walk=True)] if n_rounds > 2 else []
    if family == "window":
        return windows
    return (walk or windows) if family == "random_walk" else windows + walk


def _choose(values: Tensor, family: Family) -> tuple[Estimator, float]:
    """Return the first of the estimators that predict the last values best, and its prediction error."""
    options = candidates(len(values), family)
    errors = [prediction_error(values, option) for option in options]
    best = min(range(len(options)), key=errors.__getitem__)
    chosen, error = options[best], errors[best]
    if math.isinf(error):  # too few rounds to hold one out: all of them
        chosen = max(options, key=lambda option: (not option.drift) * option.rounds)
    return chosen, error


def prediction_error(values: Tensor, estimator: Estimator) -> float:
    """Return the relative squared error of predicting the last values from those before; infinite for too few."""
    n_rounds = len(values)
    held_out = [t for t in range(max(1, n_rounds - HELD_OUT), n_rounds) if t >= max(estimator.rounds // 2, 1)]
    if not held_out or (estimator.random_walk and min(held_out) < 2):
        return math.inf
    total, scale = 0.0, 0.0
    for t in held_out:
        total += float((estimate(values[:t], estimator) - values[t]).square().sum())
        scale += float(values[t].square().sum())
    return total / max(scale, 1e-30)


def estimate(values: Tensor, estimator: Estimator) -> Tensor:
    """Return the values ``(n,)`` as of the last of T rounds ``(T, n)``, by one estimator."""
    if estimator.random_walk:
        return random_walk(values)
    return window(values[-estimator.rounds :], drift=estimator.drift)


def window(values: Tensor, *, drift: bool = False) -> Tensor:
    """Return the mean ``(n,)`` of T rounds' values ``(T, n)``; with ``drift`` a line's value as of the last round."""
    design = torch.ones(len(values), 1, dtype=values.dtype)
    if drift:
        age = torch.arange(len(values), dtype=values.dtype) - (len(values) - 1)
        design = torch.cat([design, age[:, None]], 1)
    solution: Tensor = torch.linalg.pinv(design, rtol=1e-8) @ values
    return solution[0]


def random_walk(values: Tensor) -> Tensor:
    """Return the Kalman filter's state ``(n,)`` after the last of T rounds' values ``(T, n)``.

    All values share one variance. In units of the observation noise, the variance of a step and that of the start are taken
    from a grid by the likelihood of the innovations, the noise itself in closed form.
    """
    tried = [_filter(values, walk, prior) for walk in _WALKS for prior in _PRIORS]
    return max(tried, key=lambda pair: pair[0])[1]


def _filter(values: Tensor, walk: float, prior: float) -> tuple[float, Tensor]:
    n_rounds, width = values.shape
    found, variance, logs, squares = values.mean(0), prior, 0.0, 0.0
    for seen in values:
        variance += walk
        spread = variance + 1.0
        innovation = seen - found
        found = found + variance * innovation / spread
        variance -= variance * variance / spread
        logs += math.log(spread)
        squares += float(innovation.square().sum()) / spread
    noise = max(squares / (n_rounds * width), 1e-30)
    return -0.5 * width * (logs + n_rounds * math.log(noise)), found
