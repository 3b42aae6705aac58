"""The attack on what changed between rounds: the representation of images that a client gained or lost, then inverted.

In federations whose clients gain or lose images between rounds, a class of a thousand images protects none of those that
come one at a time. A prototype is a mean, and its count says of how many. While the extractor stays as it is,

    n_t p_t - n_{t-1} p_{t-1} = sum of the representations of the images added (minus those removed),

so that one added image's representation comes out exactly, however large the class. A prototype that is kept as a running
mean, p_t = m p_{t-1} + (1 - m) b_t, gives away the newest batch's mean b_t in the same way. Of an entangled upload whose
weights are 1 / n for every image (VAR) the label encoding holds the shares of classes, from which n follows.

Where the extractor is still trained, its drift is added to the result n times over; how much vectors moved whose data
stayed as they were says how much that is: prototypes of unchanged classes, or the client's uploads of earlier rounds.
Clients whose data stay as they are give nothing to find, and the attack says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import Needs, Observation, TargetId
from fedpriv.attacks.read.target_features import list_targets, observation_of, rounds_of
from fedpriv.attacks.recover.then_invert import Recovered, RecoverThenInvert, as_uploads
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import CLASS_MEANS, MIXTURES
from fedpriv.wire.payloads import Entangled, Prototypes, find_payload

_MOST = 8
_WHOLE = 0.02
_STILL = 1e-2
"""Drift relative to what was gained below which that counts as exact."""


@dataclass(frozen=True, kw_only=True)
class Differencing(RecoverThenInvert):
    """Recover and invert what each target's class gained or lost since the client's upload before.

    A result counts as converged only if the drift expected from uploads of unchanged data, of the same or earlier rounds, is
    less than what was recovered; not where no upload tells of drift.

    Attributes:
        momentum: m of prototypes that are running means, in [0, 1); None for exact means, which need uploaded counts.
    """

    momentum: Annotated[float, Ge(0), Lt(1)] | None = None

    name = "difference"
    summary = "the vector of images that a client gained or lost between two rounds, then inverted"
    version = 5
    targets = CLASS_MEANS | MIXTURES
    unit = "upload"
    needs = Needs(min_rounds=2)
    only_by_name = True

    def recover(self, problem: AttackProblem) -> Recovered:
        """Recover the difference of each target."""
        found: list[Change] = []
        for target in problem.targets:
            change = self.change(problem.observations, target)
            if change is None:
                raise UserError(_nothing(problem.observations, target))
            found.append(change)
        return Recovered(
            as_uploads(
                [change.vector for change in found],
                problem.targets,
                [abs(change.number) or None if change.noise < _STILL else None for change in found],
            ),
            problem.targets,
            labels=torch.tensor([change.label for change in found]),
            sound=torch.tensor([change.noise < 1 for change in found]),
            exact=True,
        )

    def change(self, observations: Sequence[Observation], target: TargetId) -> Change | None:
        """Return the gain or loss of a target's client since its upload before, or None."""
        after = observation_of(observations, target)
        before = _before(observations, target)
        if before is None:
            return None
        usual = usual_drift(_earlier_pairs(observations, target.client, before.round))
        old, new = _sent(before), _sent(after)
        if isinstance(old, Prototypes) and isinstance(new, Prototypes):
            label = int(new.classes[target.index])
            if self.momentum is not None:
                return newest_of_running_mean(old, new, label, self.momentum, usual)
            return change_of_class(old, new, label, usual)
        if isinstance(old, Entangled) and isinstance(new, Entangled):
            return change_of_mixture(old, new, usual)
        return None

    def select(self, observations: Sequence[Observation], targets: Sequence[TargetId]) -> tuple[TargetId, ...]:
        """Return the targets in which something changed.

        Raises:
            UserError: when there are none.
        """
        changed = tuple(target for target in targets if self.change(observations, target) is not None)
        if targets and not changed:
            raise UserError(_nothing(observations, targets[0]))
        return changed


def changed_targets(
    observations: Sequence[Observation], kind: str, momentum: float | None = None
) -> tuple[TargetId, ...]:
    """Return the targets of a kind whose class gained or lost images since the client's upload before."""
    attack = Differencing(momentum=momentum)
    return tuple(t for t in list_targets(observations, kind) if attack.change(observations, t) is not None)


Sent = Prototypes | Entangled


def _sent(seen: Observation) -> Sent | None:
    return find_payload(seen.upload, Prototypes) or find_payload(seen.upload, Entangled)


def _earlier_pairs(observations: Sequence[Observation], client: int, last: int) -> list[tuple[Sent, Sent]]:
    """Return a client's uploads up to a round, each with the one before."""
    sent = [_sent(seen) for seen in rounds_of(observations, client) if seen.round <= last]
    return [(a, b) for a, b in pairwise(sent) if a is not None and b is not None]


def _before(observations: Sequence[Observation], target: TargetId) -> Observation | None:
    earlier = [seen for seen in rounds_of(observations, target.client) if seen.round < target.round]
    return earlier[-1] if earlier else None


def _nothing(observations: Sequence[Observation], target: TargetId) -> str:
    before = _before(observations, target)
    if before is None:
        return (
            f"attack 'difference': client {target.client} uploaded in round {target.round} only; two uploads are needed"
        )
    which = "" if target.label < 0 else f" of class {target.label}"
    text = (
        f"attack 'difference': no change found in the upload{which} of client {target.client} between rounds "
        f"{before.round} and {target.round}"
    )
    means = find_payload(before.upload, Prototypes)
    if means is not None and means.counts is None:
        where = argument("attack_option")
        return text + f", which carries no counts; where prototypes are running means, pass {where} momentum=M"
    return (
        text + "; clients of fedpriv train keep the data they start with, so their uploads hold nothing to difference"
    )


