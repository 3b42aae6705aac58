"""Claims of differential privacy as defenses make them, or as a user states one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, Gt, Lt

from fedpriv.algebra.gaussian_mechanism import gaussian_epsilon
from fedpriv.scoring.records.privacy_audit import ClaimedPrivacy
from fedpriv.util.arguments import argument
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError
from fedpriv.util.pairs import mapping

STATED: Final = "stated"
"""Claimant of what a user states."""

REPLACED: Final = "replaced"
"""Word of claims whose neighbours differ by replacement; of others one is there or is not."""


@dataclass(frozen=True)
class Claim:
    """A claim, and what an audit has to know of who makes it.

    Attributes:
        claimant: name of the defense.
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
    """Return the claim that a user states, as a mapping or texts ``KEY=VALUE``; None for none.

    Raises:
        UserError: naming the key that is wrong.
    """
    values = mapping("claim", given)
    return parse(StatedClaim, values, argument("claim")) if values else None


def claims(records: Sequence[Mapping[str, Any]], stated: StatedClaim | None, rounds: int) -> tuple[Claim, ...]:
    """Return the claims to audit: the user's, or else one for each defense that makes one.

    Args:
        records: ``privacy`` of the defenses, as a run's summary has it.
        stated: by the user.
        rounds: of the run.

    Raises:
        UserError: where nobody claims anything.
    """
    if stated is not None:
        return (_stated(stated, rounds),)
    found = [claim for record in records if (claim := _claimed(record, rounds)) is not None]
    if not found:
        asked = argument("claim", "epsilon=1,delta=1e-5")
        raise UserError(
            "no defense claims an epsilon here; give one that accounts for it (dp-noise, local-dp, dp-sgd), or say what is "
            f"claimed, with {asked}; {argument('claim', 'delta=1e-5')} asks for a bound without a claim"
        )
    return tuple(found)


def _stated(stated: StatedClaim, rounds: int) -> Claim:
    number = 1 if stated.of == "upload" else rounds
    neighbours = "what it holds replaced" if stated.neighbours == REPLACED else "there, or not"
    told = None
    if stated.epsilon is not None:
        told = ClaimedPrivacy(
            epsilon=stated.epsilon,
            delta=stated.delta,
            unit=stated.unit,
            releases=number,
            neighbours=f"one {stated.unit}: {neighbours}",
            implied=None,
        )
    replaced = stated.neighbours == REPLACED
    return Claim(STATED, told, stated.delta, stated.unit, number, replaced, stated.gaussian, stated.bound)


def _claimed(record: Mapping[str, Any], rounds: int) -> Claim | None:
    """Return the claim in a record of privacy; None where it has no epsilon."""
    each = record.get("epsilon_claimed_of_each_upload")
    whole = record.get("epsilon") if record.get("epsilon") is not None else record.get("epsilon_of_weights")
    epsilon, delta, unit = each if each is not None else whole, record.get("delta"), record.get("unit", "client")
    if epsilon is None or delta is None or unit not in ("client", "image"):
        return None
    number = 1 if each is not None else rounds
    releases = 1 if each is not None else int(record.get("releases", rounds))
    multiplier, sampled = record.get("noise_multiplier"), "sample_rate" in record and record["sample_rate"] < 1
    gaussian = multiplier is not None and multiplier > 0 and not sampled
    if each is not None:
        implied = record.get("epsilon_implied_of_each_upload")
    elif multiplier is not None and gaussian:
        implied = gaussian_epsilon(multiplier, delta, releases)
    else:
        implied = whole
    neighbours = str(record.get("neighbours", ""))
    told = ClaimedPrivacy(
        epsilon=epsilon, delta=delta, unit=unit, releases=releases, neighbours=neighbours, implied=implied
    )
    name = str(record.get("defense", STATED))
    return Claim(name, told, delta, unit, number, REPLACED in neighbours, gaussian, record.get("bound"))
