"""Records of attacks and scores, as frozen models: one union, recognised by ``kind``, of one version."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedpriv.attacks.observation import ThreatModel
from fedpriv.scoring.records.base import (
    RECORD_VERSION,
    SCORING_VERSION,
    Comparison,
    Estimate,
    FiniteSummary,
    Interval,
    Measure,
    Summary,
)
from fedpriv.scoring.records.claim import ClaimCard, ClaimCell, ClaimedOrder, ClaimStatement, ClaimWord
from fedpriv.scoring.records.inference import MembershipRecord, PropertyRecord, Rate, Rates
from fedpriv.scoring.records.made import About, Labels, Provenance
from fedpriv.scoring.records.privacy_audit import ClaimedPrivacy, EpsilonBound, PrivacyAuditRecord
from fedpriv.scoring.records.reconstruction import Metrics, ReconstructionRecord
from fedpriv.scoring.records.verdict import JudgedComparison, Kind, Reason, Verdict

__all__ = [
    "RECORD_VERSION",
    "SCORING_VERSION",
    "About",
    "AnyRecord",
    "ClaimCard",
    "ClaimCell",
    "ClaimStatement",
    "ClaimWord",
    "ClaimedOrder",
    "ClaimedPrivacy",
    "Comparison",
    "EpsilonBound",
    "Estimate",
    "FiniteSummary",
    "InferenceResult",
    "Interval",
    "JudgedComparison",
    "Kind",
    "Labels",
    "Measure",
    "MembershipRecord",
    "Metrics",
    "PrivacyAuditRecord",
    "PropertyRecord",
    "Provenance",
    "Rate",
    "Rates",
    "Reason",
    "ReconstructionRecord",
    "Summary",
    "ThreatModel",
    "Verdict",
]

InferenceResult = MembershipRecord | PropertyRecord
"""Records of attacks that return scores, not images."""

AnyRecord = Annotated[
    About | ReconstructionRecord | MembershipRecord | PropertyRecord | ClaimCard | PrivacyAuditRecord,
    Field(discriminator="kind"),
]
"""Every record that is written beside a result."""