@dataclass(frozen=True)
class Change:
    """Images that a client gained or lost between two rounds.

    Attributes:
        vector: ``(d,)`` mean representation of the images.
        number: how many images; negative if they were removed; 0 where a running mean hides it.
        label: their class.
        noise: how large drift of the extractor is expected to be in ``vector``, relative to it; >= 0, infinite where
            uploads do not tell.
    """

    vector: Tensor
    number: int
    label: int
    noise: float


def change_of_class(before: Prototypes, after: Prototypes, label: int, usual: float | None = None) -> Change | None:
    """Return a class's gain or loss by its counts; None where nothing changed, or counts are not uploaded.

    ``usual`` is the drift of rounds before, for where no class stayed as it is (:func:`usual_drift`).
    """
    if before.counts is None or after.counts is None:
        return None
    old, new = _row(before, label), _row(after, label)
    old_count, new_count = (_counts(sent).get(label, 0) for sent in (before, after))
    if old_count == new_count:
        return None
    gained = (new_count * new - old_count * old) / (new_count - old_count)
    noise = _noise(drift(before, after), usual, old_count * old.norm(), abs(new_count - old_count) * gained.norm())
    return Change(gained.float(), new_count - old_count, label, noise)


def newest_of_running_mean(
    before: Prototypes, after: Prototypes, label: int, momentum: float, usual: float | None = None
) -> Change | None:
    """Return the newest batch's mean behind a prototype ``p_t = m p_{t-1} + (1 - m) b_t``; None for a new class.

    What comes out is ``p_t + m / (1 - m) (p_t - p_{t-1})``. The noise is what that factor makes of the movement that is
    usual: of the client's other classes, else of rounds before (``usual``), else of this class itself. All of it is taken
    for drift, though in true running means much of it is other batches, so the noise is an upper estimate. It is relative
    to the prototype: drift so magnified makes the result itself long.
    """
    moves = _moves(before, after)
    if label not in moves:
        return None
    old, new = _row(before, label), _row(after, label)
    newest = (new - momentum * old) / (1 - momentum)
    own = moves.pop(label)
    moved = _median(list(moves.values()))
    noise = _noise(moved, own if usual is None else usual, momentum / (1 - momentum) * new.norm(), new.norm())
    return Change(newest.float(), 0, label, noise)


def change_of_mixture(before: Entangled, after: Entangled, usual: float | None = None) -> Change | None:
    """Return a client's gain or loss by two uploads with weights 1 / n (VAR); None where they do not fit that.

    The share of the class with new images rises, those of all others fall by one factor n / (n + a). The number a is
    taken to be the least for which every class count is a whole number. A client of one class tells nothing; with two,
    the loss of an image can look like a gain in the other class, and is taken for one. These two uploads tell nothing of
    drift: ``usual`` is that of rounds before.
    """
    for small, large, sign in ((before, after, 1), (after, before, -1)):
        found = _growth(small, large)
        if found is None:
            continue
        label, total, number = found
        vector = ((total + number) * large.feature.double() - total * small.feature.double()) / number
        noise = _noise(None, usual, total * small.feature.double().norm(), number * vector.norm())
        return Change(vector.float(), sign * number, label, noise)
    return None


def drift(before: Prototypes, after: Prototypes) -> float | None:
    """Return the median movement of prototypes of unchanged classes, relative to their norm; None where there are none.

    Unchanged is a class whose count is the same; where counts are not uploaded, every class.
    """
    moves = _moves(before, after)
    if before.counts is not None and after.counts is not None:
        old, new = _counts(before), _counts(after)
        moves = {label: move for label, move in moves.items() if old[label] == new[label]}
    return _median(list(moves.values()))


def usual_drift(pairs: Sequence[tuple[Sent, Sent]]) -> float | None:
    """Return the median drift between uploads of earlier rounds whose data stayed as they were; None without such.

    Mixtures count where their label encodings are equal.
    """
    found: list[float] = []
    for before, after in pairs:
        moved: float | None = None
        if isinstance(before, Prototypes) and isinstance(after, Prototypes):
            moved = drift(before, after)
        elif isinstance(before, Entangled) and isinstance(after, Entangled):
            same = torch.allclose(before.label_encoding, after.label_encoding, rtol=0, atol=1e-7)
            moved = _move(before.feature, after.feature) if same else None
        found += [] if moved is None else [moved]
    return _median(found)


def _noise(moved: float | None, usual: float | None, times: Tensor | float, found: Tensor) -> float:
    """Return the drift in ``times`` vectors relative to what was found; infinite where there is some of unknown size."""
    if not float(times):
        return 0.0
    known = usual if moved is None else moved
    return math.inf if known is None else float(known * times / found.clamp_min(1e-12))


def _moves(before: Prototypes, after: Prototypes) -> dict[int, float]:
    """Return the movement of the prototype of each class in both uploads, relative to its norm."""
    both = set(before.classes.tolist()) & set(after.classes.tolist())
    return {label: _move(_row(before, label), _row(after, label)) for label in sorted(both)}


def _move(old: Tensor, new: Tensor) -> float:
    return float((new.double() - old.double()).norm() / new.double().norm().clamp_min(1e-12))


def _median(values: Sequence[float]) -> float | None:
    return float(torch.tensor(list(values), dtype=torch.float64).median()) if values else None


def _counts(sent: Prototypes) -> dict[int, int]:
    assert sent.counts is not None
    return {int(label): int(count) for label, count in zip(sent.classes, sent.counts, strict=True)}


def _row(sent: Prototypes, label: int) -> Tensor:
    """Return a class's prototype ``(d,)`` in float64; zeros where the client has none of it."""
    return sent.features[sent.classes == label].double().sum(0)


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
