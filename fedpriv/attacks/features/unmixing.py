"""The attacks on entangled uploads: recover the class prototypes behind the mixtures, then invert those.

FedRE's upload of round t is r_t = sum_c w_tc p_c(t), and the label encoding w_t is uploaded in clear. Re-sampled weights
make every round a fresh linear equation in the same prototypes. ``unmix`` takes together all rounds, the rows of the head
that the server broadcasts, and the class means of its own images (:mod:`fedpriv.attacks.features.posterior`).

**Hidden weights.** Where a client sends only which weight is the largest, weights are latent: the protocol says how they are
drawn, u_c / sum_k u_k with u uniform. Prototypes follow from the posterior under expected
weights, and weights anew from prototypes: w_t maximises

    -|r_t - w P|^2 / (2 s_t) - (w - m_t) C_t^-1 (w - m_t)' / 2    over distributions w,

with mean m_t and covariance C_t of simulated draws with the largest entry that was sent, and s_t the mean square that is
left, what is not known of w and P included. Own images' class means are the first prototypes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.algebra.matrices import least_squares_in_simplex
from fedpriv.attacks.contract import AttackProblem, Trained
from fedpriv.attacks.features.base import Recovered, RecoverThenInvert, as_uploads
from fedpriv.attacks.features.posterior import (
    ANY_DRIFT,
    RoundPosterior,
    Shape,
    Uploads,
    head_rows,
    infer,
    shape_of_head,
    shape_of_means,
)
from fedpriv.attacks.inputs.extractors import represent
from fedpriv.attacks.inputs.targets import rounds_of
from fedpriv.attacks.observation import Knowledge, Needs, Observation, TargetId
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator
from fedpriv.wire.kinds import MIXTURES
from fedpriv.wire.payloads import Entangled, get_payload

RIDGES = (*(10.0**power for power in range(-6, 3)), math.inf)

_SWEEPS = 2
"""Times that hidden weights are found from prototypes; more changed nothing where it was tried."""

_DRAWS = 4000
_RIDGE = 1e-4
_REFINEMENTS = 3
_LEAST_LEFT = 1e-6

Shapes = Callable[[Uploads], Sequence[Shape]]
"""Makes the shapes of prototypes, which depend on the weights."""


@dataclass(frozen=True, kw_only=True)
class UnmixedInversion(RecoverThenInvert):
    """Unmix a client's prototypes from all rounds seen, then invert each.

    A target is one class of one client (``TargetId.label``), as of the last round.

    Attributes:
        weights: ``sent`` as label encodings, or ``hidden``: encodings name the class of largest weight at most, and weights
            are found with the prototypes (the answer to ``hide-labels``).
        zeros: ``sent``; or ``missing``: a coordinate that is zero was not sent in that round (the answer to ``diagonal``),
            and coordinates are unmixed from the rounds that show them.
    """

    weights: Literal["sent", "hidden"] = "sent"
    zeros: Literal["sent", "missing"] = "sent"
    iterations: Annotated[int, Ge(1)] = 100

    name = "unmix"
    summary = "class means unmixed from many rounds of mixtures, then inverted"
    version = 8
    targets = MIXTURES
    needs = Needs(min_rounds=2)

    def recover(self, problem: AttackProblem) -> Recovered:
        """Unmix every attacked client's prototypes."""
        seen, knowledge = problem.observations, problem.knowledge
        unmixed = {client: self.unmixed(seen, client, knowledge, problem.trained) for client in problem.clients}
        places = tuple(replace(t, index=_position(unmixed[t.client].classes, t)) for t in problem.targets)
        rows = [(unmixed[position.client], position.index) for position in places]
        distance = [result.distance[row] for result, row in rows if result.distance is not None]
        directions = [results.directions[row] for results, row in rows if results.directions is not None]
        return Recovered(
            as_uploads([outcome.prototypes[row] for outcome, row in rows], places),
            places,
            distance=torch.stack(distance) if distance else None,
            directions=torch.stack(directions) if directions else None,
        )

    def unmixed(
        self, observations: Sequence[Observation], client: int, knowledge: Knowledge, kept: Trained | None = None
    ) -> Unmixed:
        """Return a client's prototypes; ``kept``: a memo."""
        features, weights, classes = uploads_of(observations, client)
        rounds = rounds_of(observations, client)
        numbers = torch.tensor([seen.round for seen in rounds])
        uploads = Uploads(features.double().cpu(), weights.double().cpu(), numbers)
        rows = head_rows(rounds, features.shape[1])
        if rows is not None and int(classes.max()) >= rows.shape[1]:
            rows = None  # of a head that knows fewer classes than the client mixes
        means = _means_of_images(knowledge, client, kept, torch.float64)

        def shapes(mixed: Uploads) -> list[Shape]:
            of_head = [] if rows is None else [shape_of_head(mixed, rows, classes)]
            return of_head + ([] if means is None else [shape_of_means(mixed, means[classes])])

        if self.zeros == "missing":
            return Unmixed(unmix_by_block(uploads, shapes), classes)
        hidden = self.weights == "hidden"
        result = infer_hidden(uploads, shapes)[0] if hidden else infer(uploads, shapes(uploads))
        return Unmixed(result.prototypes, classes, result.distance, result.directions)


