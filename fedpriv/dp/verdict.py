"""From scores of canaries to a verdict on a claim: contradicted, not contradicted, or inconclusive."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedpriv.dp.bounds import Coins, Scores, gaussian_bound, one_run_bound
from fedpriv.scoring.records import AuditWord, ClaimedPrivacy, EpsilonBound, Way

LESS_NOISE: Final = 10
"""A mechanism with so many times less noise has to be contradicted, or the audit says nothing."""

GAUSSIAN: Final = "the mechanism is a Gaussian one, as the defense says"


@dataclass(frozen=True)
class Design:
    """Which bounds hold, and for how often they may be wrong.

    Attributes:
        confidence: that all of them hold together, in (0, 1).
        delta: in [0, 1).
        gaussian: the mechanism says that it is a Gaussian one, with releases that are independent of each other.
    """

    confidence: float
    delta: float
    gaussian: bool


@dataclass(frozen=True)
class Audited:
    """Outcome of an audit.

    Attributes:
        bounds: name -> epsilon that there is at least; ``math.inf`` for more than any number.
        attainable: the largest, had every canary been recognised.
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
        scores: ``(m,)``, higher for canaries that are in.
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
    used = {"one run": one_run_bound} | ({"Gaussian": gaussian_bound} if design.gaussian else {})
    alpha = (1 - design.confidence) / len(used)
    return {name: bound(scores, coins, alpha, design.delta) for name, bound in used.items()}


def word(claim: ClaimedPrivacy | None, most: float, control: float) -> AuditWord:
    """Return the verdict: a claim below the bound is contradicted; one above what less noise would show is untested."""
    if claim is None:
        return "no claim"
    if most > claim.epsilon:
        return "contradicted"
    return "not contradicted" if control > claim.epsilon else "untested"


def finite(epsilon: float) -> float | None:
    """Return an epsilon as a record holds it: None for more than any number."""
    return epsilon if math.isfinite(epsilon) else None


def as_record(bounds: Mapping[str, float]) -> tuple[EpsilonBound, ...]:
    """Return bounds as a record holds them, with what they hold under."""
    return tuple(
        EpsilonBound.model_validate(
            {"name": name, "epsilon": finite(epsilon), "given": GAUSSIAN if name == "Gaussian" else ""}
        )
        for name, epsilon in bounds.items()
    )


# ---------------------------------------------------------------- words


def sentence(
    claimant: str, claim: ClaimedPrivacy | None, audited: Audited, verdict: AuditWord, number: int, design: Design
) -> str:
    """Return the verdict on so many canaries in words, with every figure it rests on."""
    bounds = ", ".join(f"{name} {figure(epsilon)}" for name, epsilon in audited.bounds.items())
    sure = f"{100 * design.confidence:g} % confidence"
    shown = f"{number:,} canaries show epsilon {figure(audited.most)} at least ({sure}: {bounds})"
    if claim is None:
        return f"{claimant} claims no epsilon; {shown}, delta {design.delta:g}."
    if verdict == "contradicted":
        beyond = claim.implied is not None and audited.most > claim.implied
        behind = (
            "That is more than clip and noise imply: they are not what the upload has."
            if beyond
            else "What was recognised cannot have been hidden."
        )
    elif verdict == "not contradicted":
        behind = f"With a tenth of the noise they would have shown {figure(audited.control)}."
    elif audited.attainable > claim.epsilon:
        behind = (
            f"With a tenth of the noise they would have shown {figure(audited.control)}, which would not contradict the "
            "claim either: take more canaries, or let them take part in more steps."
        )
    else:
        behind = f"Were all of them recognised, they would show {figure(audited.attainable)}: take more canaries."
    return f"{opening(claimant, claim, verdict)} {shown}. {behind}"


def opening(claimant: str, claim: ClaimedPrivacy, verdict: AuditWord) -> str:
    """Return the verdict and the claim."""
    start = "Inconclusive" if verdict == "untested" else f"The claim is {verdict}"
    implied = "" if claim.implied is None else f"; clip and noise imply {figure(claim.implied)}"
    if not follows(claim):
        implied += ", so that it does not follow from them"
    single = "one upload" if claim.unit == "client" else "one release"
    of = single if claim.releases == 1 else f"{claim.releases} releases together"
    return f"{start}: {claimant} claims epsilon {figure(claim.epsilon)} (delta {claim.delta:g}) of {of}{implied}."


def follows(claim: ClaimedPrivacy) -> bool:
    """True where a claim follows from clip and noise, or nothing is known of what these imply."""
    return claim.implied is None or claim.implied <= claim.epsilon * (1 + 1e-3)


def each_bound(bounds: Sequence[EpsilonBound]) -> str:
    """Return the bounds of a record in words."""
    return ", ".join(f"{bound.name} {figure(bound.epsilon)}" for bound in bounds)


def figure(epsilon: float | None) -> str:
    """Return an epsilon in three digits, or in words where it is beyond any number."""
    return f"{epsilon:.3g}" if epsilon is not None and math.isfinite(epsilon) else "beyond any number"


WAYS: Final[Mapping[Way, str]] = {
    "uploads": "uploads that pass the defense",
    "training": "gradients within local training",
}
"""Where the canaries were, in words."""
