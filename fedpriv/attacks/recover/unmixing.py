"""The attack adapted to entangled uploads: unmix the class prototypes over rounds by linear algebra, then invert those.

What FedRE's evaluation inverts is one round's mixture, which resembles no image of anybody's, so that a low score is
certain and proves nothing. But its upload of round t is r_t = sum_c w_tc p_c(t), and the label encoding w_t is uploaded in
clear. Re-sampled weights make every round a fresh linear equation in the same m prototypes, and a trained extractor moves
little from round to round, so the prototypes can be solved for. Fixed weights give one equation only, however many rounds.

The estimator is the posterior of :mod:`fedpriv.attacks.recover.round_posterior`, which takes together what the server has:
all rounds, the rows of the head that it broadcasts, and the class means of its own images where the card grants some. Two
older estimators, both linear in the uploads, are settings (``family``):

- *window*: least squares over the last rounds, min_P sum_t ||r_t - w_t P||^2, optionally with a linear drift of P.
- *random walk*: the Kalman filter of p_c(t+1) = p_c(t) + noise with r_t as observations. At the last round it equals the
  Kalman smoother. Its two variance ratios are chosen by the likelihood of the innovations.

Which of the two, and which window, is chosen by how well it predicts each of the last uploads from those before: a rule
that needs nothing but the uploads. Where the card grants images, their class means are these settings' start instead: see
:mod:`fedpriv.attacks.recover.unmixing_prior`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import Knowledge, Needs, Observation, TargetId
from fedpriv.attacks.read.extractors import represent
from fedpriv.attacks.read.target_features import rounds_of
from fedpriv.attacks.recover.hidden_weights import Shapes, infer_hidden
from fedpriv.attacks.recover.round_posterior import ANY_DRIFT, BOUNDS, Shape, Uploads, infer
from fedpriv.attacks.recover.round_shapes import head_rows, shape_of_head, shape_of_means
from fedpriv.attacks.recover.then_invert import Recovered, RecoverThenInvert, as_uploads
from fedpriv.attacks.recover.unmixing_once import prior_of_images
from fedpriv.attacks.recover.unmixing_prior import class_prior, unmix_with_prior
from fedpriv.attacks.trained import Trained
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import MIXTURES
from fedpriv.wire.payloads import Entangled, get_payload

HELD_OUT = 3
"""Last uploads that are predicted from those before, to choose an estimator."""

_WALKS = tuple(10.0**power for power in (-6, -5, -4, -3, -2, -1, 0, 1, 2))
_PRIORS = tuple(10.0**power for power in (0, 2, 4))

Family = Literal["auto", "window", "random_walk"]
Model = Literal["posterior", Family]


@dataclass(frozen=True, kw_only=True)
class UnmixedInversion(RecoverThenInvert):
    """Unmix a client's prototypes from all rounds seen, then invert each.

    A target is one class of one client (``TargetId.label``), as of the last round.

    Attributes:
        prior: ``images`` starts from the class means of the attacker's own images, ``none`` does without; ``auto`` takes
            images where the card grants some.
        head: the rows of the broadcast head are a prior too; of the posterior alone.
        family: ``posterior``, or which of the older estimators may be chosen; ``auto`` is both of them.
        weights: ``sent`` as label encodings, or ``hidden``: encodings name the class of largest weight at most, and weights
            are found with the prototypes (the answer to ``hide-labels``); of the posterior alone. See
            :mod:`fedpriv.attacks.recover.hidden_weights`.
        drift: ``bounded``: with own images the posterior is a mixture over bounds of drift; or ``any``: the one that allows
            any drift. Of the posterior with weights as sent; see :mod:`fedpriv.attacks.recover.round_posterior`.
        zeros: ``sent``; or ``missing``: a coordinate that is zero was not sent in that round (the answer to ``diagonal``),
            and coordinates are unmixed from the rounds that show them.
    """

    prior: Literal["auto", "images", "none"] = "auto"
    head: bool = True
    family: Model = "posterior"
    weights: Literal["sent", "hidden"] = "sent"
    drift: Literal["bounded", "any"] = "bounded"
    zeros: Literal["sent", "missing"] = "sent"
    iterations: Annotated[int, Ge(1)] = 100

    name = "unmix"
    summary = "class means unmixed from many rounds of mixtures, then inverted"
    version = 7
    targets = MIXTURES
    needs = Needs(min_rounds=2)

    def __post_init__(self) -> None:
        if self.weights == "hidden" and self.family != "posterior":
            raise UserError(
                f"attack 'unmix': weights=hidden with family={self.family}: least squares needs weights; drop one of them"
            )

    def recover(self, problem: AttackProblem) -> Recovered:
        """Unmix every attacked client's prototypes."""
        unmixed = {
            k: self.unmixed(problem.observations, k, problem.knowledge, problem.trained) for k in problem.clients
        }
        places = tuple(replace(t, index=_position(unmixed[t.client].classes, t)) for t in problem.targets)

        def rows(name: Literal["prototypes", "distance", "directions"]) -> list[Tensor] | None:
            found = [getattr(unmixed[place.client], name) for place in places]
            return (
                None
                if any(one is None for one in found)
                else [one[place.index] for one, place in zip(found, places, strict=True)]
            )

        vectors, distance, directions = rows("prototypes"), rows("distance"), rows("directions")
        assert vectors is not None
        return Recovered(
            as_uploads(vectors, places),
            places,
            distance=None if distance is None else torch.stack(distance),
            directions=None if directions is None else torch.stack(directions),
        )

    def unmixed(
        self, observations: Sequence[Observation], client: int, knowledge: Knowledge, kept: Trained | None = None
    ) -> ClientUnmixed:
        """Return a client's prototypes with their classes; ``kept`` holds what was computed already.

        Raises:
            UserError: with ``prior=images`` where the card grants none.
        """
        features, weights, classes = uploads_of(observations, client)
        images, labels = knowledge.public_images, knowledge.public_labels
        if self.prior == "images" and (images is None or labels is None):
            raise UserError(
                "attack 'unmix' with prior=images needs images of the attacker's own; pass "
                f"{argument('knowledge', {'attacker_data': 'same_domain'})} and {argument('public')} N"
            )
        own = None
        if self.prior != "none" and images is not None and labels is not None:
            own = represent(knowledge, client, images, kept)
        if self.family != "posterior":
            if own is None or labels is None:
                return ClientUnmixed(unmix(features, weights, self.family).prototypes, classes)
            prior = class_prior(own, labels.cpu(), knowledge.n_classes, classes)
            return ClientUnmixed(unmix_with_prior(features, weights, prior), classes)
        rounds = rounds_of(observations, client)
        numbers = torch.tensor([seen.round for seen in rounds])
        uploads = Uploads(features.double().cpu(), weights.double().cpu(), numbers)
        rows = head_rows(rounds, features.shape[1]) if self.head else None
        if rows is not None and int(classes.max()) >= rows.shape[1]:
            rows = None  # of a head that knows fewer classes than the client mixes
        means = None
        if own is not None and labels is not None:
            means = prior_of_images(own.double(), labels.cpu(), knowledge.n_classes)[classes]

        def shapes(mixed: Uploads) -> list[Shape]:
            of_head = [] if rows is None else [shape_of_head(mixed, rows, classes)]
            return of_head + ([] if means is None else [shape_of_means(mixed, means)])

        bounds = BOUNDS if self.drift == "bounded" else ANY_DRIFT
        if self.zeros == "missing":
            return ClientUnmixed(_unmixed_by_block(uploads, shapes, bounds), classes)
        hidden = self.weights == "hidden"
        found = infer_hidden(uploads, shapes)[0] if hidden else infer(uploads, shapes(uploads), bounds)
        return ClientUnmixed(found.prototypes, classes, found.distance, found.directions)