@dataclass(frozen=True)
class Unmixed:
    """The prototypes ``(m, d)`` float32 of a client's classes ``(m,)``, as of the last round.

    Expected distances ``(m,)`` and directions ``(m, d)`` in which each stands out are None of blocks.
    """

    prototypes: Tensor
    classes: Tensor
    distance: Tensor | None = None
    directions: Tensor | None = None


def _means_of_images(knowledge: Knowledge, client: int, kept: Trained | None, dtype: torch.dtype) -> Tensor | None:
    """Return the class means ``(C, d)`` of the attacker's own images; None where there are none."""
    images, labels = knowledge.public_images, knowledge.public_labels
    if images is None or labels is None:
        return None
    return prior_of_images(represent(knowledge, client, images, kept).to(dtype), labels.cpu(), knowledge.n_classes)


def unmix_by_block(uploads: Uploads, shapes: Shapes) -> Tensor:
    """Return the prototypes ``(m, d)`` of coordinates that each round shows some of; zero where none does."""
    prototypes = torch.zeros(uploads.weights.shape[1], uploads.features.shape[1])
    patterns, member = (uploads.features != 0).T.unique(dim=0, return_inverse=True)
    whole = shapes(uploads)
    for number, shown in enumerate(patterns):
        if not bool(shown.any()):
            continue
        columns = (member == number).nonzero().flatten()
        part = Uploads(uploads.features[shown][:, columns], uploads.weights[shown], uploads.rounds[shown])
        cut = []
        for shape in whole:
            leads = None if shape.leads is None else shape.leads[:, columns]
            cut.append(Shape(shape.rows[:, columns], shape.mixed[shown][:, columns], leads))
        prototypes[:, columns] = infer(part, cut).prototypes
    return prototypes


def uploads_of(observations: Sequence[Observation], client: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a client's uploads ``(T, d)``, weights ``(T, m)`` of classes that ever had any, and these classes ``(m,)``."""
    uploads = [get_payload(seen.upload, Entangled) for seen in rounds_of(observations, client)]
    weights = torch.stack([upload.label_encoding for upload in uploads])
    classes = (weights.abs() > 0).any(0).nonzero().squeeze(1)
    return torch.stack([upload.feature for upload in uploads]), weights[:, classes], classes


def _position(classes: Tensor, target: TargetId) -> int:
    places = (classes == target.label).nonzero()
    if not len(places):
        raise UserError(f"client {target.client} never gave class {target.label} any weight; nothing to unmix")
    return int(places[0])


def prior_of_images(features: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Return the class means ``(C, d)`` of the attacker's own images; their overall mean for a class without any."""
    counts = torch.bincount(labels, minlength=n_classes).to(features)
    sums = torch.zeros(n_classes, features.shape[1]).to(features).index_add(0, labels, features)
    return torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], features.mean(0))


def prior_of_others(features: Tensor, weights: Tensor) -> Tensor:
    """Return prototypes ``(C, d)`` that uploads ``(K, d)`` of other clients, with weights ``(K, C)``, have in common."""
    uploads, mixing = features.double(), weights.double()
    ridge = best_ridge(uploads, mixing) if len(uploads) > 2 else math.inf
    return ridge_regression(uploads, mixing, ridge).float()


