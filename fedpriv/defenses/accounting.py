"""The privacy cost of Gaussian noise: Renyi accounting by opacus over many releases, and the exact cost of a mechanism.

A release that moves by at most D in L2 norm between neighbours, with noise of standard deviation z D on every entry, is
a Gaussian mechanism of noise multiplier z. A sampling rate below 1 is for DP-SGD, whose batches are Poisson samples.
Balle and Wang, "Improving the Gaussian mechanism for differential privacy" (ICML 2018), theorem 8: it is (epsilon,
delta)-differentially private exactly if

    Phi(m / 2 - epsilon / m) - e^epsilon Phi(-m / 2 - epsilon / m) <= delta,    m = 1 / z.

T such releases are one with m sqrt(T) (Dong, Roth and Su, "Gaussian differential privacy", 2019, corollary 3.3).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import lru_cache

from fedpriv.util.errors import UserError

ACCOUNTANT = "Renyi DP (opacus RDPAccountant)"

_HIGH_ORDERS = (72.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0)
"""Beyond opacus's own: strong noise has its best order up here."""

_NOISE = 1e-100, 1e6
"""Weaker noise protects nothing and is beyond float arithmetic; stronger noise is accounted as the larger one."""


@lru_cache(maxsize=256)
def epsilon(noise_multiplier: float, steps: int, delta: float, sample_rate: float = 1.0) -> float:
    """Return the epsilon of (epsilon, delta) differential privacy after a number of releases.

    Args:
        noise_multiplier: standard deviation of the noise over the L2 sensitivity, > 0.
        steps: releases, >= 1.
        delta: in (0, 1).
        sample_rate: probability that a record takes part in a release, in (0, 1].
    """
    if not noise_multiplier >= _NOISE[0]:
        raise UserError(
            "noise this weak protects nothing, and its epsilon cannot be computed: "
            f"noise_multiplier={noise_multiplier:.3g}; take at least {_NOISE[0]:g}, or a smaller epsilon"
        )
    try:
        from opacus.accountants import RDPAccountant
    except ImportError as error:
        raise UserError(
            "accounting for differential privacy needs opacus, which is not installed; "
            "install it with: pip install 'fedpriv[dp]'"
        ) from error
    accountant = RDPAccountant()
    accountant.history = [(min(noise_multiplier, _NOISE[1]), sample_rate, steps)]
    with warnings.catch_warnings():  # that the best order is the first or last one
        warnings.simplefilter("ignore")
        spent = float(accountant.get_epsilon(delta, alphas=[*RDPAccountant.DEFAULT_ALPHAS, *_HIGH_ORDERS]))
    return max(spent, 0.0)  # so little is spent that the bound falls below zero


@lru_cache(maxsize=256)
def noise_multiplier_for(target: float, delta: float, steps: int, sample_rate: float = 1.0) -> float:
    """Return the least noise multiplier, within a hundredth of a per cent, that keeps epsilon at or below ``target``."""
    high = 1.0
    while epsilon(high, steps, delta, sample_rate) > target:
        high *= 2
        if high > 2.0**40:
            raise UserError(
                f"epsilon={target:g} with delta={delta:g} over {steps} releases is below what Renyi accounting can "
                "certify; ask for a larger epsilon"
            )
    low = 0.0
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if epsilon(middle, steps, delta, sample_rate) <= target else (middle, high)
    return high


def refuse_two_targets(defense: str, noise_multiplier: float | None, target: float | None) -> None:
    """Check that exactly one of noise multiplier and epsilon is given."""
    if (noise_multiplier is None) == (target is None):
        raise UserError(
            f"options of defense {defense}: noise_multiplier, epsilon: give exactly one of them, for example epsilon=8"
        )


_PRECISION = 1e-12


@dataclass(frozen=True)
class ImpliedEpsilon:
    """An epsilon as it is claimed of one release, and as it follows from what is done to an upload."""

    claimed: float  # as configured
    delta: float
    releases: int  # rounds in which the client sends, T >= 1
    deviation: float  # of the noise, in units of the update
    assumed_sensitivity: float  # D from which the noise was computed
    sensitivity: float  # 2 C, by which an update clipped to C can really move
    once: float  # epsilon that follows for one release; ``math.inf`` without noise
    overall: float  # for all releases together

    @property
    def follows(self) -> bool:
        """True if one release keeps what is claimed of it."""
        return self.once <= self.claimed * (1 + _PRECISION)

    @property
    def words(self) -> str:
        """One sentence: both figures, and why they differ."""
        text = (
            f"epsilon {self.claimed:.4g} is claimed of each upload (delta {self.delta:g}); clip and noise imply "
            f"{_figure(self.once)} (update clipped to {self.sensitivity / 2:.4g}, so it moves by up to "
            f"{self.sensitivity:.4g}; noise of standard deviation {self.deviation:.4g}, computed for "
            f"{self.assumed_sensitivity:.4g})"
        )
        if self.releases > 1:
            text += f", and {_figure(self.overall)} over {self.releases} uploads of one client"
        return text


def implied_epsilon(
    clipping_norm: float, sensitivity: float, epsilon: float, delta: float, releases: int = 1
) -> ImpliedEpsilon:
    """Return both epsilons for updates clipped to a norm C, under noise computed for a sensitivity D given apart.

    The noise is s = D sqrt(2 ln(1.25 / delta)) / epsilon: Dwork and Roth (2014), theorem A.1, proven for epsilon < 1 alone.

    >>> found = implied_epsilon(1.0, 2.0, 1.0, 1e-5)  # the sensitivity that such a clip has
    >>> round(found.deviation, 3), round(found.once, 3), found.follows
    (9.69, 0.751, True)
    >>> round(implied_epsilon(1.0, 0.01, 1.0, 1e-5).once)  # a hundredth of the clip
    1027
    """
    deviation = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    moves = 2 * clipping_norm
    once, overall = (gaussian_epsilon(deviation / moves, delta, number) for number in (1, releases))
    return ImpliedEpsilon(epsilon, delta, releases, deviation, sensitivity, moves, once, overall)


def gaussian_epsilon(noise_multiplier: float, delta: float, releases: int = 1) -> float:
    """Return the least epsilon of (epsilon, delta) differential privacy, exactly and never below it.

    Args:
        noise_multiplier: standard deviation over L2 sensitivity, >= 0; 0 is no noise, and ``math.inf`` is returned.
        delta: in (0, 1).
        releases: T >= 1, of the same images.
    """
    moved = math.sqrt(releases) / noise_multiplier if noise_multiplier > 0 else math.inf
    if not math.isfinite(moved * moved):
        return math.inf
    target = math.log(delta)
    if _log_delta(moved, 0.0) <= target:
        return 0.0
    low, high = 0.0, 1.0
    while _log_delta(moved, high) > target:
        high *= 2
    while high - low > _PRECISION * high and low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if _log_delta(moved, middle) <= target else (middle, high)
    return high


def _log_delta(moved: float, epsilon: float) -> float:
    """Return ln(Phi(m / 2 - e / m) - exp(e) Phi(-m / 2 - e / m)), in logarithms so that small deltas stay exact."""
    import torch

    points = torch.tensor([moved / 2 - epsilon / moved, -moved / 2 - epsilon / moved], dtype=torch.float64)
    first, second = torch.special.log_ndtr(points).tolist()
    apart = second + epsilon - first
    return first + math.log(-math.expm1(apart)) if apart < 0 else -math.inf


def _figure(epsilon: float) -> str:
    return f"{epsilon:.4g}" if math.isfinite(epsilon) else "none at all: there is no noise"
