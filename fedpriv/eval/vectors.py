"""Recovered vectors beside guesses at them: relative error, and which of them are nearest to their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.attacks.observation import Reconstruction
from fedpriv.eval.floors import SHUFFLED
from fedpriv.eval.identification import control_of
from fedpriv.eval.intervals import Means
from fedpriv.eval.metrics import cosine, relative_error
from fedpriv.eval.records import (
    ERROR_SHARE,
    ESTIMANDS,
    IDENTIFIED,
    Comparison,
    FeatureIdentification,
    FeatureMeasure,
    VectorMeans,
)
from fedpriv.sources.truth import Truth


@dataclass(frozen=True)
class VectorScores:
    """The part of a record on recovered vectors: metrics, the same of guesses and the control, comparisons."""

    metrics: dict[str, Any] = field(default_factory=dict)
    floors: Mapping[str, VectorMeans] = field(default_factory=dict)
    comparisons: tuple[Comparison, ...] = ()


def score_vectors(
    reconstruction: Reconstruction,
    shuffled: Reconstruction | None,
    truths: Sequence[Truth],
    means: Means,
) -> VectorScores:
    """Score recovered vectors, and by the same rules guesses at them that all targets have, and the control's."""
    known = [truth.feature for truth in truths if truth.feature is not None]
    if reconstruction.features is None or len(known) != len(truths):
        return VectorScores()
    true, current = torch.stack(known), reconstruction.features
    control = None if shuffled is None else shuffled.features
    results: dict[str, Any] = {}
    for name, function in (("relative_error", relative_error), ("cosine", cosine)):
        values = means.summary(function(current, true).numpy())
        beside = None if control is None else control_of(values, function(control, true).tolist(), means)
        results[name] = FeatureMeasure(**dict(values), shuffled=beside)
    names = [name for name in truths[0].vectors if all(name in truth.vectors for truth in truths)]
    guesses = {name: torch.stack([truth.vectors[name] for truth in truths]) for name in names}
    if control is not None:
        guesses[SHUFFLED] = control
    if reconstruction.distance is not None:
        norms = current.double().norm(dim=1)
        expected = torch.where(norms > 0, reconstruction.distance.double() / norms, torch.inf)
        results["expected_error"] = means.summary(expected.numpy())
    clients, strata = (
        [target.client for target in reconstruction.targets],
        [ESTIMANDS[truth.n_c > 1] for truth in truths],
    )
    hits, formula = identify_features(current, true, clients)
    theirs = {name: identify_features(guess, true, clients)[0] for name, guess in guesses.items()}
    results["feature_identification"] = _rated(hits, theirs, formula, means)
    which = {name: identify_directions(guess, true, clients) for name, guess in guesses.items()}
    if shuffled is not None and shuffled.directions is not None:
        which[SHUFFLED] = identify_directions(shuffled.directions, true, clients, centred=True)
    led = reconstruction.directions
    straight = identify_directions(current if led is None else led, true, clients, centred=led is not None)
    results["direction_identification"] = _rated(straight, which, formula, means)
    floors = {}
    for name, guess in guesses.items():
        error = float(relative_error(guess, true).mean())
        floors[name] = VectorMeans(
            relative_error=error if np.isfinite(error) else None,
            feature_identification=float(np.mean(theirs[name])),
            direction_identification=float(np.mean(which[name])),
        )
    gains = {name: np.array(hits) - np.array(rate) for name, rate in theirs.items()}
    compared = _compared(current, guesses, true, strata, means)
    return VectorScores(results, floors, compared + means.compare(gains, "vectors_identified", IDENTIFIED, strata))


def identify_features(features: Tensor, truth: Tensor, clients: Sequence[int]) -> tuple[list[float], float]:
    """Tell whether each recovered vector is nearest to its own true vector among those of the same client, all ``(T, d)``.

    Returns 1 or 0 for each target, and the mean of 1 / (targets of the client). One that is not finite counts as zero.
    """
    owner = torch.tensor(list(clients))
    distance = torch.cdist(_settled(features).double(), truth.double())
    nearest = distance.masked_fill(owner[:, None] != owner, torch.inf).argmin(1)
    hits = (nearest == torch.arange(len(owner))).double()
    chance = (1 / (owner[:, None] == owner).sum(1).double()).mean()
    return hits.tolist(), float(chance)


def identify_directions(
    features: Tensor, truth: Tensor, clients: Sequence[int], *, centred: bool = False
) -> list[float]:
    """Tell whether each recovered vector's difference from the mean of the client's points most towards its own true one's.

    Both are ``(T, d)``; one that is not finite counts as zero, and those of a client that are all alike point nowhere and
    are taken for the client's first. ``centred``: they are directions already. Returns 1 or 0 for each target.
    """
    owner, settled = torch.tensor(list(clients)), _settled(features).double()
    hits = torch.zeros(len(owner), dtype=torch.float64)
    for client in owner.unique():
        rows = (owner == client).nonzero().squeeze(1)
        result, true = settled[rows], truth[rows].double()
        result = result if centred else result - result.mean(0)
        true = true - true.mean(0)
        # Rounding leaves of equal vectors directions of their own: what is as small as that is none.
        small = 1e-6 * settled[rows].norm(dim=1).max()
        result = torch.where(result.norm(dim=1, keepdim=True) > small, result, torch.zeros((), dtype=torch.float64))
        like = result @ (true / true.norm(dim=1, keepdim=True).clamp_min(1e-300)).T
        hits[rows] = (like.argmax(1) == torch.arange(len(rows))).double()
    return hits.tolist()


def _rated(
    hits: list[float], guessed: Mapping[str, list[float]], formula: float, means: Means
) -> FeatureIdentification:
    details, rates = means.finite(hits, "share"), {name: float(np.mean(item)) for name, item in guessed.items()}
    of = max(rates, key=lambda name: rates[name], default="vectors")
    beside = control_of(details, guessed[SHUFFLED], means, "difference") if SHUFFLED in guessed else None
    return FeatureIdentification(
        **dict(details), chance=rates.get(of, formula), chance_of=of, shuffled=beside, blind=rates
    )


def _compared(
    values: Tensor, guesses: Mapping[str, Tensor], true: Tensor, strata: Sequence[str], means: Means
) -> tuple[Comparison, ...]:
    rows = (true.norm(dim=1) > 0).nonzero().squeeze(1).tolist()
    reached = relative_error(_settled(values), true).numpy()[rows]
    errors = {name: relative_error(_settled(guess), true).numpy()[rows] for name, guess in guesses.items()}
    return means.keep(rows).compare(
        {name: error - reached for name, error in errors.items()},
        "vectors",
        {name: ERROR_SHARE * error for name, error in errors.items()},
        [strata[row] for row in rows],
    )


def _settled(features: Tensor) -> Tensor:
    return torch.where(features.isfinite().all(1, keepdim=True), features, torch.zeros(()))
