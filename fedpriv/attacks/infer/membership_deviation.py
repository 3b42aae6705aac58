"""Membership from means: does an upload deviate from what is expected as the candidate does, seen against the scatter?

A prototype is the mean of its members' representations, a mixture a weighted mean of such. Of n images of class y whose
representations scatter around m_y with covariance S, the upload deviates by p - m_y = sum_i (g(x_i) - m_y) / n. A member's
own deviation z = g(x) - m_y is part of that sum, a stranger's is not, and the most powerful test between the two weighs
directions by the inverse of S (Dwork et al., "Robust traceability from trace amounts", FOCS 2015, for attributes that are
independent): members' scores lie about sqrt(k / n) standard deviations above strangers', with k the dimensions in which
representations scatter, where a distance sees but the few in which they scatter most. The score is the cosine

    z^T P D / sqrt(z^T P z  D^T P D),    P = (S + r tr(S) / d I)^-1,    D = upload - sum_c w_c m_c,

which asks neither for n nor for the scale of either. Means and covariance are of the attacker's own images under the
client's extractor; a class of which it has none takes the mean of all.

Of several rounds, each under its own extractor, a candidate's deviations z_t in whitened coordinates are held against the
uploads' D_t by generalised least squares,

    sum_ts w_t K^-1_ts z_t^T D_s / sqrt(sum_ts w_t w_s K^-1_ts z_t^T z_s  sum_ts K^-1_ts D_t^T D_s),

with w_t the weight of its class (of means 1), and K the covariance of rounds that the numbers of images lead to expect
(:mod:`fedpriv.attacks.infer.member_counts`): K = (W diag(v) W^T) * C + noise. A mixture deviates by all of its classes at
once, and its weights change from round to round: so K^-1 takes one class's part out and leaves the others' behind.

Uploads behind defenses: :mod:`fedpriv.attacks.infer.sent_means`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.attacks.infer.class_scatter import FOLDS, TINY, Scatter, enough, scatter
from fedpriv.attacks.infer.member_counts import LIKELY, Counted, numbers_of_members
from fedpriv.attacks.infer.rounds_together import Together, off, together, whitened
from fedpriv.attacks.infer.sent_means import Round
from fedpriv.util.seeds import generator

STEADY = 1e-2
"""Of what a round's deviation is expected to be, that is taken to be no other round's."""


def deviations(groups: Sequence[Group], labels: Tensor) -> Tensor:
    """Return the cosines of candidates' deviations with the uploads' over all rounds ``(n,)``.

    Minus infinity where no round's upload holds a candidate's class.

    Args:
        groups: of classes.
        labels: of candidates ``(n,)``.
    """
    found = torch.full((len(labels),), -torch.inf, dtype=torch.float64)
    for group in groups:
        asked = torch.isin(labels, group.classes)
        if bool(asked.any()):
            rows = [whitened(there, one.features[asked], labels[asked]) for one, there in group.pairs]
            found[asked] = group.cosines(rows, [None] * len(rows), labels[asked])
    return found


def left_out(groups: Sequence[Group], own_labels: Tensor, asked: Tensor, *seed: int | str) -> Tensor:
    """Return scores of own images, each as if the attacker had not had it; in no order that matters.

    Of as many of each class as candidates are of it, in proportion: how far scores scatter depends on the class, most of all
    in mixtures, where some have little weight. Covariances are those of the images of other :data:`FOLDS`, means those of
    all but the image: with the means of fewer images, deviations and candidates share more of these means' own error, and
    every stranger seems to be a member.

    Args:
        groups: of classes.
        own_labels: of the attacker's own images ``(m,)``.
        asked: classes of candidates ``(n,)``.
        seed: parts of the seed by which images are divided.
    """
    parts = torch.randperm(len(own_labels), generator=generator(*seed)) % FOLDS
    found, classes = [torch.empty(0, dtype=torch.float64)], [own_labels[:0]]
    for part in range(FOLDS):
        kept, others = parts != part, dict[int, Scatter]()
        if not enough(own_labels[kept]):
            continue
        for group in groups:
            tried = (parts == part) & torch.isin(own_labels, group.classes)
            if not bool(tried.any()):
                continue
            labels, rows, moved = own_labels[tried], [], []
            for one, whole in group.pairs:
                if id(one) not in others:
                    others[id(one)] = scatter(one.own[kept], own_labels[kept], one.noise)
                there = replace(others[id(one)], means=whole.means, overall=whole.overall)
                away = whole.without(one.own[tried], labels)
                rows.append(whitened(there, one.own[tried] - away, labels))
                moved.append((there, away))
            found.append(group.cosines(rows, moved, labels))
            classes.append(labels)
    scores, of = torch.cat(found), torch.cat(classes)
    told = scores.isfinite()
    return _in_proportion(scores[told], of[told], asked)


def _in_proportion(scores: Tensor, classes: Tensor, wanted: Tensor) -> Tensor:
    """Return as many scores as there are in the proportions of wanted classes, of those that have any."""
    if not len(scores) or not len(wanted):
        return scores[:0]
    size = 1 + int(torch.cat([classes, wanted]).amax())
    there, shares = (torch.bincount(one, minlength=size).double() for one in (classes, wanted))
    both = (there > 0) & (shares > 0)
    if not bool(both.any()):
        return scores[:0]
    numbers = (shares * (there[both] / shares[both]).amin()).round().long()
    return torch.cat([scores[classes == label][: int(numbers[label])] for label in both.nonzero().squeeze(1).tolist()])


Moved = tuple[Scatter, Tensor]
"""What is expected in a round, and how far the mean of its class is another for each candidate ``(n, d)``."""


@dataclass(frozen=True)
class Group:
    """Classes whose candidates are told by the same rounds: of means one, of a mixture all.

    Attributes:
        classes: ``(k,)``.
        seen: T rounds.
        places: of the row in each of them.
        weights: of the classes in each ``(T, C)``.
        inverse: K^-1 ``(T, T)``.
    """

    classes: Tensor
    seen: Together
    places: tuple[int, ...]
    weights: Tensor
    inverse: Tensor

    @property
    def pairs(self) -> list[tuple[Round, Scatter]]:
        """Rounds with what is expected in them."""
        return list(zip(self.seen.rounds, self.seen.scatters, strict=True))

    def cosines(self, rows: Sequence[Tensor], moved: Sequence[Moved | None], labels: Tensor) -> Tensor:
        """Return scores of candidates of classes ``(n,)`` by their whitened deviations ``(n, d)`` in each round."""
        shares, away = self.weights[:, labels], []
        for (one, whole), place, other, share in zip(self.pairs, self.places, moved, shares, strict=True):
            there = whole if other is None else other[0]
            own = off(one, there, place)[None]
            away.append(own if other is None else own - share[:, None] * there.whiten(other[1]))
        size = self.seen.lengths.clamp_min(TINY).sqrt()[:, None, None]
        sent, mine = torch.stack(away) / size, shares[:, :, None] * torch.stack(list(rows)) / size
        turned = torch.einsum("ts,snd->tnd", self.inverse, sent)
        products = (mine * turned).sum((0, 2))
        lengths = (mine * torch.einsum("ts,snd->tnd", self.inverse, mine)).sum((0, 2))
        squares = (sent * turned).sum((0, 2))
        found: Tensor = products / (lengths.clamp_min(TINY) * squares.clamp_min(TINY)).sqrt()
        return found


def by_classes(rounds: Sequence[Round], own_labels: Tensor) -> list[Group]:
    """Take rounds of one client apart by the classes of which they tell.

    Args:
        rounds: at least one.
        own_labels: of the attacker's own images ``(m,)``.
    """
    told = numbers_of_members(rounds, own_labels) if len(rounds) > 1 else Counted({})
    if rounds[-1].sent.weights is not None:
        seen = together([part for one in rounds for part in one.parts()], own_labels)
        weights = torch.stack([one.sent.weights for one in seen.rounds if one.sent.weights is not None])
        classes = (weights != 0).any(0).nonzero().squeeze(1)
        return [_group(classes, seen, (0,) * len(seen.rounds), weights, told)]
    whole = together(rounds, own_labels) if all(one.entries is None for one in rounds) else None
    found = []
    for label in torch.cat([one.sent.classes for one in rounds]).unique().tolist():
        if whole is None:
            parts = [part for one in rounds for part in one.parts() if label in part.sent.classes.tolist()]
            seen = together(parts, own_labels)
        else:
            seen = whole.chosen([label in one.sent.classes.tolist() for one in rounds])
        places = tuple(one.sent.classes.tolist().index(label) for one in seen.rounds)
        weights = torch.zeros(len(places), 1 + label, dtype=torch.float64)
        weights[:, label] = 1
        found.append(_group(torch.tensor([label]), seen, places, weights, told))
    return found


def _group(classes: Tensor, seen: Together, places: tuple[int, ...], weights: Tensor, told: Counted) -> Group:
    numbers = seen.scatters[-1].numbers
    beside = torch.tensor([1 / numbers.get(label, 1) for label in classes.tolist()], dtype=torch.float64)
    inverse = torch.tensor([1 / told.numbers.get(label, LIKELY) for label in classes.tolist()], dtype=torch.float64)
    shares = weights[:, classes]
    expected = (shares * (beside + inverse)) @ shares.T
    own = STEADY * expected.diagonal() + told.drift * shares.square().sum(1) + seen.noise
    covariance = expected * seen.alike + torch.diag(own.clamp_min(TINY))
    return Group(classes, seen, places, weights, torch.linalg.inv(covariance))
