"""The attack on entangled uploads: the posterior of class prototypes behind the uploads of all rounds, then inversion.

FedRE's upload of round t is r_t = sum_c w_tc p_c(t) + noise; the label encoding w_t, of sum one, is uploaded in clear.
Weights drawn anew make every round a fresh linear equation in the same prototypes. In every coordinate alike,

    p_c(t) = l(t) + g(t) (sum_i s_i h_ic(t) + d_c(t)),        g(t) = (t / T)^beta,

where l is common to all classes, h_i are shapes that the server knows (rows of the broadcast head, class means of its own
images), and d the client's own. With D(t) the drift from t to the last round T, the uploads' covariance in units of d's is

    K_tu = a (t u / T^2)^b + b' min(D_t, D_u) + g_t g_u (w_t.w_u) (1 + q min(D_t, D_u))
           + [t = u] (nu g_t^2 w_t.w_t + e (t / T)^2b)

and that of p_c(T) with r_t is k_ct = a (t / T)^b + g_t w_tc + [t = T] nu w_tc. The prototypes are sum_i s_i h_ic + k K^-1
(r - sum_i s_i W h_i), the s_i least squares in the metric K^-1. Hyperparameters have the highest marginal likelihood
along small grids. Class means of auxiliary images are a shape of the last round alone, so the posterior is then a mixture
of several with a bound of drift each, weighed by their likelihoods.

**Hidden weights.** Where a client sends only the class of largest weight, the protocol says how weights are drawn.
Prototypes follow from the posterior under expected weights, and weights anew from prototypes: w_t maximises

    -|r_t - w P|^2 / (2 s_t) - (w - m_t) C_t^-1 (w - m_t)' / 2    over distributions w,

with m_t and C_t of simulated draws with that largest entry, and s_t the mean square that is left. Derived here from FedRE's
equations 7-12.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import partial
from typing import Annotated, Literal, NamedTuple

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.algebra.matrices import least_squares_in_simplex
from fedpriv.attacks.contract import AttackProblem, Same, Trained
from fedpriv.attacks.features.base import Recovered, RecoverThenInvert, as_uploads
from fedpriv.attacks.inputs.targets import represent, rounds_of
from fedpriv.attacks.observation import Knowledge, Needs, Observation
from fedpriv.uploads.kinds import MIXTURES
from fedpriv.uploads.payloads import Classifier, Entangled, find_payload, get_payload
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator

_MOST_ROUNDS = 60  # last uploads that are used; the cost grows with their cube
ANY_DRIFT = (10.0,)  # the bound of drift in a round that allows the whole grid
_BOUNDS = (*ANY_DRIFT, 0.1, 0.01)  # of posteriors with shapes as of the last round alone
_SWEEPS, _HIDDEN_SWEEPS = 6, 2  # along all grids at most; of finding hidden weights from prototypes
_JITTER, _SMALLEST, _LEVEL_ROUNDS, _LEAST_ACTIVITY = 1e-11, 1e-300, 5, 0.1

_DRAWS, _RIDGE, _REFINEMENTS, _LEAST_LEFT = 4000, 1e-4, 3, 1e-6
"""Of hidden weights: simulated draws, ridge on their covariance, turns of weights and what is left, least part left."""


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
    most_targets = 96
    summary = "class prototypes recovered from several entangled rounds, then inverted"
    version = 9
    targets = MIXTURES
    needs = Needs(min_rounds=2)

    def recover(self, problem: AttackProblem) -> Recovered:
        """Unmix every attacked client's prototypes."""
        seen, known, kept = problem.observations, problem.knowledge, problem.trained
        unmixed = {
            k: kept.get(("unmixed", self, k, Same(seen), Same(known)), partial(self.unmixed, seen, k, known, kept))
            for k in problem.clients
        }
        places, rows = [], []
        for target in problem.targets:
            posterior, classes = unmixed[target.client]
            match = (classes == target.label).nonzero()
            if not len(match):
                raise UserError(f"client {target.client} never gave class {target.label} any weight; nothing to unmix")
            places.append(replace(target, index=int(match[0])))
            rows.append((posterior, int(match[0])))
        distance = [posterior.distance[row] for posterior, row in rows if posterior.distance is not None]
        return Recovered(
            as_uploads([posterior.prototypes[row] for posterior, row in rows], places),
            tuple(places),
            distance=torch.stack(distance) if distance else None,
        )

    def unmixed(
        self, observations: Sequence[Observation], client: int, knowledge: Knowledge, kept: Trained | None = None
    ) -> tuple[RoundPosterior, Tensor]:
        """Return the posterior of a client's prototypes and their classes ``(m,)``; ``kept``: a memo."""
        rounds = rounds_of(observations, client)
        sent = [get_payload(seen.upload, Entangled) for seen in rounds]
        weights = torch.stack([upload.label_encoding for upload in sent])
        classes = (weights.abs() > 0).any(0).nonzero().squeeze(1)  # that ever had any
        features = torch.stack([upload.feature for upload in sent]).double().cpu()
        numbers = torch.tensor([seen.round for seen in rounds])
        uploads = Uploads(features, weights[:, classes].double().cpu(), numbers)
        shapes = []
        heads = [find_payload(seen.broadcast, Classifier) for seen in rounds]
        rows = [head.state["weight"].double().cpu() for head in heads if head is not None and "weight" in head.state]
        of_one_shape = len(rows) == len(rounds) and len({row.shape for row in rows}) == 1 and rows[0].dim() == 2
        # A head may be of another width, and know fewer classes than the client mixes.
        if of_one_shape and rows[0].shape[1] == features.shape[1] and int(classes.max()) < len(rows[0]):
            shapes.append(shape_of_head(features, torch.stack(rows), classes))
        images, labels = knowledge.public_images, knowledge.public_labels
        if images is not None and labels is not None:
            auxiliary = represent(knowledge, client, images, kept).double()
            shapes.append(Shape(prior_of_images(auxiliary, labels.cpu(), knowledge.n_classes)[classes]))
        if self.zeros == "missing":
            return infer_by_block(uploads, shapes), classes
        return infer_hidden(uploads, shapes)[0] if self.weights == "hidden" else infer(uploads, shapes), classes


