"""Which classes a client trained on, by the changes of its head's biases alone.

A class's bias rises where the client has more of its images than the model expects, and falls elsewhere. Scores are these
changes, of each round by their mean size, averaged over rounds; nothing has to be granted.

Source: Wainakh et al., "User-level label leakage from gradients in federated learning" (PoPETs 2022).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedpriv.attacks.gradients.update import last_layer
from fedpriv.attacks.infer.contract import InferenceProblem, Moment
from fedpriv.attacks.observation import Knowledge, Observation
from fedpriv.attacks.read.updates import Weights, read_update
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import NETWORKS
from fedpriv.wire.payloads import Classifier, find_payload

_TINY = 1e-30


def has_biases(problem: InferenceProblem) -> bool:
    """True if all clients' uploads hold a head that was broadcast too."""
    return all(_raised(seen, problem.knowledge) is not None for seen in problem.uploads.values())


def rises(problem: InferenceProblem) -> dict[int, Tensor]:
    """Return by how much each class's bias rose ``(C,)``, float64, in units of the mean size, averaged over rounds.

    Args:
        problem: one that :func:`has_biases`.
    """
    found = {}
    moments = (*problem.earlier, Moment(tuple(problem.uploads.values()), problem.knowledge))
    seen = [(one, moment.knowledge) for moment in moments for one in moment.observations]
    for client in problem.uploads:
        own = (_raised(one, knowledge) for one, knowledge in seen if one.client == client)
        each = [rose for rose in own if rose is not None]
        found[client] = torch.stack([rose / rose.abs().mean().clamp_min(_TINY) for rose in each]).mean(0)
    return found


def _raised(seen: Observation, knowledge: Knowledge) -> Tensor | None:
    """Return the change of the head's biases, or where it has none the sums of its rows', float64; None without a head."""
    head, after = find_payload(seen.broadcast, Classifier), find_payload(seen.upload, Classifier)
    if head is not None and after is not None:
        change: Weights = {name: after.state[name] - head.state[name] for name in ("weight", "bias")}
    elif knowledge.model is not None and NETWORKS.first(seen.upload) is not None and NETWORKS.first(seen.broadcast):
        shapes = {name: parameter.shape for name, parameter in knowledge.model.named_parameters()}
        update = read_update(seen, shapes, torch.device("cpu"))
        change = {name: update.after[name] - value for name, value in update.before.items()}
    else:
        return None
    try:
        weight, bias = last_layer(change, knowledge.n_classes)
    except UserError:
        return None
    rose = (weight.sum(1) if bias is None else bias).double().cpu()
    return rose if bool(rose.isfinite().all()) else torch.zeros_like(rose)
