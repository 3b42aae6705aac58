"""Membership from outputs on public samples: is a client surer of this image than the others' outputs let one expect?

A member's own output is never sent: the server has outputs on public samples alone. What it can do is to extract each
client's network from them and put candidates in: here by ridge regression with a Gaussian kernel over pixels, in closed
form, from the public samples to the client's log outputs. With l_k the extracted network of client k, a candidate x of class
y has the score

    l_k(x)_y - mean over the other clients j of l_j(x)_y.

The difference takes out how hard the candidate is, as a reference model does (Watson et al. 2022, "On the importance of
difficulty calibration in membership inference attacks"); the other clients' networks are that reference, since nothing else
was seen. An upload can tell members this way only as far as they move outputs on public samples near to them; on real images
expect chance, beyond what it tells of classes, which balanced candidates make worth nothing.

Shi, Ouyang and Wang (arXiv 2502.08001, 2025) train shadow networks on the public samples for a likelihood ratio; these would
take the place of the regression.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedpriv.attacks.observation import Knowledge, Observation
from fedpriv.attacks.read.public_outputs import extrapolate, log_outputs, public_outputs, public_samples
from fedpriv.util.errors import UserError


def public_signals(
    uploads: Mapping[int, Observation], client: int, images: Tensor, labels: Tensor, knowledge: Knowledge
) -> dict[int, Tensor]:
    """Return every client's extracted log output for each of a client's candidates, of its class: ``(n,)`` float64.

    Args:
        uploads: of a round, by client.
        client: whose public samples the networks are extracted with.
        images: candidates ``(n, c, h, w)``.
        labels: their classes ``(n,)``.
        knowledge: with the public samples.

    Raises:
        UserError: when there is no other client to compare with, or the attacker does not hold the public samples.
    """
    if len(uploads) < 2:
        raise UserError("attack 'membership' on public outputs compares clients; expected at least 2 in the round")
    sent = {k: public_outputs(seen) for k, seen in uploads.items()}
    logs = torch.stack([log_outputs(one) for one in sent.values()], 1)
    known = public_samples("membership", sent[client], knowledge)
    # The regression is linear in its values: all clients' networks are extracted at once.
    extracted = extrapolate(known, logs.flatten(1), images).unflatten(1, logs.shape[1:])
    told = extracted.gather(2, labels.cpu()[:, None, None].expand(-1, logs.shape[1], 1))[:, :, 0]
    return dict(zip(sent, told.unbind(1), strict=True))
