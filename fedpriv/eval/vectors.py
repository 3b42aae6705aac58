"""Recovered vectors beside guesses at them: relative error, and which of them are nearest to their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedpriv.attacks.observation import Reconstruction
from fedpriv.eval.floors import SHUFFLED
from fedpriv.eval.identification import rated
from fedpriv.eval.intervals import Means, Values
from fedpriv.eval.metrics import cosine, relative_error
from fedpriv.eval.records import ERROR_SHARE, ESTIMANDS, IDENTIFIED, Comparison, Summary
from fedpriv.sources.truth import Truth


def score_vectors(
    reconstruction: Reconstruction,
    shuffled: Reconstruction | None,
    truths: Sequence[Truth],
    means: Means,
) -> tuple[dict[str, Summary], tuple[Comparison, ...]]:
    """Return metrics of recovered vectors and comparisons with guesses that all targets have, and with the control's.

    There is nothing where no vectors were recovered or the true ones are not known.
    """
    known = [truth.feature for truth in truths if truth.feature is not None]
    if reconstruction.features is None or len(known) != len(truths):
        return {}, ()
    true, current = torch.stack(known), reconstruction.features
    names = [name for name in truths[0].vectors if all(name in truth.vectors for truth in truths)]
    guesses = {name: torch.stack([truth.vectors[name] for truth in truths]) for name in names}
    if shuffled is not None and shuffled.features is not None:
        guesses[SHUFFLED] = shuffled.features
    results: dict[str, Summary] = {}
    for name, function in (("relative_error", relative_error), ("cosine", cosine)):
        values = means.summary(function(current, true).numpy())
        theirs = {guess: float(function(value, true).mean()) for guess, value in guesses.items()}
        beside = {guess: value if np.isfinite(value) else None for guess, value in theirs.items()}
        results[name] = values.model_copy(update={"guesses": beside})
    clients = [target.client for target in reconstruction.targets]
    strata = [ESTIMANDS[truth.n_c > 1] for truth in truths]
    alone = (
        {}
        if guesses
        else {"chance": float(np.mean([1 / clients.count(one) for one in clients])), "chance_of": "vectors"}
    )
    hits = identify_features(current, true, clients)
    nearest = {name: identify_features(guess, true, clients) for name, guess in guesses.items()}
    results["feature_identification"] = rated(hits, nearest, means, **alone)
    gains = {name: hits - rate for name, rate in nearest.items()}
    compared = _compared(current, guesses, true, strata, means)
    return results, compared + means.compare(gains, "vectors_identified", IDENTIFIED, strata)


def identify_features(features: Tensor, truth: Tensor, clients: Sequence[int]) -> Values:
    """Tell whether each recovered vector is nearest to its own true vector among those of the same client, all ``(T, d)``.

    Returns 1 or 0 for each target. One that is not finite counts as zero.
    """
    owner = torch.tensor(list(clients))
    distance = torch.cdist(_settled(features).double(), truth.double())
    nearest = distance.masked_fill(owner[:, None] != owner, torch.inf).argmin(1)
    return (nearest == torch.arange(len(owner))).double().numpy()


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