def best_ridge(uploads: Tensor, mixing: Tensor) -> float:
    """Return the ridge that predicts each of the uploads ``(K, d)`` best from the others."""
    errors = dict.fromkeys(RIDGES, 0.0)
    for left in range(len(uploads)):
        others = torch.arange(len(uploads)) != left
        for ridge in RIDGES:
            guess = mixing[left] @ ridge_regression(uploads[others], mixing[others], ridge)
            errors[ridge] += float((guess - uploads[left]).square().sum())
    return min(errors, key=errors.__getitem__)


def ridge_regression(uploads: Tensor, mixing: Tensor, ridge: float) -> Tensor:
    """Return prototypes ``(C, d)`` behind uploads ``(K, d)`` with weights ``(K, C)``, drawn to the uploads' mean."""
    start = uploads.mean(0).repeat(mixing.shape[1], 1)
    if math.isinf(ridge):
        return start
    gram = mixing @ mixing.T + ridge * torch.eye(len(mixing), dtype=mixing.dtype)
    solved: Tensor = start + mixing.T @ torch.linalg.solve(gram, uploads - mixing @ start)
    return solved


# ---------------------------------------------------------------- hidden weights


def infer_hidden(sent: Uploads, shapes: Shapes) -> tuple[RoundPosterior, Tensor]:
    """Return the posterior of prototypes behind uploads whose weights are what was sent of them, and the weights found.

    The weights ``(T, m)`` are float64 distributions.
    """
    means, spreads = expected_weights(sent.weights)
    guesses = [shape.rows for shape in shapes(sent) if shape.leads is None]
    if guesses:
        weights = _likely_weights(sent.features, guesses[0], torch.zeros(len(guesses[0])), means, spreads)
        uploads = replace(sent, weights=weights)
        # Errors of weights look like drift as well; posteriors that allow none would take them for prototypes.
        return infer(uploads, shapes(uploads), ANY_DRIFT), weights
    uploads = replace(sent, weights=means)
    result = infer(uploads, shapes(uploads))
    for _ in range(_SWEEPS if sent.weights.shape[1] > 1 else 0):
        weights = _likely_weights(sent.features, result.prototypes, result.distance, means, spreads)
        uploads = replace(sent, weights=weights)
        result = infer(uploads, shapes(uploads))
    return result, uploads.weights


def expected_weights(sent: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean ``(T, m)`` and covariance ``(T, m, m)`` of weights, given encodings ``(T, m)`` of their largest."""
    n_classes = sent.shape[1]
    draws = torch.rand(_DRAWS, n_classes, generator=generator(0, "hidden weights"), dtype=torch.float64)
    draws = draws / draws.sum(1, keepdim=True)
    largest = draws.argmax(1, keepdim=True)
    means, spreads = [], []
    for top in sent.argmax(1).tolist():
        swapped = draws.scatter(1, largest, draws[:, [top]]).index_copy(1, torch.tensor([top]), draws.amax(1)[:, None])
        means.append(swapped.mean(0))
        spreads.append(torch.cov(swapped.T).view(n_classes, n_classes))
    return torch.stack(means), torch.stack(spreads)


def _likely_weights(features: Tensor, known: Tensor, distance: Tensor, means: Tensor, spreads: Tensor) -> Tensor:
    """Return the likeliest weights ``(T, m)`` of mixtures ``(T, d)`` of prototypes ``(m, d)``, known up to a distance."""
    n_classes, width = known.shape
    prototypes = known.double()
    ridge = _RIDGE / n_classes**2 * torch.eye(n_classes, dtype=torch.float64)
    precision = torch.linalg.inv(spreads + ridge)
    expected = torch.einsum("tij,tj->ti", precision, means)
    gram, seen = prototypes @ prototypes.T, features @ prototypes.T
    doubt = distance.double().square() / width
    least = _LEAST_LEFT * features.square().mean().clamp_min(1e-30)
    weights = means
    left = (features - means @ prototypes).square().mean(1).clamp_min(least)
    for _ in range(_REFINEMENTS):
        curvature = gram / left[:, None, None] + precision
        weights = least_squares_in_simplex(curvature, seen / left[:, None] + expected)
        unknown = torch.einsum("tij,ji->t", torch.linalg.inv(curvature), gram) / width
        left = (features - weights @ prototypes).square().mean(1) + unknown + weights.square() @ doubt
        left = left.clamp_min(least)
    return weights
