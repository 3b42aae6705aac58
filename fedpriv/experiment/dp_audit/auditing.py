"""An audit of a federation's claim: coins, canaries, scores, bounds, record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.experiment.dp_audit.claims import Claim, StatedClaim, claims
from fedpriv.experiment.dp_audit.training_canaries import audited_client, training_scores
from fedpriv.experiment.dp_audit.upload_canaries import UploadCanaries, upload_canaries
from fedpriv.federation.defense import ProtectionPlan, defense_facts
from fedpriv.federation.prepared import Federation, protection_plan
from fedpriv.scoring.privacy_audit.counts import Scores
from fedpriv.scoring.privacy_audit.verdict import Design, as_record, audit_scores, finite, sentence, word
from fedpriv.scoring.records.privacy_audit import PrivacyAuditRecord, Way
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.files import append_lines, read_lines
from fedpriv.util.listener import Listener
from fedpriv.util.seeds import derive_seed

SCORES: Final = "scores.jsonl"
"""A line a canary: its number, whether it was in, its score."""

TOGETHER: Final = 25
"""Lines that are written at a time."""

LEAST_CANARIES: Final = 16

GAUSSIAN: Final = "the mechanism is a Gaussian one, as the defense says"


@dataclass(frozen=True)
class Asked:
    """Settings of an audit.

    Attributes:
        canaries: how many, >= 16.
        confidence: that no bound is above the truth, in (0.5, 1).
        claim: stated by the user, or None for what defenses claim.
        claimant: defense whose claim is audited where several make one, or None.
        seed: of coins, canaries and noise.
        command: that does it again.
    """

    canaries: int
    confidence: float
    claim: StatedClaim | None
    claimant: str | None
    seed: int
    command: str

    def __post_init__(self) -> None:
        if self.canaries < LEAST_CANARIES:
            raise UserError(
                f"{argument('canaries', self.canaries)}: expected {LEAST_CANARIES} or more; fewer show nothing"
            )
        if not 0.5 < self.confidence < 1:
            raise UserError(f"{argument('confidence', self.confidence)}: expected a share between 0.5 and 1")

    def coins(self) -> NDArray[np.bool_]:
        """Return a fair coin for each canary, ``(canaries,)``: True where it is in."""
        tossed: NDArray[np.bool_] = (
            np.random.default_rng(derive_seed(self.seed, "privacy-audit", "coins")).random(self.canaries) < 0.5
        )
        return tossed


def chosen_claim(found: Sequence[Claim], claimant: str | None) -> Claim:
    """Return the one claim that is audited.

    Raises:
        UserError: where several are made and none is named, or the one named makes none.
    """
    names = [claim.claimant for claim in found]
    if claimant is None and len(found) == 1:
        return found[0]
    if claimant is None:
        raise UserError(
            f"{', '.join(names)} claim an epsilon each; name the one to audit with {argument('claimant', names[0])}"
        )
    if claimant not in names:
        raise UserError(f"{argument('claimant', claimant)}: claims no epsilon here; those that do: {', '.join(names)}")
    return found[names.index(claimant)]


@dataclass(frozen=True)
class PlannedAudit:
    """An audit in which nothing can be wrong any more but the mechanism.

    Attributes:
        federation: whose defenses are audited; where canaries are in training, its client 0 with those that are in.
        asked: of the audit.
        claim: that the canaries are held against.
        canaries: that pass the defenses of an upload; None where they are in training.
    """

    federation: Federation
    asked: Asked
    claim: Claim
    canaries: UploadCanaries | None

    def run(self, folder: Path, listener: Listener) -> PrivacyAuditRecord:
        """Score the canaries and return the record; scores behind defenses are kept in ``folder`` as they come.

        Raises:
            UserError: where training diverged.
        """
        coins = self.asked.coins()
        if self.canaries is None:
            with listener.progress("training with canaries") as report:
                scores = training_scores(self.federation, self.asked.canaries, self.asked.seed, report)
        else:
            scores = _behind_defenses(self.canaries, coins, folder, listener)
        if not bool(np.isfinite(scores).all()):
            raise UserError("a canary's score is NaN or infinite: training diverged, or a defense makes such uploads")
        facts = [defense_facts(one) for one in self.federation.pipeline.defenses]
        return audit_record(
            scores,
            coins,
            self.claim,
            self.asked,
            independent=self.canaries is not None,
            way="training" if self.canaries is None else "uploads",
            method=self.federation.method.name,
            dataset=self.federation.data.dataset.name,
            defense=" + ".join(one.label for one in facts) or "none",
        )


def plan_audit(federation: Federation, asked: Asked) -> PlannedAudit:
    """Choose the claim of a prepared federation that is audited, and make its canaries.

    Claims about images that rest on guards of gradients are audited within local training, in one run; all others behind the
    defenses of an upload.

    Raises:
        UserError: where nothing is claimed, or no canary fits.
    """
    plan = protection_plan(federation.config, federation.method, federation.clients)
    claim = _claim(federation, plan, asked)
    if claim.unit == "client" or not federation.pipeline.guards(plan):
        return PlannedAudit(federation, asked, claim, upload_canaries(federation, claim, asked.seed))
    alone, plan = audited_client(federation, asked.coins(), asked.seed)
    return PlannedAudit(alone, asked, _claim(alone, plan, asked), None)


def _claim(federation: Federation, plan: ProtectionPlan, asked: Asked) -> Claim:
    records = federation.pipeline.privacy(plan)
    return chosen_claim(claims(records, asked.claim, federation.config.rounds), asked.claimant)


def audit_record(
    scores: Scores, coins: NDArray[np.bool_], claim: Claim, asked: Asked, *, independent: bool, way: Way, **names: Any
) -> PrivacyAuditRecord:
    """Return the record of scored canaries.

    Args:
        scores: ``(m,)``.
        coins: ``(m,)``, whether each canary is in.
        claim: that they are held against.
        asked: of the audit.
        independent: releases of different canaries are independent of each other.
        way: where the canaries were.
        names: ``method``, ``dataset``, ``defense`` and, where there are any, ``notices`` of the record.
    """
    design = Design(asked.confidence, claim.delta, independent, claim.gaussian)
    found = audit_scores(scores, coins, design)
    verdict = word(claim.stated, found.most, found.control)
    return PrivacyAuditRecord(
        **names,
        claimant=claim.claimant,
        seed=asked.seed,
        command=asked.command,
        claim=claim.stated,
        way=way,
        canaries=len(scores),
        included=int(coins.sum()),
        confidence=asked.confidence,
        delta=claim.delta,
        bounds=as_record(found.bounds, {"Gaussian": GAUSSIAN}),
        attainable=finite(found.attainable),
        control=finite(found.control),
        verdict=verdict,
        sentence=sentence(claim.claimant, claim.stated, found, verdict, len(scores), design),
    )


def _behind_defenses(
    canaries: UploadCanaries, coins: NDArray[np.bool_], folder: Path, listener: Listener
) -> NDArray[np.float64]:
    """Return the scores of all canaries, those that are in the folder already among them."""
    path, number = folder / SCORES, len(coins)
    known = read_lines(path) if path.is_file() else []
    found = [float(row["score"]) for row in known][:number]
    fresh: list[dict[str, Any]] = []
    with listener.progress("canaries behind the defenses") as report, torch.no_grad():
        for canary in range(len(found), number):
            score = canaries.score(canary, included=bool(coins[canary]))
            found.append(score)
            fresh.append({"canary": canary, "in": bool(coins[canary]), "score": score})
            if len(fresh) == TOGETHER or canary + 1 == number:
                append_lines({path: fresh})
                fresh = []
            report(canary + 1, number, f"{canary + 1:,} of {number:,}")
    return np.array(found)
