"""Audits of claims of differential privacy: which claim, coins, canaries, scores, bounds, record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from numpy.typing import NDArray

from fedpriv.defenses.accounting import gaussian_epsilon
from fedpriv.dp.canaries import CanaryPair, audited_client, canary_pair, training_scores, upload_scores
from fedpriv.dp.verdict import Design, as_record, audit_scores, finite, sentence, word
from fedpriv.federation.defense import ProtectionPlan, defense_facts
from fedpriv.federation.prepared import Federation, protection_plan
from fedpriv.scoring.records.privacy_audit import ClaimedPrivacy, PrivacyAuditRecord
from fedpriv.util.config import mapping, parse
from fedpriv.util.errors import UserError, shown
from fedpriv.util.parallel import Listener
from fedpriv.util.seeds import derive_seed


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
