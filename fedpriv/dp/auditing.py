"""An audit of a federation's claim: coins, canaries, scores, bounds, record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.dp.claims import Claim, StatedClaim, chosen_claim
from fedpriv.dp.training_canaries import audited_client, training_scores
from fedpriv.dp.upload_canaries import CanaryPair, canary_pair, upload_scores
from fedpriv.dp.verdict import Design, as_record, audit_scores, finite, sentence, word
from fedpriv.federation.defense import ProtectionPlan, defense_facts
from fedpriv.federation.prepared import Federation, protection_plan
from fedpriv.scoring.records import PrivacyAuditRecord
from fedpriv.util.errors import UserError, shown
from fedpriv.util.listener import Listener
from fedpriv.util.seeds import derive_seed

LEAST_CANARIES: Final = 16


@dataclass(frozen=True)
class AuditSettings:
    """Settings of an audit.

    Attributes:
        canaries: how many, >= 16.
        confidence: that no bound is above the truth, in (0.5, 1).
        claim: stated by the user, or None for what defenses claim.
        seed: of coins, canaries and noise.
        command: that does it again.
    """

    canaries: int
    confidence: float
    claim: StatedClaim | None
    seed: int
    command: str

    def __post_init__(self) -> None:
        if self.canaries < LEAST_CANARIES:
            raise UserError(f"canaries={shown(self.canaries)}: expected {LEAST_CANARIES} or more; fewer show nothing")
        if not 0.5 < self.confidence < 1:
            raise UserError(f"confidence={shown(self.confidence)}: expected a share between 0.5 and 1")

    def coins(self) -> NDArray[np.bool_]:
        """Return a fair coin for each canary, ``(canaries,)``: True where it is in."""
        draws = np.random.default_rng(derive_seed(self.seed, "privacy-audit", "coins")).random(self.canaries)
        return np.asarray(draws < 0.5)


@dataclass(frozen=True)
class PlannedAudit:
    """An audit in which nothing can be wrong any more but the mechanism.

    Attributes:
        federation: whose defenses are audited; where canaries are in training, its client 0 with those that are in.
        settings: of the audit.
        claim: that the canaries are held against.
        pair: of canaries behind the defenses of an upload; None where they are in local training, in one run.
    """

    federation: Federation
    settings: AuditSettings
    claim: Claim
    pair: CanaryPair | None

    def run(self, listener: Listener) -> PrivacyAuditRecord:
        """Score the canaries and return the record."""
        settings, coins, seed, training = self.settings, self.settings.coins(), self.settings.seed, self.pair is None
        with listener.progress("training with canaries" if training else "canaries behind the defenses") as report:
            if self.pair is None:
                scores = training_scores(self.federation, settings.canaries, seed, report)
            else:
                with torch.no_grad():
                    scores = upload_scores(self.federation, self.pair, self.claim.rounds, coins, seed, report)
        if not bool(np.isfinite(scores).all()):
            raise UserError("a canary's score is NaN or infinite: training diverged, or a defense makes such uploads")
        claim, design = self.claim, Design(settings.confidence, self.claim.delta, self.claim.gaussian and not training)
        audited = audit_scores(scores, coins, design)
        verdict = word(claim.stated, audited.most, audited.control)
        return PrivacyAuditRecord(
            method=self.federation.method.name,
            dataset=self.federation.data.dataset.name,
            defense=" + ".join(defense_facts(item).label for item in self.federation.pipeline.defenses) or "none",
            claimant=claim.claimant,
            seed=seed,
            command=settings.command,
            claim=claim.stated,
            way="training" if training else "uploads",
            canaries=len(scores),
            included=int(coins.sum()),
            confidence=settings.confidence,
            delta=claim.delta,
            bounds=as_record(audited.bounds),
            attainable=finite(audited.attainable),
            control=finite(audited.control),
            verdict=verdict,
            sentence=sentence(claim.claimant, claim.stated, audited, verdict, len(scores), design),
        )


def plan_audit(federation: Federation, settings: AuditSettings) -> PlannedAudit:
    """Choose the claim of a prepared federation that is audited, and make its canaries.

    Claims about images that rest on guards of gradients are audited within local training; all others behind the defenses
    of an upload.
    """
    plan = protection_plan(federation.config, federation.method, federation.clients)
    claim = _claim(federation, plan, settings)
    if claim.unit == "client" or not federation.pipeline.guards(plan):
        return PlannedAudit(federation, settings, claim, canary_pair(federation, claim, settings.seed))
    alone, plan = audited_client(federation, settings.coins(), settings.seed)
    return PlannedAudit(alone, settings, _claim(alone, plan, settings), None)


def _claim(federation: Federation, plan: ProtectionPlan, settings: AuditSettings) -> Claim:
    records = federation.pipeline.privacy(plan)
    return chosen_claim(records, settings.claim, federation.config.rounds)
