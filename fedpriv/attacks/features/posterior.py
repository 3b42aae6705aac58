"""The posterior of class prototypes from all rounds of a client's mixtures, by one Gaussian process.

FedRE's upload of round t is r_t = sum_c w_tc p_c(t) + noise with known weights that sum to one. In every coordinate alike,

    p_c(t) = l(t) + g(t) (sum_i s_i h_ic(t) + d_c(t)),        g(t) = (t / T)^beta,

where l is what all classes have in common, h_i are shapes that the server knows (rows of the head that it broadcast, class
means of its own images), and d what is a client's own. With D(t) the drift that gathers between t and the last round T, in
which a round's share falls as 1 / t^gamma, the uploads' covariance in units of d's variance is

    K_tu = a (t u / T^2)^b + b' min(D_t, D_u) + g_t g_u (w_t.w_u) (1 + q min(D_t, D_u))
           + [t = u] (nu g_t^2 w_t.w_t + e (t / T)^2b)

and that of p_c(T) with r_t is k_ct = a (t / T)^b + g_t w_tc + [t = T] nu w_tc. The prototypes are sum_i s_i h_ic + k K^-1
(r - sum_i s_i W h_i), the s_i least squares in the metric K^-1. Hyperparameters are those of the highest marginal
likelihood along small grids, from two starts; the overall variance is there in closed form.

Means of auxiliary images are a shape as of the last round alone, and what of early rounds they do not fit looks like
drift. So where such a shape is there, the posterior is the mixture of several, which allow no drift above a bound each,
weighed by their likelihoods as of one coordinate. Directions, which drift least, are read from those of the lower bounds.

Derived here from FedRE's equations 7-12.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.observation import Observation
from fedpriv.wire.payloads import Classifier, find_payload

_MOST_ROUNDS = 60
"""Last uploads that are used; the cost grows with their cube."""

ANY_DRIFT = (10.0,)
"""The bound of drift in a round that allows the whole grid."""

_BOUNDS = (*ANY_DRIFT, 0.1, 0.01)
"""Bounds of drift in a round, of posteriors with shapes as of the last round alone."""

_SWEEPS = 6
_JITTER = 1e-11
_SMALLEST = 1e-300
_LEVEL_ROUNDS = 5
_LEAST_ACTIVITY = 0.1
_LED = 5.0
"""Weight of the directions that training pulls classes along: so many times the relative error that the posterior expects,
of one at most."""

_SHARED = 0.1
"""In the metric in which directions are read: the weight of the spread that recovered classes share; the identity's is
1."""


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


_GROWTHS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
_GRID: dict[str, tuple[float, ...]] = {
    "noise": tuple(10 ** (power / 2) for power in (-14, -12, *range(-10, 3))),
    "common_drift": tuple(10 ** (power / 2) for power in (-16, -13, *range(-10, 3))),
    "per_round": tuple(10 ** (power / 2) for power in (-14, -11, -8, *range(-6, 3))),
    "drift": tuple(10 ** (power / 2) for power in (-14, *range(-12, 3))),
    "level": (1.0, 10.0, 100.0, 1000.0),
    "growth": _GROWTHS,
    "level_growth": (0.0, 0.25, 0.5, 1.0, 1.5),
    "settling": (0.0, 1.0, 2.0, 4.0, 8.0, 12.0),
}
_DRIFTS = ("common_drift", "drift")
_STARTS = (
    Variances(),
    Variances(noise=1e-2, common_drift=1e-2, per_round=0.1, drift=1e-7, growth=0.5, level_growth=0.5),
)


@dataclass(frozen=True)
class Uploads:
    """A client's mixtures ``(T, d)`` float64 in the order of rounds ``(T,)``.

    The weights ``(T, m)`` float64 are of the m classes that ever had any.
    """

    features: Tensor
    weights: Tensor
    rounds: Tensor

    @property
    def times(self) -> Tensor:
        """Rounds over the last one ``(T,)``, in (0, 1]."""
        counted = self.rounds.double().clamp_min(1)
        return counted / counted[-1]

    def last(self, number: int) -> Uploads:
        """Return the newest of them."""
        return Uploads(self.features[-number:], self.weights[-number:], self.rounds[-number:])


@dataclass(frozen=True)
class Shape:
    """Prototypes ``(m, d)`` as expected in the last round, up to a scale, and the uploads ``(T, d)`` that they would make.

    ``leads`` ``(m, d)`` are directions that training pulls classes apart along, where the shape is made of such.
    """

    rows: Tensor
    mixed: Tensor
    leads: Tensor | None = None


@dataclass(frozen=True)
class RoundPosterior:
    """Posterior means ``(m, d)`` of prototypes as of the last round; none below zero where no upload is.

    ``distance`` ``(m,)`` is the one expected from the true prototype (root mean square), ``directions`` ``(m, d)`` are
    those in which each prototype stands out from the client's others, ``scales`` the s_i of the shapes.
    """

    prototypes: Tensor
    distance: Tensor
    directions: Tensor
    variances: Variances
    scales: tuple[float, ...]


def infer(uploads: Uploads, shapes: Sequence[Shape] = (), bounds: Sequence[float] = _BOUNDS) -> RoundPosterior:
    """Return the posterior of a client's prototypes, of the newest 60 uploads, as of the last, with shapes that are known.

    Of the ``bounds`` of drift the first is the only one, where no shape is as of the last round alone.
    """
    last_round_alone = any(shape.leads is None for shape in shapes)
    return _mixture([_infer(uploads, shapes, bound) for bound in (bounds if last_round_alone else bounds[:1])])


def _infer(uploads: Uploads, shapes: Sequence[Shape], most_drift: float) -> tuple[RoundPosterior, Tensor]:
    """Return the posterior that allows so much drift, and the logarithm of its likelihood as of one coordinate."""
    positive = bool((uploads.features >= 0).all() and (uploads.weights >= 0).all())
    spread = activity(uploads.features).sqrt().sqrt() if positive else torch.ones_like(uploads.features[0])
    used = uploads.last(_MOST_ROUNDS)
    cut = [replace(shape, mixed=shape.mixed[-_MOST_ROUNDS:]) for shape in shapes]
    problem = _Problem.of(used, cut, spread)
    known = _likeliest(problem, most_drift)
    weighed = problem.weigh([known])
    scales = weighed.scales[0]
    scaled = list(zip(scales, cut, strict=True))
    growth = (problem.times**known.growth)[:, None]
    left = used.features - sum((scale * (growth * shape.mixed) for scale, shape in scaled), 0)
    led = [(float(scale) * shape.rows, shape.leads) for scale, shape in scaled if shape.leads is not None]
    result = weighed.gains[0] @ left + sum((scale * shape.rows for scale, shape in scaled), 0)
    variance = (weighed.variances[0] * weighed.sizes[0] * spread.square().sum()).clamp_min(0)
    result = result.clamp_min(0) if positive else result
    unsure = min(1.0, float((variance.sqrt() / result.norm(dim=1).clamp_min(_SMALLEST)).median()))
    posterior = RoundPosterior(
        prototypes=result.float(),
        distance=variance.sqrt().float(),
        directions=stand_out(result, led[0] if led else None, _LED * unsure).float(),
        variances=known,
        scales=tuple(scales.tolist()),
    )
    return posterior, weighed.likelihoods[0] / problem.width


def _mixture(weighted: Sequence[tuple[RoundPosterior, Tensor]]) -> RoundPosterior:
    """Return posteriors, with logarithms of their weights, as one with the hyperparameters of the first."""
    parts = [posterior for posterior, _ in weighted]
    if len(parts) == 1:
        return parts[0]
    shares = torch.stack([evidence for _, evidence in weighted]).softmax(0)[:, None]
    prototypes = torch.stack([part.prototypes for part in parts]).double()
    mean = (shares[:, None] * prototypes).sum(0)
    squares = torch.stack([part.distance for part in parts]).double().square() + (prototypes - mean).square().sum(2)
    distance = (shares * squares).sum(0).sqrt().float()
    directions = torch.stack([functional.normalize(part.directions, dim=1) for part in parts[1:]]).mean(0)
    return replace(parts[0], prototypes=mean.float(), distance=distance, directions=directions)


def head_rows(observations: Sequence[Observation], width: int) -> Tensor | None:
    """Return the rows of the head in each broadcast ``(T, C, d)`` float64; None where one is missing, or another width."""
    heads = [find_payload(seen.broadcast, Classifier) for seen in observations]
    rows = [None if head is None else head.state.get("weight") for head in heads]
    known = [row.double().cpu() for row in rows if row is not None and row.dim() == 2 and row.shape[1] == width]
    return torch.stack(known) if known and len(known) == len(rows) and len({row.shape for row in known}) == 1 else None


def shape_of_head(uploads: Uploads, rows: Tensor, classes: Tensor) -> Shape:
    """Return the shape that a head with rows ``(T, C, d)`` gives the classes ``(m,)``: its centred rows.

    Behind a ReLU (no upload below zero) training moves prototypes only as far as a coordinate is active.
    """
    apart = (rows - rows.mean(1, keepdim=True))[:, classes]
    leads = apart[-1]
    if bool((uploads.features >= 0).all()):
        apart = apart * activity(uploads.features).sqrt()
    return Shape(apart[-1], torch.einsum("tm,tmd->td", uploads.weights, apart), leads)


def shape_of_means(uploads: Uploads, means: Tensor) -> Shape:
    """Return the shape of class means of auxiliary images ``(m, d)`` as of the last round."""
    means = means.double()
    return Shape(means, uploads.weights @ means)


def activity(features: Tensor) -> Tensor:
    """Return the activity of each coordinate ``(d,)`` in the newest uploads ``(T, d)``, none below zero; 1 on average.

    Behind a ReLU a coordinate that is hardly ever active differs little between classes: differences go with the root of
    this, which scales the head's rows.
    """
    level = features[-_LEVEL_ROUNDS:].mean(0)
    level = level + _LEAST_ACTIVITY * level.mean()
    return level / level.mean() if float(level.mean()) > 0 else torch.ones_like(level)


def stand_out(prototypes: Tensor, led: tuple[Tensor, Tensor] | None = None, weight: float = 1.0) -> Tensor:
    """Return the directions ``(m, d)`` in which prototypes ``(m, d)`` stand out from each other.

    Differences from the mean are taken times (S / S_mean / 10 + I)^-1, S the second moments of that part which training
    (``led``: prototypes and directions that it was expected to lead to, ``(m, d)`` each) does not explain. To these, of
    length one, come the directions of training, of length ``weight``.
    """
    apart = prototypes - prototypes.mean(0)
    shared = apart if led is None else apart - (led[0] - led[0].mean(0))
    gram = shared @ shared.T
    size = float(gram.trace()) / prototypes.shape[1]
    if size > 0:
        inner = gram + (size / _SHARED) * torch.eye(len(gram), dtype=gram.dtype)
        apart = apart - apart @ shared.T @ torch.linalg.solve(inner, shared)
    if led is None:
        return apart
    return functional.normalize(apart, dim=1) + weight * functional.normalize(led[1] - led[1].mean(0), dim=1)


def _likeliest(problem: _Problem, most_drift: float) -> Variances:
    """Return the hyperparameters of the highest marginal likelihood, along one grid after another, until none gains.

    No drift from one round to the next is above ``most_drift``.
    """
    most = most_drift * (1 + 1e-6)
    grid = {name: [v for v in values if name not in _DRIFTS or v <= most] for name, values in _GRID.items()}
    return max((_ascend(problem, start, grid) for start in _STARTS), key=lambda pair: pair[0])[1]


def _ascend(problem: _Problem, start: Variances, grid: dict[str, list[float]]) -> tuple[float, Variances]:
    best, highest = start, -float("inf")
    for _ in range(_SWEEPS):
        before = highest
        for name, values in grid.items():
            tried = [replace(best, **{name: value}) for value in values]
            likelihoods = problem.weigh(tried).likelihoods
            position = int(likelihoods.argmax())
            if float(likelihoods[position]) > highest:
                best, highest = tried[position], float(likelihoods[position])
        if highest - before < 1e-3:
            break
    return highest, best


@dataclass(frozen=True)
class _Weighed:
    """N choices of hyperparameters: log likelihoods ``(N,)``, scales of shapes ``(N, n)`` and gains ``(N, m, T)``.

    Sizes ``(N,)`` are variances of a class's own part, variances ``(N, m)`` those of the posterior in units of that.
    """

    likelihoods: Tensor
    scales: Tensor
    gains: Tensor
    sizes: Tensor
    variances: Tensor


@dataclass(frozen=True)
class _Problem:
    """The parts of the likelihood: inner products ``(n + 1, n + 1, T, T)`` of uploads and shapes, weights, times, d."""

    products: Tensor
    weights: Tensor
    times: Tensor
    rounds: Tensor
    width: int

    @classmethod
    def of(cls, uploads: Uploads, shapes: Sequence[Shape], spread: Tensor) -> _Problem:
        rows = torch.stack([uploads.features, *(shape.mixed for shape in shapes)]) / spread
        products = torch.einsum("iad,jbd->ijab", rows, rows)
        return cls(products, uploads.weights, uploads.times, uploads.rounds.double(), len(spread))

    def weigh(self, choices: Sequence[Variances]) -> _Weighed:
        """Return likelihood and posterior of every choice."""
        names = [spec.name for spec in fields(Variances)]
        table = torch.tensor([[getattr(choice, name) for name in names] for choice in choices], dtype=torch.float64)
        known = dict(zip(names, table.T, strict=True))
        covariance, cross, prior, growth = self._covariances(known)
        factor = torch.linalg.cholesky(covariance)
        inverse = torch.cholesky_inverse(factor)
        times = torch.cat([torch.ones_like(growth)[:, None], growth[:, None].expand(-1, len(self.products) - 1, -1)], 1)
        moments = torch.einsum("nab,ijab,nia,njb->nij", inverse, self.products, times, times)
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
