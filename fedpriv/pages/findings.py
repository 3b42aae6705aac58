"""One sentence for each upload that was attacked: what all attacks on it together support, and no more."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedpriv.pages.frontier import WORST_FIRST, point_labels, upload_key
from fedpriv.pages.labels import local_work, upload_title
from fedpriv.scoring.ranking import card_key, card_numbers, stage_name, title
from fedpriv.scoring.records import InferenceResult, Provenance, ReconstructionRecord
from fedpriv.scoring.storage import AttackRecord, scored
from fedpriv.scoring.verdict import Kind, beyond_chance, percent, verdict_kind

_NOTHING: tuple[Kind, ...] = ("none", "worse")
"""Verdicts that differ by luck and precision alone: no image beats the floor."""


@dataclass(frozen=True)
class Finding:
    """What is known of one upload.

    Attributes:
        upload: kind of upload, method, defense.
        where: data set, and the local work where it is limited.
        method, target: registry names.
        kind: the gravest verdict among its attacks; of an attack with several seeds the commonest of them; None where
            no attack makes images or vectors of it.
        sentence: what the numbers support.
        members: the verdicts on membership and properties, or empty where they were not asked.
        also: what those say leaks, in two words each.
        attacks: every attack on it, under any card.
    """

    upload: str
    where: str
    method: str
    target: str
    kind: Kind | None
    sentence: str
    members: str
    also: tuple[str, ...]
    attacks: tuple[AttackRecord, ...]

    @property
    def name(self) -> str:
        """What the upload is called in a heading."""
        return f"{self.upload}, {self.where}"


def findings(
    attacks: Sequence[AttackRecord], members: Mapping[Path, InferenceResult] | None = None
) -> tuple[Finding, ...]:
    """Return one finding an upload, by kind of verdict, the gravest first, then by name.

    Gains are compared within one knowledge card only: a sentence names the strongest attack of each card, and the order
    of findings goes by no gain.

    Args:
        attacks: scored attacks.
        members: records of membership and property inference by their folders; they stand with the attacks made in the
            same suite, that is, in folders beside theirs, or alone where there are none.

    Raises:
        UserError: when an attack was not scored.
    """
    uploads: dict[str, list[AttackRecord]] = {}
    for attack in attacks:
        uploads.setdefault(f"{attack.about.dataset} {upload_key(attack)}", []).append(attack)
    labels = point_labels([own[0].about for own in uploads.values()])
    cards = card_numbers(attacks, scored)
    suites: dict[Path, list[InferenceResult]] = {}
    for folder, record in (members or {}).items():
        suites.setdefault(folder.resolve().parent, []).append(record)
    found = []
    for label, own in zip(labels, uploads.values(), strict=True):
        homes = dict.fromkeys(attack.directory.resolve().parent for attack in own)
        beside = [record for home in homes for record in suites.get(home, ())]
        found.append(_finding(label, own, beside, cards))
    with_images = {attack.directory.resolve().parent for attack in attacks}
    found += _without_images([record for home, own in suites.items() if home not in with_images for record in own])
    return tuple(sorted(found, key=_gravity))


def _gravity(finding: Finding) -> tuple[int, bool, str, str]:
    place = len(WORST_FIRST) if finding.kind is None else WORST_FIRST.index(finding.kind)
    return place, not finding.also, finding.upload, finding.where  # without a defense before with one


def _without_images(records: Sequence[InferenceResult]) -> list[Finding]:
    together: dict[tuple[str, str, str], list[InferenceResult]] = {}
    for record in records:
        together.setdefault((upload_title(record), record.target, _where(record)), []).append(record)
    return [
        Finding(
            upload_name(label, target),
            where,
            own[0].method,
            target,
            None,
            "No attack that makes images was run.",
            _told(own),
            _also(own),
            (),
        )
        for (label, target, where), own in together.items()
    ]


def _told(records: Sequence[InferenceResult]) -> str:
    """Return verdicts, with the seed and the stage of training where they differ."""
    seeds, stages = ([name(record) for record in records] for name in (_seed_name, stage_name))
    told = []
    for record, *apart in zip(records, seeds, stages, strict=True):
        names = [name for name, among in zip(apart, (seeds, stages), strict=True) if name and len(set(among)) > 1]
        said = f"{', '.join(names)}: {record.verdict}" if names else str(record.verdict)
        told.append(said[0].upper() + said[1:])
    return " ".join(dict.fromkeys(told))


def _seed_name(record: InferenceResult) -> str:
    return f"seed {record.seed}"


def _also(records: Sequence[InferenceResult]) -> tuple[str, ...]:
    """Return what leaks where an area under the curve lies beyond chance, the control, and what needs no upload."""
    found = []
    for record in records:
        interval = record.auc.ci95
        beyond = [0.5] if record.permuted is None else [0.5, record.permuted.auc.value]
        beyond += [record.classes_alone.auc.value] if record.kind == "property" else []
        if interval is not None and interval[0] > max(beyond):
            found.append("leaks a property" if record.kind == "property" else "leaks membership")
    return tuple(dict.fromkeys(found))


def _where(about: Provenance) -> str:
    """Return the data set and, where it is limited, the local work behind a result."""
    return ", ".join(filter(None, (about.dataset, local_work(about.run))))


def upload_name(label: str, target: str) -> str:
    """Return what an upload is called in a heading, which names its kind in front.

    >>> upload_name("fedre, entangled + noise scale=0.1", "entangled")
    'entangled uploads of fedre + noise scale=0.1'
    """
    return f"{target} uploads of {label.replace(f', {target}', '', 1)}"


def _finding(
    label: str, own: Sequence[AttackRecord], beside: Sequence[InferenceResult], cards: Mapping[str, int]
) -> Finding:
    about = own[0].about
    kind, worst = _gravest(own, cards)
    return Finding(
        upload_name(label, about.target),
        _where(about),
        about.method,
        about.target,
        kind,
        _sentence(kind, worst, own, cards),
        _told(beside),
        _also(beside),
        tuple(own),
    )


def _gain(attacks: Sequence[AttackRecord]) -> float:
    return float(np.mean([scored(attack).advantage_db.mean for attack in attacks]))


def _gravest(own: Sequence[AttackRecord], cards: Mapping[str, int]) -> tuple[Kind, list[list[AttackRecord]]]:
    """Return the gravest verdict, and for each card under which it stands the attack that has it, one record a seed.

    Of several attacks under one card the one that gains most.
    """
    by_card: dict[str, dict[str, list[AttackRecord]]] = {}
    for attack in own:
        same = by_card.setdefault(card_key(attack.about.knowledge), {})
        key = [attack.about.attack, attack.about.options, stage_name(attack.about)]
        same.setdefault(json.dumps(key, sort_keys=True, default=str), []).append(attack)
    kind = min((_common(one) for same in by_card.values() for one in same.values()), key=WORST_FIRST.index)
    found = []
    for card in sorted(by_card, key=cards.__getitem__):
        having = [one for one in by_card[card].values() if _common(one) in _alike(kind)]
        if having:
            found.append(max(having, key=_gain))
    return kind, found


def _common(records: Sequence[AttackRecord]) -> Kind:
    """Return the commonest verdict over seeds, of several the gravest."""
    kinds = Counter(verdict_kind(scored(attack)) for attack in records)
    return min(kinds, key=lambda kind: (-kinds[kind], WORST_FIRST.index(kind)))


def _alike(kind: Kind) -> tuple[Kind, ...]:
    """Return the verdicts of which the same sentence is true."""
    return _NOTHING if kind in _NOTHING else (kind,)


def _under(attack: AttackRecord, own: Sequence[AttackRecord], cards: Mapping[str, int]) -> str:
    """Return under which card an attack was made, where the attacks on its upload were made under several."""
    several = len({card_key(other.about.knowledge) for other in own}) > 1
    return f" under card {cards[card_key(attack.about.knowledge)]}" if several else ""


def _sentence(
    kind: Kind, worst: Sequence[Sequence[AttackRecord]], own: Sequence[AttackRecord], cards: Mapping[str, int]
) -> str:
    told = []
    for attacks in worst:
        records = [scored(attack) for attack in attacks]
        gain = _written_gain(records) + _seeds(records, _alike(kind))
        told.append((title(records[0]), _under(attacks[0], own, cards), _which(records), gain))
    nearest = " ".join(f"{name} comes nearest{under}: {gain}." for name, under, _, gain in told)
    nothing = f"No attack in this suite beats the floor. {nearest}"
    names = " and ".join(name + under for name, under, _, _ in told)
    images = {
        "leaks": " ".join(f"Images leak to {name}{under}: {gain}." for name, under, _, gain in told),
        "some": " ".join(
            f"Some images leak to {name}{under}, though not on average: {which}; {gain}."
            for name, under, which, gain in told
        ),
        "features": "No attack in this suite makes an image that beats the floor.",
        "classes": f"No image beats the floor, but {names} show{'s' if len(told) == 1 else ''} what classes look like "
        "to the client's model.",
        "single": "One target only, so nothing can be said beyond it: "
        + "; ".join(f"{name}{under}, {gain}" for name, under, _, gain in told)
        + ".",
        "none": nothing,
        "worse": nothing,
    }[kind]
    vectors = _recovered(own, cards)
    return f"{vectors} {images}" if kind == "features" else f"{images} {vectors}".rstrip()


def _written_gain(records: Sequence[ReconstructionRecord]) -> str:
    gains = [record.advantage_db for record in records]
    mean = float(np.mean([gain.mean for gain in gains]))
    text = f"{mean:+.1f} dB against the floor"
    if len(gains) > 1:
        values = [gain.mean for gain in gains]
        return f"{text} (mean of {len(gains)} seeds, {min(values):+.1f} to {max(values):+.1f})"
    interval = gains[0].ci95
    return text if interval is None else f"{text} (95 % interval {interval[0]:+.1f} to {interval[1]:+.1f})"


def _seeds(records: Sequence[ReconstructionRecord], kinds: Collection[Kind]) -> str:
    agreeing = sum(verdict_kind(record) in kinds for record in records)
    return "" if agreeing == len(records) else f", so in {agreeing} of {len(records)} seeds"


def _which(records: Sequence[ReconstructionRecord]) -> str:
    share = float(np.mean([record.advantage_db.share_3db for record in records]))
    parts = [f"{100 * share:.0f} % of targets beat the floor by 3 dB"]
    found = [
        record.metrics.identification_top1 for record in records if beyond_chance(record.metrics.identification_top1)
    ]
    if found:
        mean, chance = float(np.mean([one.mean for one in found])), float(np.mean([one.chance for one in found]))
        parts.append(f"{100 * mean:.0f} % are identified among decoys (chance {100 * chance:.0f} %)")
    return ", ".join(parts)


def _recovered(own: Sequence[AttackRecord], cards: Mapping[str, int]) -> str:
    """Return the sentences on recovered vectors: by which attack, and from how many rounds on; or nothing.

    Vectors that an undefended upload holds as they are need no recovery.

    One for each set of cards that differ in the rounds seen alone, with the figures of the card that shows most rounds
    of those under which an attack succeeds.
    """
    first = own[0].about
    if first.upload.separate and not first.defenses:
        return ""
    apart: dict[str, list[AttackRecord]] = {}
    for attack in own:
        apart.setdefault(card_key(replace(attack.about.knowledge, rounds_seen=1)), []).append(attack)
    return " ".join(told for alike in apart.values() if (told := _recovered_by_rounds(alike, own, cards)))


def _recovered_by_rounds(alike: Sequence[AttackRecord], own: Sequence[AttackRecord], cards: Mapping[str, int]) -> str:
    told = {
        id(attack): found
        for attack in alike
        if (found := scored(attack).metrics.feature_identification) is not None and beyond_chance(found)
    }
    hits = [attack for attack in alike if id(attack) in told]
    if not hits:
        return ""
    most = max(_rounds(attack) for attack in hits)
    best = max((attack for attack in hits if _rounds(attack) == most), key=lambda attack: told[id(attack)].mean)
    found, error = told[id(best)], scored(best).metrics.relative_error
    name = best.about.attack
    rounds = {
        _rounds(attack): attack in hits
        for attack in sorted(alike, key=lambda attack: attack in hits)
        if attack.about.attack == name
    }
    return (
        f"{best.about.upload.vectors.capitalize()} are recovered {_from_rounds(rounds)}: {name} tells "
        f"{100 * found.mean:.0f} % from the client's others (chance {100 * found.chance:.0f} %), median relative "
        f"error {percent(None if error is None else error.median)}{_under(best, own, cards)}."
    )


def _rounds(attack: AttackRecord) -> int:
    return attack.about.knowledge.rounds_seen


def _from_rounds(rounds: Mapping[int, bool]) -> str:
    """Return since when an attack succeeds, from whether it does by the number of rounds seen.

    >>> _from_rounds({5: False, 12: True, 30: True}), _from_rounds({30: True}), _from_rounds({1: True})
    ('from 12 rounds on (not from 5)', 'from 30 rounds', 'from one round')
    """
    seen = sorted(rounds)
    failed = [number for number in seen if not rounds[number]]
    # Success that a larger number of rounds undoes is no threshold: then the first that succeeds is told alone.
    client_rng = rounds[seen[-1]]
    first = next(n for n in seen if rounds[n] and (not client_rng or n > max(failed, default=0)))
    count = "one round" if first == 1 else f"{first} rounds"
    if failed and max(failed) < first:
        return f"from {count} on (not from {max(failed)})"
    return f"from {count}"