def prior_of_images(features: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Return the class means ``(C, d)`` of the attacker's own images; their overall mean for a class without any."""
    counts = torch.bincount(labels, minlength=n_classes).to(features)
    sums = torch.zeros(n_classes, features.shape[1]).to(features).index_add(0, labels, features)
    return torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], features.mean(0))


@dataclass(frozen=True)
class Variances:
    """Hyperparameters: e, b', nu, q, a (variances in units of that of a class's own part), beta, b and gamma."""

    noise: float = 1e-3
    common_drift: float = 1e-3
    per_round: float = 1e-4
    drift: float = 1e-5
    level: float = 10.0
    growth: float = 0.0
    level_growth: float = 0.0
    settling: float = 0.0

    @property
    def row(self) -> Tensor:
        """Hyperparameters ``(8,)`` in this order."""
        return torch.tensor(astuple(self), dtype=torch.float64)


_NAMES = [spec.name for spec in fields(Variances)]
_GRID: dict[str, tuple[float, ...]] = {
    "noise": tuple(10 ** (power / 2) for power in (-14, -12, *range(-10, 3))),
    "common_drift": tuple(10 ** (power / 2) for power in (-16, -13, *range(-10, 3))),
    "per_round": tuple(10 ** (power / 2) for power in (-14, -11, -8, *range(-6, 3))),
    "drift": tuple(10 ** (power / 2) for power in (-14, *range(-12, 3))),
    "level": (1.0, 10.0, 100.0, 1000.0),
    "growth": (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0),
    "level_growth": (0.0, 0.25, 0.5, 1.0, 1.5),
    "settling": (0.0, 1.0, 2.0, 4.0, 8.0, 12.0),
}
_STARTS = (
    Variances(),
    Variances(noise=1e-2, common_drift=1e-2, per_round=0.1, drift=1e-7, growth=0.5, level_growth=0.5),
)


@dataclass(frozen=True)
class Uploads:
    """A client's mixtures in the order of rounds, float64."""

    features: Tensor  # (T, d)
    weights: Tensor  # (T, m) of the m classes that ever had any
    rounds: Tensor  # (T,)


