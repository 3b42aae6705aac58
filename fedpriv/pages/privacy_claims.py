"""Audited claims of differential privacy as a page tells them: the verdict first, every figure beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from fedpriv.dp.verdict import WAYS, each_bound, figure, follows
from fedpriv.federation.summary import DefenseFacts
from fedpriv.scoring.records import PrivacyAuditRecord
from fedpriv.scoring.records.privacy_audit import AuditWord

TITLE: Final = "Privacy claims"

BADGES: Final[Mapping[AuditWord, tuple[str, str]]] = {
    "contradicted": ("claim contradicted", "leaks"),
    "not contradicted": ("not contradicted", "none"),
    "untested": ("not tested hard enough", "untested"),
    "no claim": ("no claim", "none"),
}
"""Verdict -> its badge, and the kind of finding that the badge looks like. The most severe first."""


class AuditedClaim(NamedTuple):
    """An audited claim: its uploads and their defense, the verdict, and a row of the table by column."""

    name: str
    badge: str
    kind: str
    sentence: str
    notices: tuple[str, ...]
    row: Mapping[str, str]
    command: str
    seed: int


def audited_claims(records: Sequence[PrivacyAuditRecord]) -> tuple[AuditedClaim, ...]:
    """Return audited claims, the contradicted ones first."""
    severity = list(BADGES)
    return tuple(_audited(record) for record in sorted(records, key=lambda item: severity.index(item.verdict)))


def contradicted(records: Sequence[PrivacyAuditRecord], defense: DefenseFacts, method: str) -> bool:
    """True if an audit contradicts what a defense with these options claims on a method's uploads."""
    return any(
        record.verdict == "contradicted"
        and (record.claimant, record.method) == (defense.name, method)
        and defense.label in record.defense.split(" + ")
        for record in records
    )


def _audited(record: PrivacyAuditRecord) -> AuditedClaim:
    claim, (badge, kind) = record.claim, BADGES[record.verdict]
    if record.verdict != "contradicted" and claim is not None and not follows(claim):
        badge, kind = f"does not follow, {badge}", "untested"
    implied = None if claim is None else claim.implied
    row = {
        "defense": record.defense,
        "method": record.method,
        "data set": record.dataset,
        "claimed by": record.claimant,
        "epsilon claimed": "–" if claim is None else figure(claim.epsilon),
        "clip and noise imply": "–" if implied is None else figure(implied),
        f"at least ({100 * record.confidence:g} %)": each_bound(record.bounds),
        "delta": f"{record.delta:g}",
        "of": "–" if claim is None else f"{claim.releases} release{'' if claim.releases == 1 else 's'}, {claim.unit}",
        "neighbours": "–" if claim is None else claim.neighbours,
        "canaries": f"{record.canaries:,}, {record.included:,} of them in: {WAYS[record.way]}",
        "with a tenth of the noise": figure(record.control),
    }
    name = f"{record.defense} on {record.method}, {record.dataset}"
    return AuditedClaim(name, badge, kind, record.sentence, record.notices, row, record.command, record.seed)
