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
    which = {name: identify_directions(guess, true, clients) for name, guess in guesses.items()}
    if shuffled is not None and shuffled.directions is not None:
        which[SHUFFLED] = identify_directions(shuffled.directions, true, clients, centred=True)
    led = reconstruction.directions
    straight = identify_directions(current if led is None else led, true, clients, centred=led is not None)
    results["direction_identification"] = rated(straight, which, means, **({} if which else alone))
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


def identify_directions(features: Tensor, truth: Tensor, clients: Sequence[int], *, centred: bool = False) -> Values:
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
    return hits.numpy()


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
