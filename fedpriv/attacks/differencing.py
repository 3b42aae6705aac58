"""What changed between two rounds' uploads of one client: the representation of an image that it gained or lost.

A prototype is a mean, and its count says of how many. While the extractor stays as it is,

    n_t p_t - n_{t-1} p_{t-1} = sum of the representations of the images added (minus those removed),

so that one added image's representation comes out exactly, however large the class. A prototype that is kept as a running
mean, p_t = m p_{t-1} + (1 - m) b_t, gives away the newest batch's mean b_t in the same way. Of an entangled upload whose
weights are 1 / n for every image (VAR) the label encoding holds the shares of classes, from which n follows.

Where the extractor is still trained, its drift is added to the result n times over; how much prototypes of unchanged
classes moved says how much that is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.uploads import Entangled, Prototypes

_MOST = 8
_WHOLE = 0.02


@dataclass(frozen=True)
class Change:
    """What a client gained or lost between two rounds.

    Attributes:
        vector: ``(d,)`` mean representation of the images.
        number: how many images; negative if they were removed; 0 where a running mean hides it.
        label: their class.
        noise: how large drift of the extractor is expected to be in ``vector``, relative to it; >= 0.
    """

    vector: Tensor
    number: int
    label: int
    noise: float


def change_of_class(before: Prototypes, after: Prototypes, label: int) -> Change | None:
    """Return what a class gained or lost by its counts; None where nothing changed, or counts are not uploaded.

    Args:
        before: the earlier upload.
        after: the later upload.
        label: the class.
    """
    if before.counts is None or after.counts is None:
        return None
    old, old_count = _of_class(before, before.counts, label)
    new, new_count = _of_class(after, after.counts, label)
    if old_count == new_count:
        return None
    gained = (new_count * new - old_count * old) / (new_count - old_count)
    spread = drift(before, after) * (old_count * old.norm() if old_count else 0.0)
    noise = float(spread / (abs(new_count - old_count) * gained.norm()).clamp_min(1e-12))
    return Change(gained.float(), new_count - old_count, label, noise)


def newest_of_running_mean(before: Prototypes, after: Prototypes, label: int, momentum: float) -> Change | None:
    """Return the newest batch's mean behind a prototype ``p_t = m p_{t-1} + (1 - m) b_t``; None for a new class.

    Args:
        before: the earlier upload.
        after: the later upload.
        label: the class.
        momentum: m, in [0, 1).
    """
    places = [(sent.classes == label).nonzero().flatten() for sent in (before, after)]
    if not all(len(place) for place in places):
        return None
    old, new = (sent.features[place[0]].double() for sent, place in zip((before, after), places, strict=True))
    return Change(((new - momentum * old) / (1 - momentum)).float(), 0, label, 0.0)


def change_of_mixture(before: Entangled, after: Entangled) -> Change | None:
    """Return what a client gained or lost by two uploads with weights 1 / n (VAR); None where they do not fit that.

    The share of the class with new images rises, those of all others fall by one factor n / (n + a). The number a is
    taken to be the least for which every class count is a whole number. A client of one class tells nothing; with two,
    the loss of an image can look like a gain in the other class, and is taken for one.
    """
    gained = _growth(before, after)
    lost = None if gained is not None else _growth(after, before)
    found = gained or lost
    if found is None:
        return None
    label, total, number = found
    small, large = (before, after) if gained is not None else (after, before)
    vector = ((total + number) * large.feature.double() - total * small.feature.double()) / number
    return Change(vector.float(), number if gained is not None else -number, label, 0.0)


def drift(before: Prototypes, after: Prototypes) -> float:
    """Return how far prototypes of classes with unchanged counts moved, relative to their norm; 0 where there are none."""
    assert before.counts is not None
    assert after.counts is not None
    moves = []
    for label in after.classes.tolist():
        old, old_count = _of_class(before, before.counts, label)
        new, new_count = _of_class(after, after.counts, label)
        if old_count == new_count:
            moves.append(float((new - old).norm() / new.norm().clamp_min(1e-12)))
    return float(torch.tensor(moves).median()) if moves else 0.0


def _of_class(sent: Prototypes, counts: Tensor, label: int) -> tuple[Tensor, int]:
    """Return a class's prototype ``(d,)`` in float64 and its count; zeros where the client has none of it."""
    places = (sent.classes == label).nonzero().flatten()
    if not len(places):
        return sent.features.new_zeros(sent.features.shape[1]).double(), 0
    return sent.features[places[0]].double(), int(counts[places[0]])


def _growth(small: Entangled, large: Entangled) -> tuple[int, int, int] | None:
    """Return the class that grew, the number of images before, and how many were added; None where it does not fit."""
    old, new = small.label_encoding.double(), large.label_encoding.double()
    if not bool((old >= 0).all() and (new >= 0).all()):
        return None
    grown = (new > old + 1e-7).nonzero().flatten().tolist()
    rest = (old > 0) & (torch.arange(len(old)) != (grown[0] if grown else -1))
    if len(grown) != 1 or not bool(rest.any()):
        return None
    ratios = new[rest] / old[rest]
    factor = float(ratios.mean())
    if not 0 < factor < 1 or float(ratios.max() - ratios.min()) > 1e-3 * (1 - factor):
        return None
    for number in range(1, _MOST + 1):
        total = number * factor / (1 - factor)
        counts = old * round(total)
        if abs(total - round(total)) < _WHOLE and bool(((counts - counts.round()).abs() < _WHOLE).all()):
            return grown[0], round(total), number
    return None
