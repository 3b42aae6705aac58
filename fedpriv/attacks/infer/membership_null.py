"""The other clients as the null of membership: is this upload nearer to the candidate than uploads that never saw it?

How far a candidate lies from an upload says as much about the candidate as about membership: easy images are near to every
client's. Data of clients are disjoint in the main, so the other clients' uploads, each under its own extractor, show how
near an upload comes that was not computed from the candidate (the principle of FedMIA: Zhu et al., CVPR 2025). Here, with
d_k(x) the distance of candidate x from client k's upload,

    score(x) = 1/2 mean over the other clients j of log d_j(x)  -  log d_k(x).

In logarithms, because a distance of zero, which only a member reaches, must outweigh everything: differences of the
distances themselves, or over their spread as in the paper, bury it (of raw representations they found 7 to 10 % of the
members at 1 % false positives, where the distance alone finds all). By half, because a handful of others, whose extractors
are not the client's, know a candidate's difficulty but roughly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LEAST = 1e-9
"""A distance that counts as none."""

SHARE = 0.5
"""Of the others' mean that is taken off; 0 is the distance alone. Chosen on five federations, confirmed on four others."""


def beside_others(own: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Return scores ``(n,)``, float64; minus infinity where the client's own upload rules the candidate out.

    A client whose upload does not speak of a candidate's class says nothing of it; where no other client's does, the mean
    over all candidates stands in.

    Args:
        own: distances ``(n,)`` from the client's upload, at least 0; infinite where membership is ruled out.
        others: the same from the upload of each other client, one or more.
    """
    logs = torch.stack([_log(one) for one in others])
    told = logs.isfinite()
    known = torch.where(told, logs, torch.zeros((), dtype=torch.float64))
    number = told.sum(0)
    overall = known.sum() / told.sum().clamp_min(1)
    null = torch.where(number > 0, known.sum(0) / number.clamp_min(1), overall)
    return SHARE * null - _log(own)


def _log(distances: Tensor) -> Tensor:
    return distances.double().clamp_min(LEAST).log()
