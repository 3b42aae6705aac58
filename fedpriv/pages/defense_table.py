"""The table of defenses: what each guarantees, what is adapted to it, and whether that was run on what it guards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedpriv.federation.answer import NOT_EVALUATED, Answer, answer_sentence, answers_for
from fedpriv.federation.summary import DefenseFacts as Stated
from fedpriv.pages.labels import defense_label, method_label
from fedpriv.pages.privacy_claims import TITLE, contradicted
from fedpriv.scoring.records import PrivacyAuditRecord
from fedpriv.scoring.storage import AttackRecord


@dataclass(frozen=True)
class DefenseFacts:
    """One defense on one kind of upload.

    Attributes:
        name: with its options.
        target: kind of upload.
        source, guarantee, answer: as the defense states them.
        ways: alternatives of the answer that are about this kind; empty where nothing is adapted to it.
        tried: by method, the attacks of this report that are among them; empty where none was run.
    """

    name: str
    target: str
    source: str
    guarantee: str
    answer: str
    ways: tuple[Answer, ...]
    tried: Mapping[str, tuple[str, ...]]

    @property
    def guards(self) -> tuple[str, ...]:
        """Methods whose uploads it guards."""
        return tuple(self.tried)

    @property
    def evaluated(self) -> str:
        """The state of the attack adapted to the defense on these uploads, in words: run or not."""
        if not self.ways:
            return f"{NOT_EVALUATED}: no attack of this package is adapted to it on {self.target} uploads"
        wanted = "; ".join(way.words for way in self.ways)
        if not any(self.tried.values()):
            return f"{NOT_EVALUATED} here: {wanted} was not run on these uploads"
        as_they_are = " as it is" if not any(way.attacks for way in self.ways) else ""
        if len(set(self.tried.values())) == 1:
            return f"run here{as_they_are}: {', '.join(next(iter(self.tried.values())))}"
        lines = [
            f"{', '.join(names)} on {method}" if names else f"none on {method}" for method, names in self.tried.items()
        ]
        return f"run here{as_they_are}: {'; '.join(lines)}"


def defenses(attacks: Sequence[AttackRecord], audits: Sequence[PrivacyAuditRecord] = ()) -> tuple[DefenseFacts, ...]:
    """Return every defense of the runs that were attacked, once for each kind of upload, as the records state it.

    A guarantee that an audit contradicts is called so.
    """
    guarded: dict[tuple[str, str], list[tuple[Stated, AttackRecord]]] = {}
    for attack in attacks:
        chosen = attack.about.defenses
        for item in chosen:
            # The label of a study is that of the whole chain.
            name = defense_label(attack.about) if len(chosen) == 1 else item.label
            guarded.setdefault((name, attack.about.target), []).append((item, attack))
    return tuple(_facts(name, target, current, audits) for (name, target), current in guarded.items())


def _facts(
    name: str, target: str, stateds: Sequence[tuple[Stated, AttackRecord]], audits: Sequence[PrivacyAuditRecord]
) -> DefenseFacts:
    stated = stateds[0][0]
    ways = answers_for(stated.answers, target, stated.options)
    tried: dict[str, dict[str, None]] = {}
    for _, attack in stateds:
        names = tried.setdefault(method_label(attack.about), {})
        if any(way.met_by(attack.about.attack, attack.about.options) for way in ways):
            names[attack.about.attack] = None
    wrong = any(contradicted(audits, item, attack.about.method) for item, attack in stateds)
    return DefenseFacts(
        name=name,
        target=target,
        source=stated.source,
        guarantee=f"the epsilon it claims is contradicted, see {TITLE}: {stated.guarantee}"
        if wrong
        else stated.guarantee,
        answer=answer_sentence(stated.answers, stated.unanswered),
        ways=ways,
        tried={method: tuple(names) for method, names in tried.items()},
    )
