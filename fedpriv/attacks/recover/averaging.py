"""Recover rows that are uploaded again and again from versions that were disturbed anew in every round.

A client uploads the representation of the same image, or the prototype of the same class, in each of T rounds: p(t) + e_t
with independent disturbances e_t of zero mean (noise, stochastic rounding). A mean over T rounds divides their variance by
T, but the extractor moves from round to round, so that old versions are of another p.

That is :mod:`fedpriv.attacks.recover.unmixing` with one prototype of weight one, so its estimators are used as they
    are: means over
the last rounds, with a linear drift or without, and a mean that forgets (the Kalman filter of a random walk). Which one,
and over how many rounds, is chosen by how well it predicts each of the last uploads from those before, for all rows of a
client together: they share the extractor and so its drift.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.recover.unmixing import Estimator, Family, estimate, prediction_error

_WINDOWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_DRIFTING = 4
"""Rounds from which a linear drift is worth fitting."""


@dataclass(frozen=True)
class Averaged:
    """Rows as of the last round.

    Attributes:
        rows: ``(n, d)`` float32.
        estimator: what produced them; of several groups of coordinates the one of the largest group.
        prediction_error: relative squared error with which it predicted the held-out uploads, disturbance included.
    """

    rows: Tensor
    estimator: Estimator
    prediction_error: float


def average(uploads: Tensor, sent: Tensor | None = None, family: Family = "auto") -> Averaged:
    """Average T uploads of the same n rows.

    Args:
        uploads: ``(T, n, d)`` in the order of rounds, T >= 1.
        sent: ``(T, d)`` bool, which coordinates were sent at all in a round; None for all. Coordinates that were sent in
            the same rounds are averaged together, over those rounds; those never sent are zero.
        family: which estimators to consider.
    """
    _, n_rows, width = uploads.shape
    present = torch.ones(len(uploads), width, dtype=torch.bool) if sent is None else sent.cpu()
    rows = uploads.new_zeros(n_rows, width, device="cpu")
    largest: tuple[int, Estimator, float] | None = None
    patterns, member = present.T.unique(dim=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        if not bool(pattern.any()):
            continue
        columns = (member == number).nonzero().flatten()
        values = uploads.cpu().double()[pattern][:, :, columns].flatten(1)
        chosen, error = _choose(values, family)
        rows[:, columns] = estimate(values, _ones(len(values)), chosen).view(n_rows, -1).to(rows.dtype)
        if largest is None or len(columns) > largest[0]:
            largest = len(columns), chosen, error
    if largest is None:
        return Averaged(rows, Estimator(1), math.inf)
    return Averaged(rows, largest[1], largest[2])


def candidates(n_rounds: int, family: Family) -> list[Estimator]:
    """Return the estimators worth trying on T rounds: windows, with drift from four rounds on, and the random walk."""
    sizes = sorted({size for size in _WINDOWS if size < n_rounds} | {n_rounds})
    windows = [Estimator(size) for size in sizes]
    windows += [Estimator(size, drift=True) for size in sizes if size >= _DRIFTING]
    walk = [Estimator(0, random_walk=True)] if n_rounds > 2 else []
    if family == "window":
        return windows
    return (walk or windows) if family == "random_walk" else windows + walk


def _choose(values: Tensor, family: Family) -> tuple[Estimator, float]:
    options = candidates(len(values), family)
    errors = [prediction_error(values, _ones(len(values)), option) for option in options]
    best = min(range(len(options)), key=errors.__getitem__)
    if math.isinf(errors[best]):  # too few rounds to hold one out: all of them
        best = max(range(len(options)), key=lambda place: (not options[place].drift) * options[place].rounds)
    return options[best], errors[best]


def _ones(n_rounds: int) -> Tensor:
    return torch.ones(n_rounds, 1, dtype=torch.float64)