@dataclass(frozen=True)
class Shape:
    """Prototypes as expected, up to a scale."""

    rows: Tensor  # (m, d) in the last round
    by_round: Tensor | None = None  # (T, m, d) in every round, where known

    def mixed(self, weights: Tensor) -> Tensor:
        """Return the uploads ``(T, d)`` that it would make; of fewer rounds than are known the newest."""
        if self.by_round is None:
            return weights @ self.rows
        return torch.einsum("tm,tmd->td", weights, self.by_round[-len(weights) :])


@dataclass(frozen=True)
class RoundPosterior:
    """Posterior of prototypes as of the last round, float32; none below zero where no upload is."""

    prototypes: Tensor  # (m, d) means
    distance: Tensor | None = None  # (m,) expected from the true prototype (root mean square); None of blocks


def infer(uploads: Uploads, shapes: Sequence[Shape] = (), bounds: Sequence[float] = _BOUNDS) -> RoundPosterior:
    """Return the posterior of a client's prototypes, of the newest 60 uploads, as of the last, with known shapes."""
    last_round_alone = any(shape.by_round is None for shape in shapes)
    parts = _infer(uploads, shapes, bounds if last_round_alone else bounds[:1])
    means, distances, evidence = (torch.stack(values) for values in zip(*parts, strict=True))
    if len(parts) == 1:
        return RoundPosterior(means[0].float(), distances[0].float())
    shares = evidence.softmax(0)[:, None]
    mean = (shares[:, None] * means).sum(0)
    squares = distances.square() + (means - mean).square().sum(2)
    return RoundPosterior(mean.float(), (shares * squares).sum(0).sqrt().float())


