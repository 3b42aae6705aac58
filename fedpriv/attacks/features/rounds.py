"""The attacks on what a client uploads in several rounds: averaged, differenced, or all rounds inverted at once.

``average``: a client uploads the representation of the same image, or the prototype of the same class, in each of T rounds:
p(t) + e_t with independent disturbances e_t of zero mean (noise, stochastic rounding). A mean over T rounds divides their
variance by T, but the extractor moves. Estimators are means over the last rounds, with a linear drift or without, and the
Kalman filter of a random walk. Which one is chosen by how well it predicts each of the last uploads from those before, for
all rows of a client together: they share the extractor and so its drift.

``difference``: clients may gain or lose images between rounds. A prototype is a mean, and its count says of how many. While
the extractor stays as it is,

    n_t p_t - n_{t-1} p_{t-1} = sum of the representations of the images added (minus those removed),

so that one added image's representation comes out exactly, however large the class. Of an entangled upload whose weights
are 1 / n for every image (VAR) the label encoding holds the shares of classes, from which n follows. Where the extractor is
still trained, its drift is added to the result n times over; how much that is, prototypes of unchanged classes say, or the
client's uploads of earlier rounds.

``all-rounds``: by an extractor g_t that has moved on, one image has to answer T times:

    min_x sum_t ||g_t(x) - r_t||^2 / s_t^2,    s_t the length of representations by g_t,

which is one inversion of the vector (r_1 / s_1, .., r_T / s_T) behind x -> (g_1(x) / s_1, .., g_T(x) / s_T), without any
assumption on how extractors move; averaging needs the last extractor alone. All derived here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.features.base import (
    INVERSIONS,
    Recovered,
    RecoverThenInvert,
    as_uploads,
    make_inversion,
    with_rows,
)
from fedpriv.attacks.inputs.extractors import require_extractors
from fedpriv.attacks.inputs.targets import list_targets, observation_of, rounds_of, target_feature, upload_holds
from fedpriv.attacks.inversion.decoder import REFINED
from fedpriv.attacks.inversion.learned import LearnedInversion
from fedpriv.attacks.observation import KnowledgeCard, Needs, Observation, Reconstruction, Rehearsal, TargetId
from fedpriv.attacks.search.objectives import Match
from fedpriv.attacks.trained import Same
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed
from fedpriv.wire.kinds import CLASS_MEANS, MIXTURES, SEPARATE
from fedpriv.wire.payloads import Entangled, Message, Prototypes, Representations, find_payload

# ---------------------------------------------------------------- average

_WINDOWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_DRIFTING = 4
"""Rounds from which a linear drift is worth fitting."""

_PREDICTED = 3
"""Last uploads that are predicted from those before, to choose an estimator."""

_WALKS = tuple(10.0**power for power in (-6, -5, -4, -3, -2, -1, 0, 1, 2))
_PRIORS = tuple(10.0**power for power in (0, 2, 4))

Rows = Representations | Prototypes


@dataclass(frozen=True, kw_only=True)
class AveragedInversion(RecoverThenInvert):
    """Average a client's rows over all rounds seen, then invert those of the targets.

    A target is a row of the newest upload. Representations are averaged over the rounds whose rows have the same labels in
    the same order, prototypes over the rounds that hold all classes of the newest; other rounds are left out.

    Attributes:
        zeros: ``sent``; or ``missing``: a coordinate that is zero in all rows of a round was not sent (``diagonal``), and
            rounds that show different coordinates are put together.
        match: what of the averaged vector is believed, by all inversions but ``decoder``; see
            :data:`fedpriv.attacks.search.objectives.Match`.
    """

    zeros: Literal["sent", "missing"] = "sent"
    match: Match = "vector"

    name = "average"
    summary = "what a client uploads of the same images averaged over rounds, then inverted"
    version = 5
    targets = SEPARATE
    unit = "row"
    needs = Needs(min_rounds=2)
    only_by_name = True

    def recover(self, problem: AttackProblem) -> Recovered:
        """Average the newest upload of every attacked client over rounds."""
        seen = problem.observations
        newest = {target.client: observation_of(seen, target) for target in problem.targets}
        missing = self.zeros == "missing"
        averaged = tuple(replace(last, upload=averaged_upload(seen, last, missing)) for last in newest.values())
        # Without a defense the newest rows are exact; of noise that is left, fits under total variation take some away.
        return Recovered(averaged, problem.targets, exact=True)

    def inversion_options(self) -> dict[str, Any]:
        """Return the match."""
        return {"match": self.match}


def averaged_upload(observations: Sequence[Observation], newest: Observation, missing: bool = False) -> Message:
    """Return the newest upload with its rows averaged over its and earlier rounds.

    With ``missing``, coordinates that are zero in all rows of a round were not sent.
    """
    return with_rows(newest.upload, average_rows(observations, newest, missing))


def average_rows(observations: Sequence[Observation], newest: Observation, missing: bool = False) -> Tensor:
    """Return the rows ``(n, d)`` of the newest upload averaged over rounds; arguments as of :func:`averaged_upload`."""
    rows = _uploaded_rows(newest, AveragedInversion.name)
    earlier = [seen for seen in rounds_of(observations, newest.client) if seen.round <= newest.round]
    versions = torch.stack([found for seen in earlier if (found := _same_rows(seen.upload, rows)) is not None])
    return average(versions, (versions != 0).any(1) if missing else None)


def _uploaded_rows(seen: Observation, attack: str) -> Rows:
    """Return the representations or prototypes that an upload holds, or refuse in the name of an attack."""
    rows = find_payload(seen.upload, Representations) or find_payload(seen.upload, Prototypes)
    if rows is not None:
        return rows
    raise UserError(f"attack {attack!r}: {upload_holds(seen)}; expected representation or prototype")


def _same_rows(upload: Message, newest: Rows) -> Tensor | None:
    """Return another round's versions ``(n, d)`` of the newest rows, in their order; None where they are not all there."""
    if isinstance(newest, Representations):
        raw = find_payload(upload, Representations)
        return raw.features if raw is not None and torch.equal(raw.labels, newest.labels) else None
    means = find_payload(upload, Prototypes)
    if means is None or not len(means.classes):
        return None
    match = newest.classes[:, None] == means.classes[None]
    return means.features[match.int().argmax(1)] if bool(match.any(1).all()) else None


