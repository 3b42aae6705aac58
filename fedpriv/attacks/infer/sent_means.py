"""Uploads that are means of representations or outputs, or mixtures of such means, beside what is expected of them.

Behind a defense that the protocol names, class means that are expected are put through it. The upload's distance from
that, over the share of its length that is left, is the deviation; its variance, if it draws, is kept as noise. How much a
bound on lengths left of an upload depends on the upload's own length, which nobody knows: there it is the share at which the
upload resembles the expectation most, in directions weighed by the scatter. Entries that a defense leaves out are no zeros:
what is compared are those that were sent (:meth:`Round.parts`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.attacks.infer.class_scatter import TINY, Scatter, scatter
from fedpriv.attacks.inputs.extractors import represent
from fedpriv.attacks.observation import Knowledge, Observation, Rehearsal
from fedpriv.wire.kinds import CLASS_MEANS, CLASS_OUTPUTS, MIXTURES

AVERAGES = CLASS_MEANS | MIXTURES
"""Representations that every member is a part of."""

MEANS = AVERAGES | CLASS_OUTPUTS
"""These, and means of outputs."""

REHEARSALS = 16
"""Times that what is expected is put through a client's defense, to see what that adds."""

_LEAST_SCALE = 1e-2
"""Share of what is expected that a defense leaves, below which a deviation is not scaled up any more."""


_WHOLE = 0.9
"""Share of entries that are not zero below which a defense leaves entries out, and does not just round some to zero."""

_BENT = 0.9
"""Less of twice as much than this, of what is left of it once, is a defense that goes by lengths: a bound."""


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
        entries: ``(k, d)`` bool, which entries of rows were sent at all; None for all of them.
    """

    sent: Sent
    features: Tensor
    own: Tensor
    noise: float = 0.0
    entries: Tensor | None = None

    def parts(self) -> list[Round]:
        """Return rounds of which each is by the entries that were sent alone; itself where that is all of them."""
        if self.entries is None:
            return [self]
        found, sent = [], self.sent
        rows = range(len(sent.rows)) if sent.weights is None else range(1)
        for place in rows:
            kept = self.entries[place].double()
            own = slice(place, place + 1) if sent.weights is None else slice(None)
            part = Sent(sent.rows[own] * kept, sent.classes[own], sent.weights)
            found.append(replace(self, sent=part, features=self.features * kept, own=self.own * kept, entries=None))
        return found


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
    return found if defend is None else _undefended(found, labels.cpu(), defend)


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


def _undefended(one: Round, labels: Tensor, defend: Rehearsal) -> Round:
    there = scatter(one.own, labels)
    sent = one.sent.rows if one.sent.weights is None else one.sent.rows[:1]  # of a mixture all rows are the same
    expected = torch.stack([row - one.sent.deviation(there, place) for place, row in enumerate(sent)])

    def tried(rows: Tensor, times: int) -> Tensor:
        with torch.no_grad():
            return torch.stack([defend(rows.float(), again).double().cpu() for again in range(times)])

    many = tried(expected, REHEARSALS)
    middle, filled = many.mean(0), (many != 0).any(0)
    scale = _scale(middle, torch.where(filled, expected, 0.0))
    gaps = int((filled & (expected != 0)).sum()) < _WHOLE * int((expected != 0).sum())
    entries = sent != 0 if gaps else torch.ones_like(sent, dtype=torch.bool)
    if bool((_scale(tried(2 * expected, 1)[0], 2 * torch.where(filled, expected, 0.0)) < _BENT * scale).any()):
        there = scatter(one.own, labels, float((many.var(0) / scale.square()).mean()))
        known = torch.where(entries, expected, 0.0)
        pairs = list(zip(sent, known, strict=True))
        scale = torch.stack([there.inner(row, mean) / there.inner(mean, mean).clamp_min(TINY) for row, mean in pairs])
        scale = scale.clamp_min(_LEAST_SCALE)[:, None]
        undone = torch.where(entries, sent / scale, expected)
    else:
        undone = expected + (sent - torch.where(filled, middle, scale * expected)) / scale
    noise = float((many.var(0) / scale.square()).mean())
    rows = replace(one.sent, rows=undone.expand_as(one.sent.rows))
    return replace(one, sent=rows, noise=noise, entries=entries.expand_as(one.sent.rows) if gaps else None)


def _scale(rows: Tensor, of: Tensor) -> Tensor:
    """Return the share of the length of others that rows have along them ``(k, 1)``, at least :data:`_LEAST_SCALE`."""
    found: Tensor = ((rows * of).sum(1) / of.square().sum(1).clamp_min(TINY)).clamp_min(_LEAST_SCALE)[:, None]
    return found