def _infer(uploads: Uploads, shapes: Sequence[Shape], bounds: Sequence[float]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return for each bound of drift the posterior, and the logarithm of its likelihood as of one coordinate."""
    positive = bool((uploads.features >= 0).all() and (uploads.weights >= 0).all())
    spread = activity(uploads.features).sqrt().sqrt() if positive else torch.ones_like(uploads.features[0])
    used = Uploads(*(getattr(uploads, spec.name)[-_MOST_ROUNDS:] for spec in fields(Uploads)))
    mixed = [shape.mixed(used.weights) for shape in shapes]
    problem, result = _Problem(used, mixed, spread), []
    known = _likeliest(problem, bounds)
    weighed = problem.weigh(known)
    for number, choice in enumerate(known):
        scales, growth = weighed.scales[number], (problem.times ** choice[_NAMES.index("growth")])[:, None]
        left = used.features - sum((scale * (growth * item) for scale, item in zip(scales, mixed, strict=True)), 0)
        scaled = [scale * shape.rows for scale, shape in zip(scales, shapes, strict=True)]
        mean = weighed.gains[number] @ left + sum(scaled, 0)
        variance = (weighed.variances[number] * weighed.sizes[number] * spread.square().sum()).clamp_min(0)
        mean = mean.clamp_min(0) if positive else mean
        result.append((mean, variance.sqrt(), weighed.likelihoods[number] / problem.width))
    return result


def infer_by_block(uploads: Uploads, shapes: Sequence[Shape]) -> RoundPosterior:
    """Return the prototypes of coordinates that each round shows some of; zero where none does."""
    prototypes = torch.zeros(uploads.weights.shape[1], uploads.features.shape[1])
    patterns, member = (uploads.features != 0).T.unique(dim=0, return_inverse=True)
    for number, shown in enumerate(patterns):
        if not bool(shown.any()):
            continue
        columns = (member == number).nonzero().flatten()
        part = Uploads(uploads.features[shown][:, columns], uploads.weights[shown], uploads.rounds[shown])
        cut = []
        for shape in shapes:
            every = None if shape.by_round is None else shape.by_round[shown][:, :, columns]
            cut.append(Shape(shape.rows[:, columns], every))
        prototypes[:, columns] = infer(part, cut).prototypes
    return RoundPosterior(prototypes)


def shape_of_head(features: Tensor, rows: Tensor, classes: Tensor) -> Shape:
    """Return the shape that a head with rows ``(T, C, d)`` gives the classes ``(m,)``: its centred rows.

    Behind a ReLU (no upload ``(T, d)`` below zero) training moves prototypes only as far as a coordinate is active.
    """
    apart = (rows - rows.mean(1, keepdim=True))[:, classes]
    if bool((features >= 0).all()):
        apart = apart * activity(features).sqrt()
    return Shape(apart[-1], apart)


def activity(features: Tensor) -> Tensor:
    """Return the activity of each coordinate ``(d,)`` in the newest uploads ``(T, d)``, none below zero; 1 on average.

    Behind a ReLU a coordinate that is hardly ever active differs little between classes: differences go with the root of
    this, which scales the head's rows.
    """
    level = features[-_LEVEL_ROUNDS:].mean(0)
    level = level + _LEAST_ACTIVITY * level.mean()
    return level / level.mean() if float(level.mean()) > 0 else torch.ones_like(level)


def _likeliest(problem: _Problem, bounds: Sequence[float]) -> Tensor:
    """Return for each bound of drift in a round the hyperparameters ``(8,)`` of the highest marginal likelihood.

    They are sought along one grid after another, until none gains, from every start.
    """
    climbs = [_Climb(start.row, bound * (1 + 1e-6)) for bound in bounds for start in _STARTS]
    for _ in range(_SWEEPS):
        going = [climb for climb in climbs if climb.gained >= 1e-3]
        if not going:
            break
        before = [climb.highest for climb in going]
        for name, values in _GRID.items():
            tried = [climb.choices(name, values) for climb in going]
            likelihoods = problem.weigh(torch.cat(tried)).likelihoods
            for climb, choices, part in zip(going, tried, likelihoods.split([*map(len, tried)]), strict=True):
                position = int(part.argmax())
                if float(part[position]) > climb.highest:
                    climb.best, climb.highest = choices[position], float(part[position])
        for climb, highest in zip(going, before, strict=True):
            climb.gained = climb.highest - highest
    of_bounds = [climbs[at : at + len(_STARTS)] for at in range(0, len(climbs), len(_STARTS))]
    return torch.stack([max(of_bound, key=lambda climb: climb.highest).best for of_bound in of_bounds])


@dataclass
class _Climb:
    """The way up from one start, where no drift is above ``most``."""

    best: Tensor  # (8,)
    most: float
    highest: float = -math.inf
    gained: float = math.inf  # along all grids the last time

    def choices(self, name: str, values: Sequence[float]) -> Tensor:
        """Return the best so far with each value of one hyperparameter that is allowed ``(n, 8)``."""
        allowed = [value for value in values if not name.endswith("drift") or value <= self.most]
        rows = self.best.repeat(len(allowed), 1)
        rows[:, _NAMES.index(name)] = torch.tensor(allowed, dtype=rows.dtype)
        return rows


class _Weighed(NamedTuple):
    """N choices of hyperparameters."""

    likelihoods: Tensor  # (N,) logarithms
    scales: Tensor  # (N, n) of shapes
    gains: Tensor  # (N, m, T)
    sizes: Tensor  # (N,) variances of a class's own part
    variances: Tensor  # (N, m) of the posterior, in units of that


class _Problem:
    """The parts of the likelihood: inner products ``(n + 1, n + 1, T, T)`` of uploads and shapes, weights, times, d."""

    def __init__(self, uploads: Uploads, mixed: Sequence[Tensor], spread: Tensor) -> None:
        rows = torch.stack([uploads.features, *mixed]) / spread
        self.products = torch.einsum("iad,jbd->ijab", rows, rows)
        self.weights, self.rounds, self.width = uploads.weights, uploads.rounds.double(), len(spread)
        counted = self.rounds.clamp_min(1)
        self.times = counted / counted[-1]

    def weigh(self, choices: Tensor) -> _Weighed:
        """Return likelihood and posterior of every choice ``(N, 8)``."""
        covariance, cross, prior, growth = self._covariances(dict(zip(_NAMES, choices.T, strict=True)))
        factor = torch.linalg.cholesky(covariance)
        inverse = torch.cholesky_inverse(factor)
        # Shapes grow over the rounds, uploads are as they are.
        grown = inverse * growth[:, None]
        levels = torch.stack([inverse, grown, grown * growth[:, :, None]]).flatten(2)
        upload, cross_terms, shapes = levels @ self.products.flatten(2).flatten(0, 1).T
        moments = shapes.unflatten(1, self.products.shape[:2])
        moments[:, 0] = cross_terms.unflatten(1, self.products.shape[:2])[:, 0]
        moments[:, 0, 0] = upload[:, 0]
        moments[:, 1:, 0] = moments[:, 0, 1:]
        scales, fit = _least_squares(moments)
        n_uploads = len(self.weights)
        sizes = (fit / (n_uploads * self.width)).clamp_min(_SMALLEST)
        halves = factor.diagonal(dim1=1, dim2=2).log().sum(1) + 0.5 * n_uploads * sizes.log()
        gain = cross @ inverse
        return _Weighed(-self.width * halves, scales, gain, sizes, prior - (gain * cross).sum(2))

    def _covariances(self, known: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the uploads' ``(N, T, T)``, theirs with prototypes ``(N, m, T)``, of these ``(N, m)``, and g."""
        item = {name: values[:, None] for name, values in known.items()}
        growth, level = self.times ** item["growth"], self.times ** item["level_growth"]
        gaps = self.rounds.diff() * self.times[:-1] ** -item["settling"]
        gathered = torch.cat([gaps.flip(1).cumsum(1).flip(1), torch.zeros_like(growth[:, :1])], 1)
        drifted = torch.minimum(gathered[:, :, None], gathered[:, None])
        alike = self.weights @ self.weights.T
        square = {name: values[:, None] for name, values in item.items()}
        covariance = (
            square["level"] * level[:, :, None] * level[:, None]
            + square["common_drift"] * drifted
            + growth[:, :, None] * growth[:, None] * alike * (1 + square["drift"] * drifted)
        )
        alone = item["per_round"] * growth**2 * alike.diagonal() + item["noise"] * level**2
        # Relative to each upload's own variance: drift that falls steeply makes those of early ones very large.
        alone = alone + _JITTER * (covariance.diagonal(dim1=1, dim2=2) + alone)
        cross = (item["level"] * level)[:, None] + self.weights.T * growth[:, None]
        cross[:, :, -1] += item["per_round"] * self.weights[-1]
        prior = (item["level"] + 1 + item["per_round"]).expand(-1, self.weights.shape[1])
        return covariance + torch.diag_embed(alone), cross, prior, growth


def _least_squares(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scales ``(N, n)`` of shapes and the squares ``(N,)`` left, of second moments with the uploads first."""
    moment, mixed, shapes = moments[:, 0, 0], moments[:, 1:, 0], moments[:, 1:, 1:]
    ridge = torch.diag_embed(1e-9 * shapes.diagonal(dim1=1, dim2=2) + _SMALLEST)
    scales = torch.linalg.solve(shapes + ridge, mixed[..., None])[..., 0]
    left = moment - (scales * mixed).sum(1)
    return scales, left.clamp_min(1e-14 * moment.clamp_min(_SMALLEST))


def infer_hidden(sent: Uploads, shapes: Sequence[Shape] = ()) -> tuple[RoundPosterior, Tensor]:
    """Return the posterior of prototypes behind uploads with what was sent of weights, and the weights found ``(T, m)``."""
    means, spreads = expected_weights(sent.weights)
    guesses = [shape.rows for shape in shapes if shape.by_round is None]
    if guesses:
        weights = _likely_weights(sent.features, guesses[0], torch.zeros(len(guesses[0])), means, spreads)
        # Errors of weights look like drift as well; posteriors that allow none would take them for prototypes.
        return infer(replace(sent, weights=weights), shapes, ANY_DRIFT), weights
    weights, result = means, infer(replace(sent, weights=means), shapes)
    for _ in range(_HIDDEN_SWEEPS if sent.weights.shape[1] > 1 else 0):
        assert result.distance is not None
        weights = _likely_weights(sent.features, result.prototypes, result.distance, means, spreads)
        result = infer(replace(sent, weights=weights), shapes)
    return result, weights


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
    precision = torch.linalg.inv(spreads + _RIDGE / n_classes**2 * torch.eye(n_classes, dtype=torch.float64))
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
