"""Membership from outputs on public samples: is a client surer of this image than the others' outputs let one expect?

A member's own output is never sent: the server has outputs on public samples alone. What it can do is to extract each
client's network from them and put candidates in: here by ridge regression with a Gaussian kernel over pixels, in closed
form, from the public samples to the client's outputs. With u_k(p) the logarithms of client k's softmax outputs on public
sample p, less their mean over classes and then less their mean over samples, and l_k the regression of u_k, a candidate x of
class y has the signal l_k(x)_y. It is held against that of the other clients, in their spread
(:func:`fedpriv.attacks.infer.membership_null.beyond_the_spread`), which takes out how hard the candidate is, as reference
models do (Watson et al. 2022, "On the importance of difficulty calibration in membership inference attacks"). The mean over
classes goes first, because what makes a client surer of everything is no sign of one member.

An upload can tell members this way only as far as they move outputs on public samples near to them: of networks that know
their images by heart. Small networks distilled from each client's outputs, features of random convolutions and kernels of
wide networks in the place of the Gaussian one found no more.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpriv.attacks.inputs.outputs import extrapolate, log_outputs, public_outputs, public_samples
from fedpriv.attacks.observation import Knowledge, Observation

WIDTH = 2.0
"""Of the kernel over pixels, in summed variances of the public samples."""


def public_signals(seen: Sequence[Observation], images: Tensor, labels: Tensor, knowledge: Knowledge) -> Tensor:
    """Return the extracted log output of each upload at each candidate, of its class: ``(k, n)`` float64 on the CPU.

    Args:
        seen: k observations of a round; networks are extracted with the public samples of the first.
        images: candidates ``(n, c, h, w)``.
        labels: their classes ``(n,)``.
        knowledge: with the public samples.

    Raises:
        UserError: when an upload holds no outputs, or the attacker does not hold the public samples.
    """
    sent = [public_outputs(one) for one in seen]
    known = public_samples("membership", sent[0], knowledge)
    logs = torch.stack([log_outputs(one) for one in sent], 1)
    logs = logs - logs.mean(2, keepdim=True)
    logs = logs - logs.mean(0)
    # The regression is linear in its values: all clients' networks are extracted at once.
    extracted = extrapolate(known, logs.flatten(1), images, WIDTH).unflatten(1, logs.shape[1:])
    own = labels.cpu()[:, None, None].expand(-1, len(sent), 1)
    found: Tensor = extracted.gather(2, own)[:, :, 0].T
    return found
