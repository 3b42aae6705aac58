"""From scores of canaries to a verdict on a claim: contradicted, not contradicted, or not tested hard enough."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedpriv.scoring.privacy_audit.bounds import (
    gaussian_threshold_epsilon,
    one_run_epsilon,
    one_run_gaussian_epsilon,
    threshold_epsilon,
)
from fedpriv.scoring.privacy_audit.choice import from_part, over_ladder
from fedpriv.scoring.privacy_audit.counts import Scores
from fedpriv.scoring.records.privacy_audit import AuditWord, ClaimedPrivacy, EpsilonBound, Way

LESS_NOISE: Final = 10
"""A mechanism with so many times less noise has to be contradicted, or the audit says nothing."""

_MOST_CANARIES: Final = 2**17
_UNEVEN: Final = 0.025
_ROUNDED: Final = 1e-3

Coins = NDArray[np.bool_]


@dataclass(frozen=True)
class Design:
    """Which bounds hold, and for how often they may be wrong.

    Attributes:
        confidence: that all of them hold together, in (0, 1).
        delta: in [0, 1).
        independent: releases of different canaries are independent of each other.
        gaussian: the mechanism says that it is a Gaussian one.
    """

    confidence: float
    delta: float
    independent: bool
    gaussian: bool


@dataclass(frozen=True)
class Audited:
    """Outcome of an audit.

    Attributes:
        bounds: name -> epsilon that there is at least; ``math.inf`` for more than any number.
        attainable: the largest, had every canary been told apart.
        control: the largest, had they stood out ten times as far.
    """

    bounds: Mapping[str, float]
    attainable: float
    control: float

    @property
    def most(self) -> float:
        """The largest bound."""
        return max(self.bounds.values())


def audit_scores(scores: Scores, coins: Coins, design: Design) -> Audited:
    """Return the bounds that scores give; all hold together with the design's confidence.

    Args:
        scores: ``(m,)``, higher for who is in.
        coins: ``(m,)``, whether each is in; of both kinds at least one.
        design: of the audit.
    """
    apart = float(scores[coins].mean() - scores[~coins].mean())
    nearer = scores + (LESS_NOISE - 1) * max(apart, 0.0) * coins
    return Audited(
        bounds=epsilon_bounds(scores, coins, design),
        attainable=max(epsilon_bounds(coins.astype(np.float64), coins, design).values()),
        control=max(epsilon_bounds(nearer, coins, design).values()),
    )


def epsilon_bounds(scores: Scores, coins: Coins, design: Design) -> dict[str, float]:
    """Return every bound that holds by its name; arguments as of :func:`audit_scores`."""
    number = 1 + design.independent + design.gaussian
    given = (scores, coins, (1 - design.confidence) / number, design.delta)
    found = {"one run": over_ladder(one_run_epsilon, *given)}
    if design.independent:
        found["threshold"] = from_part(threshold_epsilon, *given)
    if design.gaussian and design.independent:
        found["Gaussian"] = from_part(gaussian_threshold_epsilon, *given)
    elif design.gaussian:
        found["Gaussian"] = over_ladder(one_run_gaussian_epsilon, *given)
    return found


def canaries_for(epsilon: float, design: Design, taken: int = 0) -> int | None:
    """Return a number of canaries that could contradict a claim if all were told apart; None for over a hundred thousand.

    Coins fall unevenly, so it is a number that would do for either of the most uneven halves that 95 of 100 throws keep
    within. None, too, where no number does: in one run delta counts against every canary.

    Args:
        epsilon: that is claimed.
        design: of the audit.
        taken: so many did not do.
    """
    number = 16
    while number <= _MOST_CANARIES:
        if number > taken and min(_attainable(number, heads, design) for heads in _uneven(number)) > epsilon:
            return number
        number *= 2
    return None


def _uneven(number: int) -> tuple[int, int]:
    """Return the fewest and the most heads that so many coins show but once in forty times each."""
    from scipy.special import bdtr  # type: ignore[import-untyped]

    few = int(np.searchsorted(bdtr(np.arange(number + 1), number, 0.5), _UNEVEN))
    return few, number - few


def _attainable(number: int, heads: int, design: Design) -> float:
    """Return the largest bound where ``heads`` canaries of a number are in, and all are told apart."""
    coins = np.diff(np.arange(number + 1) * heads // number) > 0
    return max(epsilon_bounds(coins.astype(np.float64), coins, design).values())


def word(claim: ClaimedPrivacy | None, most: float, control: float) -> AuditWord:
    """Return the verdict: a claim below the bound is contradicted; one above what less noise would show is untested."""
    if claim is None:
        return "no claim"
    if most > claim.epsilon:
        return "contradicted"
    return "not contradicted" if control > claim.epsilon else "untested"


def as_record(bounds: Mapping[str, float], given: Mapping[str, str]) -> tuple[EpsilonBound, ...]:
    """Return bounds as a record has them; ``given`` says what some of them rest on."""
    return tuple(
        EpsilonBound.model_validate({"name": name, "epsilon": finite(epsilon), "given": given.get(name, "")})
        for name, epsilon in bounds.items()
    )


def finite(epsilon: float) -> float | None:
    """Return an epsilon as a record has it: None for more than any number."""
    return epsilon if math.isfinite(epsilon) else None


def sentence(
    claimant: str,
    claim: ClaimedPrivacy | None,
    found: Audited,
    verdict: AuditWord,
    number: int,
    design: Design,
    told_by: str = "canaries",
) -> str:
    """Return the verdict in words, with every figure it rests on.

    Args:
        claimant: who claims.
        claim: what is claimed, or None.
        found: the bounds.
        verdict: in a word.
        number: of canaries.
        design: of the audit.
        told_by: what they are called.
    """
    sure = f"{100 * design.confidence:g} % confidence"
    shown = f"{number:,} {told_by} show epsilon {figure(found.most)} at least ({sure}: {each(found.bounds)})"
    if claim is None:
        return f"{claimant} claims no epsilon; {shown}, delta {design.delta:g}."
    return f"{opening(claimant, claim, verdict)} {shown}. {_behind(claim, found, verdict, design, number)}"


def opening(claimant: str, claim: ClaimedPrivacy, verdict: AuditWord) -> str:
    """Return the verdict and the claim."""
    told = {
        "contradicted": "The claim is contradicted",
        "not contradicted": "The claim is not contradicted",
        "untested": "Not tested hard enough to say",
    }.get(verdict, verdict)
    implied = "" if claim.implied is None else f"; clip and noise imply {figure(claim.implied)}"
    if not follows(claim):
        implied += ", so that it does not follow from them"
    one = "one upload" if claim.unit == "client" else "one release"
    of = one if claim.releases == 1 else f"{claim.releases} releases together"
    return f"{told}: {claimant} claims epsilon {figure(claim.epsilon)} (delta {claim.delta:g}) of {of}{implied}."


def follows(claim: ClaimedPrivacy) -> bool:
    """True where a claim follows from clip and noise, or nothing is known of what these imply."""
    return claim.implied is None or claim.implied <= claim.epsilon * (1 + _ROUNDED)


def _behind(claim: ClaimedPrivacy, found: Audited, verdict: AuditWord, design: Design, number: int) -> str:
    if verdict == "contradicted":
        beyond = claim.implied is not None and found.most > claim.implied
        return (
            "That is more than clip and noise imply: they are not what the upload has."
            if beyond
            else "What was told apart cannot have been hidden."
        )
    if verdict == "not contradicted":
        return f"With a tenth of the noise they would have shown {figure(found.control)}."
    if found.attainable > claim.epsilon:
        return (
            f"With a tenth of the noise they would have shown {figure(found.control)}, which would not contradict the claim "
            "either: take more canaries, or let them take part in more steps."
        )
    enough = canaries_for(claim.epsilon, design, number)
    take = (
        "at this delta no number of them up to a hundred thousand would do"
        if enough is None
        else f"take {enough:,} at least"
    )
    return f"Were all of them told apart, they would show {figure(found.attainable)}: {take}."


def each(bounds: Mapping[str, float]) -> str:
    """Return bounds by name in words.

    >>> each({"one run": 0.5, "Gaussian": 12.3456})
    'one run 0.5, Gaussian 12.3'
    """
    return ", ".join(f"{name} {figure(epsilon)}" for name, epsilon in bounds.items())


def each_bound(bounds: Sequence[EpsilonBound]) -> str:
    """Return the bounds of a record in words."""
    return ", ".join(f"{one.name} {figure(one.epsilon)}" for one in bounds)


def figure(epsilon: float | None) -> str:
    """Return an epsilon in three digits, or in words where it is beyond any number."""
    return f"{epsilon:.3g}" if epsilon is not None and math.isfinite(epsilon) else "beyond any number"


WAYS: Final[Mapping[Way, str]] = {
    "uploads": "uploads that pass the defense",
    "training": "gradients within local training",
    "recorded canaries": "clients of the recorded run",
    "recorded noise": "none: the noise of the recorded uploads was measured",
}
"""Where the canaries were, in words."""