def _unmixed_by_block(uploads: Uploads, shapes: Shapes, bounds: Sequence[float]) -> Tensor:
    """Return the prototypes ``(m, d)`` of coordinates that each round shows some of; zero where none does."""
    found = torch.zeros(uploads.weights.shape[1], uploads.features.shape[1])
    patterns, member = (uploads.features != 0).T.unique(dim=0, return_inverse=True)
    whole = shapes(uploads)
    for number, shown in enumerate(patterns):
        if not bool(shown.any()):
            continue
        columns = (member == number).nonzero().flatten()
        part = Uploads(uploads.features[shown][:, columns], uploads.weights[shown], uploads.rounds[shown])
        cut = [_of_block(own, shown, columns) for own in whole]
        found[:, columns] = infer(part, cut, bounds).prototypes
    return found


def _of_block(shape: Shape, shown: Tensor, columns: Tensor) -> Shape:
    leads = None if shape.leads is None else shape.leads[:, columns]
    return Shape(shape.rows[:, columns], shape.mixed[shown][:, columns], leads)


@dataclass(frozen=True)
class ClientUnmixed:
    """The estimate of one client.

    Attributes:
        prototypes: ``(m, d)`` float32, as of the last round.
        classes: ``(m,)`` of its rows.
        distance: ``(m,)`` expected distance from the true prototypes, where the estimator knows it.
        directions: ``(m, d)`` in which each stands out from the others, where the estimator tells.
    """

    prototypes: Tensor
    classes: Tensor
    distance: Tensor | None = None
    directions: Tensor | None = None


