"""An audit of a federation's claim: coins, canaries, scores, bounds, record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.dp.canaries import CanaryPair, audited_client, canary_pair, training_scores, upload_scores
from fedpriv.dp.verdict import Claim, Design, StatedClaim, as_record, audit_scores, chosen_claim, finite, sentence, word
from fedpriv.eval.records import PrivacyAuditRecord
from fedpriv.federation.defense import ProtectionPlan, defense_facts
from fedpriv.federation.prepared import Federation, protection_plan
from fedpriv.util.errors import UserError, shown
from fedpriv.util.parallel import Listener
from fedpriv.util.seeds import derive_seed

LEAST_CANARIES: Final = 16


@dataclass(frozen=True)
class AuditSettings:
    """Settings of an audit."""

    canaries: int  # how many, >= 16
    confidence: float  # that no bound is above the truth, in (0.5, 1)
    claim: StatedClaim | None  # stated by the user, or None for what defenses claim
    seed: int  # of coins, canaries and noise
    command: str  # that does it again

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
    """An audit in which nothing can be wrong any more but the mechanism."""

    federation: Federation  # its client 0 has the canaries that are in, where they are in training
    settings: AuditSettings
    claim: Claim  # that the canaries are held against
    pair: CanaryPair | None  # behind the defenses of an upload; None where they are in local training, in one run

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
    if claim.unit == "image" and not federation.pipeline.guards(plan):
        raise UserError(
            "a claim about single images is audited within local training, behind dp-sgd; state unit=client"
        )
    if claim.unit == "client":
        return PlannedAudit(federation, settings, claim, canary_pair(federation, claim, settings.seed))
    alone, plan = audited_client(federation, settings.coins(), settings.seed)
    return PlannedAudit(alone, settings, _claim(alone, plan, settings), None)


def _claim(federation: Federation, plan: ProtectionPlan, settings: AuditSettings) -> Claim:
    records = federation.pipeline.privacy(plan)
    return chosen_claim(records, settings.claim, federation.config.rounds)
