"""A client's class shares, by how its outputs on public samples differ from the other clients' on the same samples.

A classifier that was trained on shares pi of the classes answers p(c | x) in proportion to pi(c) p(x | c). So, of two
clients k and j that differ in nothing else,

    log p_k(c | x) - log p_j(c | x) = log pi_k(c) - log pi_j(c) + something that is the same for all c,

whatever x is. The left side is averaged over the public samples and over the other clients; less its mean over classes it
ranks classes by how much more of them the client has than others have, and its softmax estimates the client's shares,
where the others' are even on the whole. Neither the images nor their classes are needed, no client is made up and nobody is
in league with the server.

That such outputs tell label distributions is the finding of Shi, Ouyang and Wang, "Unveiling client privacy leakage from
public dataset usage in federated distillation" (arXiv 2502.08001, 2025); the estimate above is ours.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedpriv.attacks.inputs.outputs import log_outputs, of_others, public_outputs
from fedpriv.attacks.observation import Observation


def bias(uploads: Mapping[int, Observation]) -> dict[int, Tensor]:
    """Return for each client and class by how much its mean log output is above the others' ``(C,)``, float64.

    The mean over classes is zero.

    Args:
        uploads: of two clients or more, on the same public samples.
    """
    means = {client: log_outputs(public_outputs(seen)).mean(0) for client, seen in uploads.items()}
    found = {}
    for client, own in means.items():
        above = own - of_others(means, client)
        found[client] = above - above.mean()
    return found


def compare(uploads: Mapping[int, Observation]) -> dict[int, tuple[Tensor, Tensor]]:
    """Return for each client all classes ``(C,)`` and their scores ``(C,)``; see :func:`bias`."""
    return {client: (torch.arange(len(scores)), scores) for client, scores in bias(uploads).items()}
