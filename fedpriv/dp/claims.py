"""Claims of differential privacy as defenses make them, or as a user states one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Lt

from fedpriv.algebra.gaussian_mechanism import gaussian_epsilon
from fedpriv.scoring.records import ClaimedPrivacy
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError
from fedpriv.util.pairs import mapping


@dataclass(frozen=True)
class Claim:
    """A claim, and what an audit has to know of the defense that makes it.

    Attributes:
        claimant: name of the defense; ``stated`` where a user states it.
        stated: epsilon, delta, unit, ...; None where nothing is claimed.
        delta: of bounds.
        unit: ``client`` or ``image``.
        rounds: in which one canary sends.
        replaced: neighbours differ by replacement.
        gaussian: clip and noise are said to be a Gaussian mechanism.
        bound: length to which what one unit adds is said to be clipped, or None.
    """

    claimant: str
    stated: ClaimedPrivacy | None
    delta: float
    unit: Literal["client", "image"]
    rounds: int
    replaced: bool
    gaussian: bool
    bound: float | None


@dataclass(frozen=True)
class StatedClaim:
    """A claim that a user states: that of a paper, or of a defense that accounts for nothing.

    Attributes:
        epsilon: claimed; None for bounds without a claim.
        delta: of claim and bounds.
        unit: ``client`` or ``image``.
        of: ``upload``, each for itself, or all uploads of a client over the ``run``.
        neighbours: ``replaced``, or ``absent``: there, or not.
        gaussian: the noise is said to be Gaussian.
        bound: length to which an image's representation is clipped; of images alone.
    """

    epsilon: Annotated[float, Gt(0)] | None = None
    delta: Annotated[float, Ge(0), Lt(1)] = 1e-5
    unit: Literal["client", "image"] = "client"
    of: Literal["upload", "run"] = "upload"
    neighbours: Literal["replaced", "absent"] = "replaced"
    gaussian: bool = False
    bound: Annotated[float, Gt(0)] | None = None


def stated_claim(given: Mapping[str, Any] | Sequence[str]) -> StatedClaim | None:
    """Return the claim that a user states, as a mapping or texts ``KEY=VALUE``; None for none."""
    values = mapping("claim", given)
    return parse(StatedClaim, values, "claim") if values else None


def chosen_claim(records: Sequence[Mapping[str, Any]], stated: StatedClaim | None, rounds: int) -> Claim:
    """Return the claim to audit: the user's, or else that of a defense."""
    if stated is not None:
        return _stated(stated, rounds)
    claims = [claim for record in records if (claim := _claimed(record, rounds)) is not None]
    if not claims:
        example = "claim='epsilon=1,delta=1e-5'"
        raise UserError(
            "no defense claims an epsilon here; give one that accounts for it (dp-noise, local-dp, dp-sgd), or say what is "
            f"claimed, with {example}; claim='delta=1e-5' asks for a bound without a claim"
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
    return Claim("stated", privacy, claim.delta, claim.unit, number, replaced, claim.gaussian, claim.bound)


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