def unmix_client(observations: Sequence[Observation], client: int, family: Family) -> tuple[Unmixed, Tensor]:
    """Unmix one client's uploads; return the estimate and the classes ``(m,)`` of its rows."""
    features, weights, classes = uploads_of(observations, client)
    return unmix(features, weights, family), classes


def uploads_of(observations: Sequence[Observation], client: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a client's uploads ``(T, d)``, weights ``(T, m)`` of classes that ever had any, and these classes ``(m,)``."""
    uploads = [get_payload(seen.upload, Entangled) for seen in rounds_of(observations, client)]
    return stack_rounds([u.feature for u in uploads], [u.label_encoding for u in uploads])


def _position(classes: Tensor, target: TargetId) -> int:
    places = (classes == target.label).nonzero()
    if not len(places):
        raise UserError(f"client {target.client} never gave class {target.label} any weight; nothing to unmix")
    return int(places[0])


@dataclass(frozen=True)
class Estimator:
    """A window of the last ``rounds``, with a linear drift or without, or the random walk's Kalman filter of all."""

    rounds: int
    drift: bool = False
    random_walk: bool = False


@dataclass(frozen=True)
class Unmixed:
    """Recovered prototypes.

    Attributes:
        prototypes: ``(m, d)`` float32, as of the last round.
        prediction_error: relative squared error with which the held-out uploads were predicted, as the attacker sees it.
        condition: condition number of the weights ``(T, m)`` that were used; large means that the answer is noise.
    """

    prototypes: Tensor
    prediction_error: float
    condition: float


def unmix(features: Tensor, weights: Tensor, family: Family = "auto") -> Unmixed:
    """Recover the prototypes behind T entangled uploads ``(T, d)`` of one client, in the order of rounds.

    There is a column of the weights ``(T, m)`` per class that the client holds. The estimator that predicts the last uploads
    best is taken; of a single upload the answer is the minimum-norm solution.
    """
    uploads, mixing = features.double().cpu(), weights.double().cpu()
    chosen, error = choose(uploads, mixing, candidates(len(uploads), mixing.shape[1], family))
    used = mixing if chosen.random_walk else mixing[-chosen.rounds :]
    singular = torch.linalg.svdvals(used)
    condition = float(singular[0] / singular[-1]) if len(used) >= mixing.shape[1] and singular[-1] > 0 else math.inf
    return Unmixed(estimate(uploads, mixing, chosen).float(), error, condition)


def candidates(n_rounds: int, n_classes: int, family: Family) -> list[Estimator]:
    """Return the estimators worth trying: windows of 1 to 3 rounds a class and all, drift where 3 a class are there."""
    sizes = {min(n_rounds, math.ceil(factor * n_classes)) for factor in (1, 1.2, 1.5, 2, 3)} | {n_rounds}
    windows = [Estimator(size) for size in sorted(sizes)]
    windows += [Estimator(size, drift=True) for size in sorted(sizes) if size >= 3 * n_classes]
    return of_family(windows, n_rounds, family)


def of_family(windows: list[Estimator], n_rounds: int, family: Family) -> list[Estimator]:
    """Return those of the windows, and of the random walk where there are more than two rounds, that may be chosen."""
    walk = [Estimator(0, random_walk=True)] if n_rounds > 2 else []
    if family == "window":
        return windows
    return (walk or windows) if family == "random_walk" else windows + walk


def choose(features: Tensor, weights: Tensor, options: Sequence[Estimator]) -> tuple[Estimator, float]:
    """Return the first of the estimators that predict the last uploads best, and its prediction error."""
    errors = [prediction_error(features, weights, option) for option in options]
    best = min(range(len(options)), key=errors.__getitem__)
    return options[best], errors[best]


def estimate(features: Tensor, weights: Tensor, estimator: Estimator) -> Tensor:
    """Return the prototypes ``(m, d)`` that an estimator finds as of the last round."""
    if estimator.random_walk:
        return random_walk(features, weights)
    return window(features[-estimator.rounds :], weights[-estimator.rounds :], drift=estimator.drift)


def prediction_error(features: Tensor, weights: Tensor, estimator: Estimator) -> float:
    """Return the relative squared error of predicting the last uploads from those before; infinite for too few."""
    n_rounds = len(features)
    held_out = [t for t in range(max(1, n_rounds - HELD_OUT), n_rounds) if t >= max(estimator.rounds // 2, 1)]
    if not held_out or (estimator.random_walk and min(held_out) < 2):
        return math.inf
    total, scale = 0.0, 0.0
    for t in held_out:
        guess = weights[t] @ estimate(features[:t], weights[:t], estimator)
        total += float((guess - features[t]).square().sum())
        scale += float(features[t].square().sum())
    return total / max(scale, 1e-30)


def window(features: Tensor, weights: Tensor, *, drift: bool = False) -> Tensor:
    """Return the least-squares prototypes ``(m, d)`` of T rounds, the minimum-norm ones where T < m.

    With ``drift`` a constant change of each prototype per round is solved for too; the result is as of the last round.
    """
    design = weights
    if drift:
        age = torch.arange(len(weights), dtype=weights.dtype) - (len(weights) - 1)
        design = torch.cat([weights, age[:, None] * weights], 1)
    # gelsd-like truncation through the pseudo-inverse: equal rows (fixed weights) make the design rank one.
    solution: Tensor = torch.linalg.pinv(design, rtol=1e-8) @ features
    return solution[: weights.shape[1]]


def random_walk(features: Tensor, weights: Tensor) -> Tensor:
    """Return the Kalman filter's prototypes ``(m, d)`` after the last of T rounds.

    All d coordinates share one m x m covariance. In units of the observation noise, the variance of a step and that of the
    start are taken from a grid by the likelihood of the innovations, the noise itself in closed form.
    """
    best: tuple[float, Tensor] | None = None
    for walk in _WALKS:
        for prior in _PRIORS:
            likelihood, found = _filter(features, weights, walk, prior)
            if best is None or likelihood > best[0]:
                best = likelihood, found
    assert best is not None
    return best[1]


def _filter(features: Tensor, weights: Tensor, walk: float, prior: float) -> tuple[float, Tensor]:
    n_rounds, width = features.shape
    n_classes = weights.shape[1]
    # Weights sum to one, so the mean upload is the best guess of any prototype before looking further.
    found = features.mean(0).repeat(n_classes, 1)
    covariance = prior * torch.eye(n_classes, dtype=features.dtype)
    step = walk * torch.eye(n_classes, dtype=features.dtype)
    logs, squares = 0.0, 0.0
    for upload, mixing in zip(features, weights, strict=True):
        covariance = covariance + step
        projected = covariance @ mixing
        spread = float(mixing @ projected) + 1.0
        innovation = upload - mixing @ found
        found = found + torch.outer(projected, innovation) / spread
        covariance = covariance - torch.outer(projected, projected) / spread
        logs += math.log(spread)
        squares += float(innovation.square().sum()) / spread
    noise = max(squares / (n_rounds * width), 1e-30)
    return -0.5 * width * (logs + n_rounds * math.log(noise)), found


def stack_rounds(features: Sequence[Tensor], encodings: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return uploads ``(T, d)``, weights ``(T, m)`` of the classes that ever had weight, and these classes ``(m,)``."""
    weights = torch.stack(list(encodings))
    classes = (weights.abs() > 0).any(0).nonzero().squeeze(1)
    return torch.stack(list(features)), weights[:, classes], classes
