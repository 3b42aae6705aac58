"""Uploads that are means of representations or outputs, or mixtures of such means, beside what is expected of them.

Behind a defense that the protocol names, class means that are expected are put through it. The upload's distance from
that, over the share of its length that is left, is the deviation; its variance, if it draws, is kept as noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.attacks.infer.class_scatter import TINY, Scatter, scatter
from fedpriv.attacks.observation import Knowledge, Observation, Rehearsal
from fedpriv.attacks.read.extractors import represent
from fedpriv.wire.kinds import CLASS_MEANS, CLASS_OUTPUTS, MIXTURES

AVERAGES = CLASS_MEANS | MIXTURES
"""Representations that every member is a part of."""

MEANS = AVERAGES | CLASS_OUTPUTS
"""These, and means of outputs."""

REHEARSALS = 16
"""Times that what is expected is put through a client's defense, to see what that adds."""

_LEAST_SCALE = 1e-2
"""Share of what is expected that a defense leaves, below which a deviation is not scaled up any more."""


@dataclass(frozen=True)
class Sent:
    """One round's upload.

    Attributes:
        rows: one mean a class ``(k, d)``, or of a mixture the same row for each of its classes; float64.
        classes: of the rows ``(k,)`` int64.
        weights: of a mixture, of every class ``(C,)`` float64; None of means.
    """

    rows: Tensor
    classes: Tensor
    weights: Tensor | None = None

    def deviation(self, there: Scatter, place: int) -> Tensor:
        """Return a row less what is expected of it ``(d,)``."""
        if self.weights is None:
            return self.rows[place] - there.mean(int(self.classes[place]))
        parts = [self.weights[label] * there.mean(label) for label in self.weights.nonzero().squeeze(1).tolist()]
        return self.rows[place] - torch.stack(parts).sum(0)

    def part(self, label: int) -> Tensor | float:
        """Return the part that the mean of a class has in what is expected."""
        return 1.0 if self.weights is None else self.weights[label]


@dataclass(frozen=True)
class Round:
    """One round as the attacker sees it.

    Attributes:
        sent: what was uploaded.
        features: of candidates under the client's extractor of that round, or its whole model, ``(n, d)`` float64.
        own: of the attacker's own images ``(m, d)`` float64.
        noise: variance of an entry that a defense added to the upload, by the protocol.
    """

    sent: Sent
    features: Tensor
    own: Tensor
    noise: float = 0.0


def as_round(seen: Observation, knowledge: Knowledge, images: Tensor, own: Tensor, labels: Tensor) -> Round:
    """Return a round of a client whose upload holds class means, or a mixture with its weights.

    What a defense is known to do to expected class means is taken off the upload, and its variance kept.

    Args:
        seen: the upload.
        knowledge: with the client's extractor of that round, and for outputs its head.
        images: candidates ``(n, c, h, w)``.
        own: the attacker's own images ``(m, c, h, w)``.
        labels: their classes ``(m,)``.
    """
    sent = MEANS.first(seen.upload)
    assert sent is not None
    rows, classes, weights = sent.rows().double().cpu(), sent.said("classes"), sent.said("weights")
    if weights is not None:
        weights = weights.double().flatten().cpu()
        classes = weights.nonzero().squeeze(1)
        rows = rows.expand(len(classes), -1)
    assert classes is not None
    features = represent(knowledge, seen.client, torch.cat([images.to(own.device), own])).double()
    first = Sent(rows, classes.cpu(), weights)
    if sent.kind in CLASS_OUTPUTS:
        features = _outputs(features, *knowledge.heads[seen.client], first, labels.cpu())
    found = Round(first, features[: len(images)], features[len(images) :])
    defend = knowledge.defended.get((seen.round, seen.client))
    return (
        found if defend is None or weights is not None else _undefended(found, scatter(found.own, labels.cpu()), defend)
    )


def _outputs(features: Tensor, weight: Tensor, bias: Tensor, sent: Sent, labels: Tensor) -> Tensor:
    """Return logits or probabilities ``(n, C)`` of representations ``(n, d)``: those that lie nearer to what was sent.

    The last images are the attacker's own, of the classes ``labels``.
    """
    logits = features @ weight.double().cpu().T + bias.double().cpu()
    kinds = (logits.softmax(1), logits)

    def off(outputs: Tensor) -> float:
        there = scatter(outputs[-len(labels) :], labels)
        return sum(float(sent.deviation(there, place).square().sum()) for place in range(len(sent.rows)))

    return min(kinds, key=off)


def _undefended(one: Round, there: Scatter, defend: Rehearsal) -> Round:
    rows = [row - one.sent.deviation(there, place) for place, row in enumerate(one.sent.rows)]
    expected = torch.stack(rows)
    with torch.no_grad():
        tried = torch.stack([defend(expected.float(), again).double().cpu() for again in range(REHEARSALS)])
    middle = tried.mean(0)
    scale = ((middle * expected).sum(1) / expected.square().sum(1).clamp_min(TINY)).clamp_min(_LEAST_SCALE)[:, None]
    undone = expected + (one.sent.rows - middle) / scale
    return replace(one, sent=replace(one.sent, rows=undone), noise=float((tried.var(0) / scale.square()).mean()))
