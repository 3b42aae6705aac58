"""Thresholds that are set without the truth, and what comes of them.

A rate at 1 % false positives is read off a curve that only those who know the members can draw. An attacker sets its
threshold by scores of what it knows to be no members: with m such scores, a candidate is accused at the nominal rate a where
(1 + how many of them reach its score) / (1 + m) is at most a. Were the candidates that are no members drawn as the known
ones are, at most a share a of them would be accused, whatever the distribution; how many really are says how far they are
alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpriv.scoring.intervals import Values, clustered
from fedpriv.scoring.records import Rate
from fedpriv.scoring.records.inference import Accusations
from fedpriv.scoring.roc import Ranked

NOMINAL = (0.01, 0.05)
"""Shares of non-members that an attacker means to accuse."""


def accusations(ranked: Ranked, known: Sequence[Values]) -> tuple[Accusations, ...]:
    """Return the outcome of each nominal rate that so many known scores can hold.

    Args:
        ranked: candidates with the answers.
        known: of each client, scores ``(m,)`` of what is no member, finite, on the candidates' scale.
    """
    null = np.sort(np.concatenate(list(known)))[::-1] if known else np.empty(0)
    found = []
    for nominal in NOMINAL:
        # The rule of the module: so many known scores may reach a candidate's at most.
        allowed = int(np.floor(nominal * (1 + len(null)) + 1e-9)) - 1
        if allowed < 0:
            continue
        threshold = float(null[allowed])
        accused = (ranked.scores > threshold).astype(np.float64)
        false, true = (_share(accused[chosen], ranked.unit[chosen].tolist()) for chosen in (~ranked.yes, ranked.yes))
        found.append(Accusations(nominal=nominal, false=false, found=true, threshold=threshold))
    return tuple(found)


def _share(accused: Values, units: Sequence[int]) -> Rate:
    of_all = clustered(accused, units, "share")
    return Rate(value=of_all.mean, ci95=of_all.interval())
