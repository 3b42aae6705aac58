"""``audit-dp.json``: an epsilon that is claimed beside what canaries show of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, FiniteFloat

from fedpriv.scoring.records.base import RECORD_VERSION
from fedpriv.util.record import Record

AuditWord = Literal["contradicted", "not contradicted", "untested", "no claim"]
"""``untested``: too few canaries, or too faint ones, to contradict even a tenth of the noise."""

Way = Literal["uploads", "training", "recorded canaries", "recorded noise"]
"""Place of the canaries: uploads that pass a defense; gradients within local training; clients of a recorded run; or none,
where a recorded run's own noise is measured."""


class ClaimedPrivacy(Record):
    """A guarantee as it is claimed.

    Attributes:
        epsilon, delta: of it.
        unit: what is hidden, ``client`` or ``image``.
        releases: uploads of one client that it is about together.
        neighbours: what is replaced, added or left out.
        implied: epsilon that follows from clip and noise for the same releases; None where nothing follows.
    """

    epsilon: FiniteFloat
    delta: FiniteFloat
    unit: Literal["client", "image"]
    releases: int
    neighbours: str
    implied: FiniteFloat | None


class EpsilonBound(Record):
    """A lower bound on epsilon.

    Attributes:
        name: ``one run``, ``threshold``, ``Gaussian`` or ``size of the noise``.
        epsilon: that the mechanism has at least; None for more than any number.
        given: what it holds under, or empty.
    """

    name: Literal["one run", "threshold", "Gaussian", "size of the noise"]
    epsilon: FiniteFloat | None
    given: str = ""


class PrivacyAuditRecord(Record):
    """``audit-dp.json``.

    Attributes:
        version: of the format of all records.
        method, dataset: names.
        defense: all defenses of the upload, by their labels.
        claimant: the defense whose claim it is; ``stated`` where the user stated it.
        seed: of coins, canaries and noise.
        command: that does it again, or empty.
        claim: None where nothing is claimed.
        way: where the canaries were.
        canaries, included: how many there are, and how many of them were in.
        confidence: that all bounds hold together, in (0, 1).
        delta: of the bounds.
        bounds: on epsilon.
        attainable: the largest of them, had every canary been told apart; None for more than any number.
        control: the largest of them, had the canaries stood out from the noise ten times as far; None as above, and where
            nothing was varied.
        verdict: in a word.
        sentence: in words.
        notices: what else has to be known.
    """

    kind: Literal["privacy_audit"] = "privacy_audit"
    version: Literal[4] = RECORD_VERSION
    method: str
    dataset: str
    defense: str
    claimant: str
    seed: int
    command: str = ""
    claim: ClaimedPrivacy | None
    way: Way
    canaries: int
    included: int
    confidence: FiniteFloat
    delta: FiniteFloat = Field(ge=0, lt=1)
    bounds: tuple[EpsilonBound, ...]
    attainable: FiniteFloat | None
    control: FiniteFloat | None
    verdict: AuditWord
    sentence: str
    notices: tuple[str, ...] = ()
