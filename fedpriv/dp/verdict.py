"""Claims of differential privacy, as defenses make them or a user states one, and the verdict that canaries give."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import numpy as np
from annotated_types import Ge, Gt, Lt

from fedpriv.defenses.accounting import gaussian_epsilon
from fedpriv.dp.bounds import Coins, Scores, gaussian_bound, one_run_bound
from fedpriv.eval.records import AuditWord, ClaimedPrivacy
from fedpriv.util.errors import UserError


@dataclass(frozen=True)
class Claim:
    """A claim, and what an audit has to know of the defense that makes it."""

    claimant: str  # name of the defense; ``stated`` where a user states it
    stated: ClaimedPrivacy | None  # None where nothing is claimed
    delta: float  # of bounds
    unit: Literal["client", "image"]
    rounds: int  # in which one canary sends
    replaced: bool  # neighbours differ by replacement
    gaussian: bool  # clip and noise are said to be a Gaussian mechanism
    bound: float | None  # length to which what one unit adds is said to be clipped, or None


@dataclass(frozen=True)
class StatedClaim:
    """A claim that a user states: that of a paper, or of a defense that accounts for nothing."""

    epsilon: Annotated[float, Gt(0)] | None = None  # None for bounds without a claim
    delta: Annotated[float, Ge(0), Lt(1)] = 1e-5  # of claim and bounds
    unit: Literal["client", "image"] = "client"
    of: Literal["upload", "run"] = "upload"  # each upload for itself, or all of a client's over the run
    neighbours: Literal["replaced", "absent"] = "replaced"  # absent: there, or not
    gaussian: bool = False  # the noise is said to be Gaussian


def chosen_claim(records: Sequence[Mapping[str, Any]], stated: StatedClaim | None, rounds: int) -> Claim:
    """Return the claim to audit: the user's, or else that of a defense."""
    if stated is not None:
        return _stated(stated, rounds)
    claims = [claim for record in records if (claim := _claimed(record, rounds)) is not None]
    if not claims:
        raise UserError(
            "no defense claims an epsilon here; give one that accounts for it (dp-noise, local-dp, dp-sgd), or say what is "
            "claimed, with claim='epsilon=1,delta=1e-5'; claim='delta=1e-5' asks for a bound without a claim"
        )
    if len(claims) > 1:
        names = ", ".join(claim.claimant for claim in claims)
        raise UserError(f"{names} claim an epsilon each; state the one to audit with claim")
    return claims[0]


def _stated(claim: StatedClaim, rounds: int) -> Claim:
    number, replaced, privacy = 1 if claim.of == "upload" else rounds, claim.neighbours == "replaced", None
    if claim.epsilon is not None:
        privacy = ClaimedPrivacy(
            epsilon=claim.epsilon,
            delta=claim.delta,
            unit=claim.unit,
            releases=number,
            neighbours=f"one {claim.unit}: {'what it holds replaced' if replaced else 'there, or not'}",
            implied=None,
        )
    return Claim("stated", privacy, claim.delta, claim.unit, number, replaced, claim.gaussian, None)


def _claimed(record: Mapping[str, Any], rounds: int) -> Claim | None:
    """Return the claim in a record of privacy; None where it has no epsilon."""
    each = record.get("epsilon_claimed_of_each_upload")
    whole = record.get("epsilon") if record.get("epsilon") is not None else record.get("epsilon_of_weights")
    epsilon, delta, unit = whole if each is None else each, record.get("delta"), record.get("unit", "client")
    if epsilon is None or delta is None or unit not in ("client", "image"):
        return None
    releases = int(record.get("releases", rounds)) if each is None else 1
    multiplier, sampled = record.get("noise_multiplier"), record.get("sample_rate", 1) < 1
    gaussian = multiplier is not None and multiplier > 0 and not sampled
    implied = whole
    if each is not None:
        implied = record.get("epsilon_implied_of_each_upload")
    elif multiplier is not None and gaussian:
        implied = gaussian_epsilon(multiplier, delta, releases)
    neighbours, name = str(record.get("neighbours", "")), str(record.get("defense", "stated"))
    privacy = ClaimedPrivacy(
        epsilon=epsilon, delta=delta, unit=unit, releases=releases, neighbours=neighbours, implied=implied
    )
    number = rounds if each is None else 1
    return Claim(name, privacy, delta, unit, number, "replaced" in neighbours, gaussian, record.get("bound"))


LESS_NOISE: Final = 10  # a mechanism with so many times less noise has to be contradicted, or the audit says nothing


@dataclass(frozen=True)
class Design:
    """Which bounds hold, and for how often they may be wrong."""

    confidence: float  # that all of them hold together, in (0, 1)
    delta: float  # in [0, 1)
    gaussian: bool  # the mechanism says that it is Gaussian, with releases independent of each other


@dataclass(frozen=True)
class Audited:
    """Outcome of an audit."""

    bounds: Mapping[str, float]  # name -> epsilon that there is at least; ``math.inf`` for more than any number
    attainable: float  # the largest, had every canary been recognised
    control: float  # the largest, had they stood out ten times as far

    @property
    def most(self) -> float:
        """The largest bound."""
        return max(self.bounds.values())


def audit_scores(scores: Scores, coins: Coins, design: Design) -> Audited:
    """Return the bounds that scores ``(m,)`` and coins ``(m,)`` give; all hold together with the design's confidence."""
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
    start = "Inconclusive" if verdict == "untested" else f"The claim is {verdict}"
    implied = "" if claim.implied is None else f"; clip and noise imply {figure(claim.implied)}"
    if not follows(claim):
        implied += ", so that it does not follow from them"
    single = "one upload" if claim.unit == "client" else "one release"
    of = single if claim.releases == 1 else f"{claim.releases} releases together"
    opening = f"{start}: {claimant} claims epsilon {figure(claim.epsilon)} (delta {claim.delta:g}) of {of}{implied}."
    return f"{opening} {shown}. {behind}"


def follows(claim: ClaimedPrivacy) -> bool:
    """True where a claim follows from clip and noise, or nothing is known of what these imply."""
    return claim.implied is None or claim.implied <= claim.epsilon * (1 + 1e-3)


def figure(epsilon: float | None) -> str:
    """Return an epsilon in three digits, or in words where it is beyond any number."""
    return f"{epsilon:.3g}" if epsilon is not None and math.isfinite(epsilon) else "beyond any number"
