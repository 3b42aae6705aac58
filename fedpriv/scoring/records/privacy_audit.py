"""``audit-dp.json``: an epsilon that is claimed beside what canaries show of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, FiniteFloat

from fedpriv.scoring.records.base import RECORD_VERSION
from fedpriv.util.config import Record

AuditWord = Literal["contradicted", "not contradicted", "untested", "no claim"]
"""``untested``: too few canaries, or too faint ones, to contradict even a tenth of the noise."""

Way = Literal["uploads", "training"]
"""Place of the canaries: uploads that pass a defense, or gradients within local training."""


class ClaimedPrivacy(Record):
    """A guarantee as it is claimed, of so many uploads of one client together.

    ``implied`` is the epsilon that follows from clip and noise for the same releases; None where nothing follows.
    """

    epsilon: FiniteFloat
    delta: FiniteFloat
    unit: Literal["client", "image"]
    releases: int
    neighbours: str
    implied: FiniteFloat | None


class EpsilonBound(Record):
    """A lower bound on epsilon, None for more than any number, and what it holds under."""

    name: Literal["one run", "Gaussian"]
    epsilon: FiniteFloat | None
    given: str = ""


class PrivacyAuditRecord(Record):
    """``audit-dp.json``.

    ``claimant`` is the defense whose claim it is, or ``stated``; ``included`` of the ``canaries`` were in. ``attainable`` is
    the largest bound, had every canary been recognised; ``control`` had the canaries stood out from the noise ten times as
    far; None for more than any number, and where nothing was varied. ``confidence`` is that all bounds hold together.
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
