"""Differential privacy and defenses on a page: accounted guarantees, audited claims, and what is adapted to a defense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fedpriv.dp.verdict import figure, follows
from fedpriv.eval.records import About, AuditWord, PrivacyAuditRecord, Provenance
from fedpriv.eval.storage import StoredAttack
from fedpriv.federation.answer import NOT_EVALUATED, answer_sentence, answers_for
from fedpriv.federation.summary import DefenseFacts
from fedpriv.reports.labels import defense_label, method_label

_FIGURE = ("defense", "epsilon", "epsilon_of_weights", "delta", "releases")


@dataclass(frozen=True)
class Guarantee:
    """A guarantee accounted over a whole run, in words, and (name, value) of everything it rests on."""

    words: str
    conditions: tuple[tuple[str, str], ...]


def guarantee(name: str, record: Mapping[str, Any]) -> Guarantee:
    """Return a guarantee of the upload ``name`` in words, from an entry of ``privacy`` of a run's ``summary.json``."""
    spent, of_weights = record.get("epsilon"), record.get("epsilon_of_weights")
    text = "no guarantee" if of_weights is None else f"epsilon {of_weights:.4g} of the trained weights, none of uploads"
    text = text if spent is None else f"epsilon {spent:.4g}"
    delta = f", delta {record['delta']:g}" if record.get("delta") else ""
    rests = {
        key.replace("_", " "): value
        for key, value in record.items()
        if key not in _FIGURE and value not in (None, "", [])
    }
    return Guarantee(
        f"{name}, {record['defense']}: {text}{delta} over {record.get('releases', '?')} releases",
        tuple((key, _written(value)) for key, value in rests.items()),
    )


def _written(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(_written(item) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_BADGES: Final[Mapping[AuditWord, tuple[str, str]]] = {
    "contradicted": ("claim contradicted", "leaks"),
    "not contradicted": ("not contradicted", "none"),
    "untested": ("inconclusive", "untested"),
    "no claim": ("no claim", "none"),
}
"""Verdict -> its badge, and the kind of finding that the badge looks like. The most severe first."""


class AuditedClaim(NamedTuple):
    """An audited claim: its uploads and their defense, a badge and how that looks, its record, and a row of the table."""

    name: str
    badge: str
    kind: str
    record: PrivacyAuditRecord
    row: Mapping[str, str]


def audited_claims(records: Sequence[PrivacyAuditRecord]) -> tuple[AuditedClaim, ...]:
    """Return audited claims, the contradicted ones first."""
    severity = list(_BADGES)
    return tuple(_audited(record) for record in sorted(records, key=lambda item: severity.index(item.verdict)))


def _audited(record: PrivacyAuditRecord) -> AuditedClaim:
    claim, (badge, kind) = record.claim, _BADGES[record.verdict]
    if record.verdict != "contradicted" and claim is not None and not follows(claim):
        badge, kind = f"does not follow, {badge}", "untested"
    implied = None if claim is None else claim.implied
    where = "uploads that pass the defense" if record.way == "uploads" else "gradients within local training"
    row = {
        "defense": record.defense,
        "method": record.method,
        "data set": record.dataset,
        "claimed by": record.claimant,
        "epsilon claimed": "–" if claim is None else figure(claim.epsilon),
        "clip and noise imply": "–" if implied is None else figure(implied),
        f"at least ({100 * record.confidence:g} %)": ", ".join(
            f"{bound.name} {figure(bound.epsilon)}" for bound in record.bounds
        ),
        "delta": f"{record.delta:g}",
        "of": "–" if claim is None else f"{claim.releases} release{'' if claim.releases == 1 else 's'}, {claim.unit}",
        "neighbours": "–" if claim is None else claim.neighbours,
        "canaries": f"{record.canaries:,}, {record.included:,} of them in: {where}",
        "with a tenth of the noise": figure(record.control),
    }
    name = f"{record.defense} on {record.method}, {record.dataset}"
    return AuditedClaim(name, badge, kind, record, row)


def _contradicted(records: Sequence[PrivacyAuditRecord], defense: DefenseFacts, method: str) -> bool:
    """True if an audit contradicts what a defense with these options claims on a method's uploads."""
    return any(
        record.verdict == "contradicted"
        and (record.claimant, record.method) == (defense.name, method)
        and defense.label in record.defense.split(" + ")
        for record in records
    )


class DefenseRow(NamedTuple):
    """One defense, with its options, on one kind of upload, as it states itself; whether what is adapted to it was run."""

    name: str
    target: str
    methods: tuple[str, ...]
    source: str
    guarantee: str
    answer: str
    evaluated: str


def defenses(attacks: Sequence[StoredAttack], audits: Sequence[PrivacyAuditRecord] = ()) -> tuple[DefenseRow, ...]:
    """Return every defense of the runs that were attacked, once for each kind of upload."""
    guarded: dict[tuple[str, str], list[tuple[DefenseFacts, About]]] = {}
    for about in (attack.about for attack in attacks):
        for item in about.defenses:
            # The label of a study is that of the whole chain.
            name = defense_label(about) if len(about.defenses) == 1 else item.label
            guarded.setdefault((name, about.target), []).append((item, about))
    return tuple(_row(name, target, current, audits) for (name, target), current in guarded.items())


def _row(
    name: str, target: str, group: Sequence[tuple[DefenseFacts, About]], audits: Sequence[PrivacyAuditRecord]
) -> DefenseRow:
    stated, text = group[0][0], group[0][0].guarantee
    if any(_contradicted(audits, item, about.method) for item, about in group):
        text = f"the epsilon it claims is contradicted, see Privacy claims: {text}"
    methods = tuple(dict.fromkeys(method_label(about) for _, about in group))
    tried = {method: [about for _, about in group if method_label(about) == method] for method in methods}
    missing = {method: unadapted(stated, target, abouts) for method, abouts in tried.items()}
    lacking = [f"{why} was not run on {method}" for method, why in missing.items() if why]
    evaluated = f"{NOT_EVALUATED}: {'; '.join(lacking)}" if lacking else "the adapted attack was run"
    answer = answer_sentence(stated.answers, stated.unanswered)
    return DefenseRow(name, target, methods, stated.source, text, answer, evaluated)


def unadapted(defense: DefenseFacts, target: str, tried: Sequence[Provenance]) -> str:
    """Return attacks adapted to a defense that were not run on uploads of a kind; nothing where some were."""
    ways = answers_for(defense.answers, target, defense.options)
    if not ways:
        return f"an attack adapted to {defense.name} (none is known on {target} uploads)"
    run = any(way.met_by(made.attack, made.options) for way in ways for made in tried)
    return "" if run else "; ".join(way.words for way in ways)