def average(uploads: Tensor, sent: Tensor | None = None) -> Tensor:
    """Average T uploads ``(T, n, d)`` of the same n rows, in the order of rounds, to ``(n, d)`` float32 of the last one.

    ``sent`` ``(T, d)`` says which coordinates were sent at all in a round. Those that were sent in the same rounds are
    averaged together, over those rounds; those never sent are zero.
    """
    _, n_rows, width = uploads.shape
    present = torch.ones(len(uploads), width, dtype=torch.bool) if sent is None else sent.cpu()
    rows = uploads.new_zeros(n_rows, width, device="cpu")
    patterns, member = present.T.unique(dim=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        if bool(pattern.any()):
            columns = (member == number).nonzero().flatten()
            values = uploads.cpu().double()[pattern][:, :, columns].flatten(1)
            rows[:, columns] = _choose(values)(values).view(n_rows, -1).to(rows.dtype)
    return rows


@dataclass(frozen=True)
class Estimator:
    """A window of the last ``rounds``, with a linear drift or without, or the random walk's Kalman filter of all."""

    rounds: int
    drift: bool = False
    random_walk: bool = False

    def __call__(self, values: Tensor) -> Tensor:
        """Return the values ``(n,)`` as of the last of T rounds ``(T, n)``."""
        return random_walk(values) if self.random_walk else window(values[-self.rounds :], drift=self.drift)

    def prediction_error(self, values: Tensor) -> float:
        """Return the relative squared error of predicting the last values from those before; infinite for too few."""
        n_rounds = len(values)
        last = [t for t in range(max(1, n_rounds - _PREDICTED), n_rounds) if t >= max(self.rounds // 2, 1)]
        if not last or (self.random_walk and min(last) < 2):
            return math.inf
        total, scale = 0.0, 0.0
        for t in last:
            total += float((self(values[:t]) - values[t]).square().sum())
            scale += float(values[t].square().sum())
        return total / max(scale, 1e-30)


def candidates(n_rounds: int) -> list[Estimator]:
    """Return the estimators worth trying on T rounds: windows, with drift from four rounds on, the walk from three on."""
    sizes = sorted({size for size in _WINDOWS if size < n_rounds} | {n_rounds})
    windows = [Estimator(size) for size in sizes]
    windows += [Estimator(size, drift=True) for size in sizes if size >= _DRIFTING]
    return windows + ([Estimator(0, random_walk=True)] if n_rounds > 2 else [])


def _choose(values: Tensor) -> Estimator:
    """Return the first of the estimators that predict the last values best."""
    options = candidates(len(values))
    errors = [option.prediction_error(values) for option in options]
    best = min(range(len(options)), key=errors.__getitem__)
    if math.isinf(errors[best]):  # too few rounds to predict one: all of them
        return max(options, key=lambda option: (not option.drift) * option.rounds)
    return options[best]


def window(values: Tensor, *, drift: bool = False) -> Tensor:
    """Return the mean ``(n,)`` of T rounds' values ``(T, n)``; with ``drift`` a line's value as of the last round."""
    design = torch.ones(len(values), 1, dtype=values.dtype)
    if drift:
        age = torch.arange(len(values), dtype=values.dtype) - (len(values) - 1)
        design = torch.cat([design, age[:, None]], 1)
    solution: Tensor = torch.linalg.pinv(design, rtol=1e-8) @ values
    return solution[0]


def random_walk(values: Tensor) -> Tensor:
    """Return the Kalman filter's state ``(n,)`` after the last of T rounds' values ``(T, n)``.

    All values share one variance. In units of the observation noise, the variance of a step and that of the start are taken
    from a grid by the likelihood of the innovations, the noise itself in closed form.
    """
    tried = [_filter(values, walk, prior) for walk in _WALKS for prior in _PRIORS]
    return max(tried, key=lambda pair: pair[0])[1]


def _filter(values: Tensor, walk: float, prior: float) -> tuple[float, Tensor]:
    n_rounds, width = values.shape
    state, variance, logs, squares = values.mean(0), prior, 0.0, 0.0
    for seen in values:
        variance += walk
        spread = variance + 1.0
        innovation = seen - state
        state = state + variance * innovation / spread
        variance -= variance * variance / spread
        logs += math.log(spread)
        squares += float(innovation.square().sum()) / spread
    noise = max(squares / (n_rounds * width), 1e-30)
    return -0.5 * width * (logs + n_rounds * math.log(noise)), state


# ---------------------------------------------------------------- difference

_MOST_CHANGED = 8
"""Images that a mixture may gain or lose between two rounds."""

_WHOLE = 0.02
"""Distance from a whole number within which a count counts as one."""

_STILL = 1e-2
"""Drift relative to what was gained below which that counts as exact."""

Sent = Prototypes | Entangled


@dataclass(frozen=True, kw_only=True)
class Differencing(RecoverThenInvert):
    """Recover and invert what each target's class gained or lost since the client's upload before.

    A result counts as converged only if the drift expected from uploads of unchanged data, of the same or earlier rounds, is
    less than what was recovered; not where no upload tells of drift. Clients whose data stay as they are give nothing to
    find, and the attack says so.
    """

    name = "difference"
    summary = "the vector of images that a client gained or lost between two rounds, then inverted"
    version = 5
    targets = CLASS_MEANS | MIXTURES
    unit = "upload"
    needs = Needs(min_rounds=2)
    only_by_name = True

    def recover(self, problem: AttackProblem) -> Recovered:
        """Recover the difference of each target."""
        changes: list[Change] = []
        for target in problem.targets:
            change = self.change(problem.observations, target)
            if change is None:
                raise UserError(_nothing(problem.observations, target))
            changes.append(change)
        counts = [abs(change.number) if change.noise < _STILL else None for change in changes]
        return Recovered(
            as_uploads([change.vector for change in changes], problem.targets, counts),
            problem.targets,
            labels=torch.tensor([change.label for change in changes]),
            sound=torch.tensor([change.noise < 1 for change in changes]),
            exact=True,
        )

    def change(self, observations: Sequence[Observation], target: TargetId) -> Change | None:
        """Return the gain or loss of a target's client since its upload before, or None."""
        before, after = _before(observations, target), observation_of(observations, target)
        if before is None:
            return None
        earlier = [_sent(seen) for seen in rounds_of(observations, target.client) if seen.round <= before.round]
        usual = usual_drift([(a, b) for a, b in pairwise(earlier) if a is not None and b is not None])
        old, new = _sent(before), _sent(after)
        if isinstance(old, Prototypes) and isinstance(new, Prototypes):
            return change_of_class(old, new, int(new.classes[target.index]), usual)
        if isinstance(old, Entangled) and isinstance(new, Entangled):
            return change_of_mixture(old, new, usual)
        return None

    def select(self, observations: Sequence[Observation], targets: Sequence[TargetId]) -> tuple[TargetId, ...]:
        """Return the targets in which something changed, or refuse where there are none."""
        changed = tuple(target for target in targets if self.change(observations, target) is not None)
        if targets and not changed:
            raise UserError(_nothing(observations, targets[0]))
        return changed


def changed_targets(observations: Sequence[Observation], kind: str) -> tuple[TargetId, ...]:
    """Return the targets of a kind whose class gained or lost images since the client's upload before."""
    attack = Differencing()
    return tuple(t for t in list_targets(observations, kind) if attack.change(observations, t) is not None)


def _sent(seen: Observation) -> Sent | None:
    return find_payload(seen.upload, Prototypes) or find_payload(seen.upload, Entangled)


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
        return text + ", which carries no counts; hand over prototypes with their counts"
    return (
        text + "; clients of fedpriv train keep the data they start with, so their uploads hold nothing to difference"
    )


@dataclass(frozen=True)
class Change:
    """Images that a client gained or lost between two rounds.

    Attributes:
        vector: ``(d,)`` mean representation of the images.
        number: how many images; negative if they were removed.
        label: their class.
        noise: drift of the extractor expected in ``vector``, relative to it; infinite where uploads do not tell.
    """

    vector: Tensor
    number: int
    label: int
    noise: float


def change_of_class(before: Prototypes, after: Prototypes, label: int, usual: float | None = None) -> Change | None:
    """Return a class's gain or loss by its counts; None where nothing changed, or counts are not uploaded.

    ``usual`` is the drift of rounds before, where no class stayed as it is.
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


def change_of_mixture(before: Entangled, after: Entangled, usual: float | None = None) -> Change | None:
    """Return a client's gain or loss by two uploads with weights 1 / n (VAR); None where they do not fit that.

    The share of the class with new images rises, those of all others fall by one factor n / (n + a). The number a is
    taken to be the least for which every class count is a whole number. A client of one class tells nothing; with two,
    the loss of an image can look like a gain in the other class, and is taken for one. These two uploads tell nothing of
    drift: ``usual`` is that of rounds before.
    """
    for small, large, sign in ((before, after, 1), (after, before, -1)):
        growth = _growth(small, large)
        if growth is None:
            continue
        label, total, number = growth
        vector = ((total + number) * large.feature.double() - total * small.feature.double()) / number
        noise = _noise(None, usual, total * small.feature.double().norm(), number * vector.norm())
        return Change(vector.float(), sign * number, label, noise)
    return None


def drift(before: Prototypes, after: Prototypes) -> float | None:
    """Return the median relative movement of prototypes of classes with the same count (without counts, all); or None."""
    moves = _moves(before, after)
    if before.counts is not None and after.counts is not None:
        old, new = _counts(before), _counts(after)
        moves = {label: move for label, move in moves.items() if old[label] == new[label]}
    return _median(list(moves.values()))


def usual_drift(pairs: Sequence[tuple[Sent, Sent]]) -> float | None:
    """Return the median drift between uploads whose data stayed as they were (mixtures: equal encodings); or None."""
    drifts: list[float | None] = []
    for before, after in pairs:
        if isinstance(before, Prototypes) and isinstance(after, Prototypes):
            drifts.append(drift(before, after))
        elif isinstance(before, Entangled) and isinstance(after, Entangled):
            same = torch.allclose(before.label_encoding, after.label_encoding, rtol=0, atol=1e-7)
            drifts.append(_move(before.feature, after.feature) if same else None)
    return _median([moved for moved in drifts if moved is not None])


def _noise(moved: float | None, usual: float | None, times: Tensor | float, length: Tensor) -> float:
    """Return the drift in ``times`` vectors relative to a result's length; infinite where there is some of unknown size."""
    if not float(times):
        return 0.0
    known = usual if moved is None else moved
    return math.inf if known is None else float(known * times / length.clamp_min(1e-12))


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
    for number in range(1, _MOST_CHANGED + 1):
        total = number * factor / (1 - factor)
        counts = old * round(total)
        if abs(total - round(total)) < _WHOLE and bool(((counts - counts.round()).abs() < _WHOLE).all()):
            return grown[0], round(total), number
    return None


# ---------------------------------------------------------------- all rounds

Extractor = Callable[[Tensor], Tensor]
Whole = Literal["dip", "pixels", "decoder", "joint", "learned"]

_WHOLE_INVERSIONS: dict[str, type[Attack]] = {**INVERSIONS, "learned": LearnedInversion}

_MEASURED = 64
"""Images of the attacker's own, or of noise, by which the length of an extractor's representations is measured."""


@dataclass(frozen=True, kw_only=True)
class AllRoundsInversion(Attack):
    """Invert a client's uploads of several rounds together.

    A target is a row of the newest upload. Rounds count whose upload holds the same rows (representations with the same
    labels in the same order, prototypes of all the classes) and whose extractor is granted.

    Attributes:
        inversion: ``decoder`` (needs attacker data), ``dip``, ``pixels``, ``joint`` (of class means, by several images
            each), ``learned`` (needs attacker data), or ``auto``: ``decoder`` where the card grants images, else ``dip``.
        iterations: most steps of the inversion; of ``decoder`` those in which single images are fitted to the vectors, of
            ``learned`` of its last stage, to which those before are in proportion.
        restarts: of the inversion.
        rounds: most rounds that are put together, the newest and others spread evenly over those before.
    """

    inversion: Whole | Literal["auto"] = "auto"
    iterations: Annotated[int, Ge(1)] = REFINED
    restarts: Annotated[int, Ge(1)] = 1
    rounds: Annotated[int, Ge(2)] = 10

    name = "all-rounds"
    summary = "what a client uploads of the same images in all rounds, inverted together, each behind its own extractor"
    version = 4
    targets = SEPARATE
    unit = "upload"
    budget = "iterations"
    needs = Needs(extractor=("white_box", "query"), min_rounds=2, every_extractor=True)
    only_by_name = True

    def requirements_for(self, kind: str | None) -> Needs:
        """Return the needs of this attack and of its inversion together."""
        needs = super().requirements_for(kind)
        return needs if self.inversion == "auto" else needs.together(_WHOLE_INVERSIONS[self.inversion].needs)

    def trains(self, card: KnowledgeCard) -> str:
        """Return a name of its own: no other attack decodes what all rounds tell."""
        return self.name

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Put the rounds together and invert; refuse fewer than two with the same rows and an extractor."""
        seen, device = problem.observations, problem.device
        newest = torch.stack([target_feature(seen, target, SEPARATE).to(device) for target in problem.targets])
        return replace(self._inverter(problem).run(self._together(problem)), features=newest)

    def objective(self, problem: AttackProblem) -> Objective | None:
        """Return the inversion's, against the uploads of all rounds."""
        return self._inverter(problem).objective(self._together(problem))

    def _inverter(self, problem: AttackProblem) -> Attack:
        granted: Whole = "dip" if problem.knowledge.public_images is None else "decoder"
        kind = _WHOLE_INVERSIONS[granted if self.inversion == "auto" else self.inversion]
        chosen = make_inversion(kind, self.iterations, self.restarts)
        chosen.needs.refuse(self.name, problem.knowledge.card)
        return chosen

    def _together(self, problem: AttackProblem) -> AttackProblem:
        """Return the problem of inverting one long vector behind one wide extractor."""
        require_extractors(problem.knowledge, problem.targets)
        observations, extractors, defended = [], {}, {}
        for target in {target.client: target for target in problem.targets}.values():
            newest = observation_of(problem.observations, target)
            versions = self._versions(problem, newest)
            wide, defend = problem.trained.get(*_wide(problem, newest.client, versions))
            rows = torch.cat([v.rows.to(problem.device) / s for v, s in zip(versions, wide.lengths, strict=True)], 1)
            observations.append(replace(newest, upload=with_rows(newest.upload, rows)))
            extractors[newest.client] = wide
            if defend is not None:
                defended[newest.round, newest.client] = defend
        return replace(
            problem,
            observations=tuple(observations),
            knowledge=replace(problem.knowledge, extractors=extractors, defended=defended),
        )

    def _versions(self, problem: AttackProblem, newest: Observation) -> list[_Version]:
        """Return the newest rows as a client uploaded them, in at most as many rounds as are wanted."""
        knowledge, newest_rows = problem.knowledge, _uploaded_rows(newest, self.name)
        versions = []
        for seen in rounds_of(problem.observations, newest.client):
            where = (seen.round, seen.client)
            extractor = knowledge.extractors[newest.client] if seen is newest else knowledge.earlier.get(where)
            rows = _same_rows(seen.upload, newest_rows) if seen.round <= newest.round else None
            if extractor is not None and rows is not None:
                versions.append(_Version(seen.round, rows, extractor, knowledge.defended.get(where)))
        if len(versions) < 2:
            raise UserError(
                f"attack {self.name!r}: of client {newest.client} there is one round with the same rows and an extractor; "
                "expected two at least"
            )
        number = min(self.rounds, len(versions))
        return [versions[round((len(versions) - 1) * place / (number - 1))] for place in range(number)]


@dataclass(frozen=True)
class _Version:
    """Rows ``(n, d)`` as they were uploaded in a round, and the extractor and defenses that they came through."""

    round: int
    rows: Tensor
    extractor: Extractor
    defend: Rehearsal | None


@dataclass(frozen=True, eq=False)
class _Wide:
    """T extractors side by side, whose representations are divided by lengths."""

    extractors: tuple[Extractor, ...]
    lengths: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        return torch.cat([each(images) / s for each, s in zip(self.extractors, self.lengths, strict=True)], 1)


@dataclass(frozen=True, eq=False)
class _Defended:
    """The defenses of T rounds' uploads, or None, on rows of T extractors side by side."""

    each: tuple[Rehearsal | None, ...]
    lengths: tuple[float, ...]
    widths: tuple[int, ...]

    def __call__(self, rows: Tensor, seed: int) -> Tensor:
        sent = []
        parts = zip(rows.split(self.widths, 1), self.each, self.lengths, strict=True)
        for place, (part, defend, length) in enumerate(parts):
            sent.append(part if defend is None else defend(part * length, derive_seed(seed, place)) / length)
        return torch.cat(sent, 1)


def _wide(
    problem: AttackProblem, client: int, versions: Sequence[_Version]
) -> tuple[Hashable, Callable[[], tuple[_Wide, _Defended | None]]]:
    """Return a key, and what makes a client's extractors one; made once, so that all that is trained on it is shared."""
    extractors, each = tuple(v.extractor for v in versions), tuple(v.defend for v in versions)

    def make() -> tuple[_Wide, _Defended | None]:
        images = problem.knowledge.public_images
        if images is None:
            rng = torch.Generator().manual_seed(derive_seed(problem.seed, "all rounds", client))
            images = torch.rand(_MEASURED, *problem.knowledge.image_shape, generator=rng)
        with torch.no_grad():
            tried = [extractor(images[:_MEASURED].to(problem.device)) for extractor in extractors]
        lengths = tuple(max(float(rows.norm(dim=1).mean()), 1e-12) for rows in tried)
        undefended = all(defend is None for defend in each)
        defended = None if undefended else _Defended(each, lengths, tuple(rows.shape[1] for rows in tried))
        return _Wide(extractors, lengths), defended

    parts = [(version.round, Same(version.extractor), Same(version.defend)) for version in versions]
    return ("all rounds", client, problem.seed, *parts), make
