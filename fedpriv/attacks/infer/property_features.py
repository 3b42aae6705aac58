"""An upload's words on each class, as a few numbers that mean the same for every client.

Clients' representation spaces differ, so coordinates of one are worth nothing for another. What carries over are lengths,
angles to the classifier that everybody was sent, and how a class stands among the client's own classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fedpriv.attacks.inputs.outputs import read_outputs
from fedpriv.attacks.inputs.targets import held_classes, upload_holds
from fedpriv.attacks.observation import Observation
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import Classifier, ClassLogits, Entangled, Prototypes, find_payload

_TINY = 1e-12


@dataclass(frozen=True)
class Learned:
    """A logistic regression on standardised numbers; one answer only where all examples had the same."""

    centre: Tensor
    scale: Tensor
    weight: Tensor
    bias: float

    def __call__(self, numbers: Tensor) -> Tensor:
        """Return the log-odds ``(k,)`` of numbers ``(k, f)``."""
        return ((numbers - self.centre) / self.scale) @ self.weight + self.bias


def describe(observation: Observation, n_classes: int, *, hidden: bool = False) -> tuple[Tensor, Tensor]:
    """Return the classes ``(k,)`` that may be asked about, and numbers ``(k, f)`` on each, float64.

    The classes are those that the upload names, ascending, or all where it names none. f depends on the kind of upload and
    on whether a classifier was broadcast, not on the client. With ``hidden`` the label encoding of a mixture says nothing.
    """
    hidden = hidden and find_payload(observation.upload, Entangled) is not None
    named = None if hidden else held_classes(observation.upload)
    classes = torch.arange(n_classes) if named is None else torch.tensor(named, dtype=torch.int64)
    found = _numbers(observation, classes, hidden=hidden)
    if found is None:
        raise UserError(
            f"{upload_holds(observation)}; attack 'property' learns from prototypes, entangled vectors, class outputs and "
            "classifiers"
        )
    own = torch.stack(found, 1).double()
    beside = (own - own.mean(0)) / own.std(0, unbiased=False).clamp_min(1e-9)
    crowd = torch.full((len(classes), 1), 1 / max(1, len(classes)), dtype=torch.float64)
    return classes, torch.cat([own, beside.where(own.std(0, unbiased=False) > 1e-9, 0.0), crowd], 1)


def _numbers(observation: Observation, classes: Tensor, *, hidden: bool) -> list[Tensor] | None:
    head = find_payload(observation.broadcast, Classifier)
    upload = observation.upload
    if (means := find_payload(upload, Prototypes)) is not None:
        return _of_prototypes(means.features.cpu()[means.classes.cpu().argsort()], classes, head)
    if (outputs := find_payload(upload, ClassLogits)) is not None:
        return _of_outputs(outputs.values.cpu()[outputs.classes.cpu().argsort()], classes)
    if (mixed := find_payload(upload, Entangled)) is not None:
        weights = [] if hidden else [mixed.label_encoding.cpu()[classes]]
        return [*weights, *_by_head(mixed.feature.cpu().expand(len(classes), -1), classes, head)]
    sent = find_payload(upload, Classifier)
    return None if sent is None or head is None else _of_update(sent, head)


def _of_prototypes(rows: Tensor, classes: Tensor, head: Classifier | None) -> list[Tensor]:
    lengths = rows.norm(dim=1)
    centre = rows.mean(0)
    apart = torch.cdist(rows, rows)
    nearest = (apart + torch.diag(torch.full((len(rows),), torch.inf))).amin(1)
    nearest = nearest.where(nearest.isfinite(), lengths) / lengths.mean().clamp_min(_TINY)
    from_centre = (rows - centre).norm(dim=1) / lengths.mean().clamp_min(_TINY)
    return [lengths.clamp_min(_TINY).log(), nearest, from_centre, *_by_head(rows, classes, head)]


def _by_head(rows: Tensor, classes: Tensor, head: Classifier | None) -> list[Tensor]:
    """Return the broadcast classifier's view of vectors ``(k, d)`` as images of their classes."""
    if head is None:
        return []
    weight, bias = head.state["weight"].cpu(), head.state["bias"].cpu()
    logits = rows @ weight.T + bias
    own = logits.gather(1, classes[:, None])[:, 0]
    certain = logits.log_softmax(1).gather(1, classes[:, None])[:, 0]
    return [own - logits.mean(1), certain, cosine_similarity(rows, weight[classes])]


def _of_outputs(values: Tensor, classes: Tensor) -> list[Tensor]:
    outputs, softmax = read_outputs(values)
    shares = outputs if softmax else outputs.softmax(1)
    own = shares.gather(1, classes[:, None])[:, 0]
    entropy = -(shares * shares.clamp_min(_TINY).log()).sum(1)
    column = shares[:, classes]
    # How much of the class leaks into the client's other classes: a common class draws mistakes.
    drawn = (column.sum(0) - own) / max(1, len(classes) - 1)
    return [own, (1 - own).clamp_min(1e-6).log(), entropy, drawn, drawn.clamp_min(1e-6).log()]


def _of_update(sent: Classifier, head: Classifier) -> list[Tensor]:
    weight = (sent.state["weight"] - head.state["weight"]).cpu()
    bias = (sent.state["bias"] - head.state["bias"]).cpu()
    return [bias, weight.norm(dim=1), weight.mean(1), (weight * head.state["weight"].cpu()).sum(1)]
