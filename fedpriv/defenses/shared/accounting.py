"""The privacy cost of Gaussian noise over many releases: Renyi accounting by opacus.

A release that moves by at most D in L2 norm between neighbours, with noise of standard deviation z D on every entry,
is a Gaussian mechanism of noise multiplier z. A run makes one in every round; a sampling rate below 1 is for DP-SGD,
whose batches are Poisson samples.
"""

from __future__ import annotations

import warnings
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
