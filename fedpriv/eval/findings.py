"""One sentence for each upload that was attacked: what all attacks on it together support, and no more."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.eval.frontier import WORST_FIRST, point_labels, upload_key
from fedpriv.eval.ranking import title
from fedpriv.eval.storage import AttackRecord, scored
from fedpriv.eval.verdict import Kind, beyond_chance, verdict_kind

_VECTORS = {
    "prototype": "class prototypes",
    "entangled": "class prototypes",
    "representation": "representations",
    "classifier": "representations",
    "angle-matrix": "representations",
}
"""What attacks recover before they make an image of it."""


@dataclass(frozen=True)
class Finding:
    """What is known of one upload.

    Attributes:
        name: kind of upload, method, defense, data set.
        method, target: registry names.
        kind: the gravest verdict among its attacks; of an attack with several seeds the commonest of them; None where
            no attack makes images or vectors of it.
        sentence: what the numbers support.
        members: the verdicts on membership and properties, or empty where they were not asked.
        also: what those say leaks, in two words each.
        attacks: every attack on it, under any card.
    """

    name: str
    method: str
    target: str
    kind: Kind | None
    sentence: str
    members: str
    also: tuple[str, ...]
    attacks: tuple[AttackRecord, ...]


def findings(
    attacks: Sequence[AttackRecord], members: Mapping[Path, Mapping[str, Any]] | None = None
) -> tuple[Finding, ...]:
    """Return one finding an upload, the gravest first.

    Args:
        attacks: scored attacks.
        members: records of membership and property inference by their folders; they stand with the attacks made in the
            same suite, that is, in folders beside theirs, or alone where there are none.

    Raises:
        UserError: when an attack was not scored.
    """
    uploads: dict[str, list[AttackRecord]] = {}
    for attack in attacks:
        uploads.setdefault(f"{attack.about['dataset']} {upload_key(attack)}", []).append(attack)
    labels = point_labels([own[0].about for own in uploads.values()])
    suites: dict[Path, list[Mapping[str, Any]]] = {}
    for folder, record in (members or {}).items():
        suites.setdefault(folder.resolve().parent, []).append(record)
    found = []
    for label, own in zip(labels, uploads.values(), strict=True):
        homes = dict.fromkeys(attack.directory.resolve().parent for attack in own)
        beside = [record for home in homes for record in suites.get(home, ())]
        found.append(_finding(label, own, beside))
    with_images = {attack.directory.resolve().parent for attack in attacks}
    found += _without_images([record for home, own in suites.items() if home not in with_images for record in own])
    return tuple(sorted(found, key=_gravity))


def _gravity(finding: Finding) -> tuple[int, bool, float, str]:
    place = len(WORST_FIRST) if finding.kind is None else WORST_FIRST.index(finding.kind)
    return place, not finding.also, -_gain(finding.attacks) if finding.attacks else 0.0, finding.name


def _without_images(records: Sequence[Mapping[str, Any]]) -> list[Finding]:
    together: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        together.setdefault((record["method"], record["target"], record["dataset"]), []).append(record)
    return [
        Finding(
            upload_name(method, target, dataset),
            method,
            target,
            None,
            "No attack that makes images was run.",
            _told(own),
            _also(own),
            (),
        )
        for (method, target, dataset), own in together.items()
    ]


def _told(records: Sequence[Mapping[str, Any]]) -> str:
    seeds = len({record["seed"] for record in records}) > 1
    told = [f"Seed {one['seed']}: {one['verdict']}" if seeds else str(one["verdict"]) for one in records]
    return " ".join(dict.fromkeys(told))


def _also(records: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return what leaks where an area under the curve lies beyond chance, the control, and what needs no upload."""
    found = []
    for record in records:
        interval = record["auc"]["ci95"]
        beyond = [0.5, *(record[key]["auc"]["value"] for key in ("permuted", "classes_alone") if record.get(key))]
        if interval is not None and interval[0] > max(beyond):
            found.append("leaks a property" if "question" in record else "leaks membership")
    return tuple(dict.fromkeys(found))


def upload_name(label: str, target: str, dataset: str) -> str:
    """Return what an upload is called in a heading.

    >>> upload_name("fedre, entangled + noise scale=0.1", "entangled", "digits")
    'entangled uploads of fedre + noise scale=0.1, digits'
    """
    return f"{target} uploads of {label.replace(f', {target}', '', 1)}, {dataset}"


def _finding(label: str, own: Sequence[AttackRecord], beside: Sequence[Mapping[str, Any]]) -> Finding:
    about = own[0].about
    kind, worst = _gravest(own)
    name = upload_name(label, about["target"], about["dataset"])
    return Finding(
        name,
        about["method"],
        about["target"],
        kind,
        _sentence(kind, worst, own),
        _told(beside),
        _also(beside),
        tuple(own),
    )


def _gain(attacks: Sequence[AttackRecord]) -> float:
    return float(np.mean([scored(attack)["advantage_db"]["mean"] for attack in attacks]))


def _gravest(own: Sequence[AttackRecord]) -> tuple[Kind, list[AttackRecord]]:
    """Return the gravest verdict, and the attack that has it, one record a seed; of several the one that gains most."""
    same: dict[str, list[AttackRecord]] = {}
    for attack in own:
        key = [attack.about["attack"], attack.about.get("options"), scored(attack).get("stage"), _card(attack)]
        same.setdefault(json.dumps(key, sort_keys=True, default=str), []).append(attack)

    def common(records: Sequence[AttackRecord]) -> Kind:
        kinds = Counter(verdict_kind(scored(attack)) for attack in records)
        return min(kinds, key=lambda kind: (-kinds[kind], WORST_FIRST.index(kind)))

    worst = min(same.values(), key=lambda records: (WORST_FIRST.index(common(records)), -_gain(records)))
    return common(worst), worst


def _card(attack: AttackRecord) -> dict[str, Any]:
    return dict(scored(attack)["knowledge"])


def _sentence(kind: Kind, worst: Sequence[AttackRecord], own: Sequence[AttackRecord]) -> str:
    records = [scored(attack) for attack in worst]
    name, gain = title(records[0]), _written_gain(records) + _seeds(records, kind)
    images = {
        "leaks": f"Images leak to {name}: {gain}.",
        "some": f"Some images leak to {name}, though not on average: {_which(records)}; {gain}.",
        "features": "No attack in this suite makes an image that beats the floor.",
        "classes": f"No image beats the floor, but {name} shows what classes look like to the client's model.",
        "single": f"One target only, so nothing can be said beyond it: {name}, {gain}.",
        "none": f"No attack in this suite beats a blind guess. {name} comes nearest: {gain}.",
        "worse": f"No attack in this suite beats a blind guess. {name} comes nearest: {gain}.",
    }[kind]
    vectors = _recovered(own)
    return f"{vectors} {images}" if kind == "features" else f"{images} {vectors}".rstrip()


def _written_gain(records: Sequence[Mapping[str, Any]]) -> str:
    gains = [record["advantage_db"] for record in records]
    mean = float(np.mean([gain["mean"] for gain in gains]))
    text = f"{mean:+.1f} dB against the floor"
    if len(gains) > 1:
        values = [gain["mean"] for gain in gains]
        return f"{text} (mean of {len(gains)} seeds, {min(values):+.1f} to {max(values):+.1f})"
    interval = gains[0]["ci95"]
    return text if interval is None else f"{text} (95 % interval {interval[0]:+.1f} to {interval[1]:+.1f})"


def _seeds(records: Sequence[Mapping[str, Any]], kind: Kind) -> str:
    agreeing = sum(verdict_kind(record) == kind for record in records)
    return "" if agreeing == len(records) else f", so in {agreeing} of {len(records)} seeds"


def _which(records: Sequence[Mapping[str, Any]]) -> str:
    share = float(np.mean([record["advantage_db"]["share_3db"] for record in records]))
    parts = [f"{100 * share:.0f} % of targets beat the floor by 3 dB"]
    found = [
        record["metrics"]["identification_top1"] for record in records if beyond_chance(record, "identification_top1")
    ]
    if found:
        mean, chance = (float(np.mean([one[key] for one in found])) for key in ("mean", "chance"))
        parts.append(f"{100 * mean:.0f} % are identified among decoys (chance {100 * chance:.0f} %)")
    return ", ".join(parts)


def _recovered(own: Sequence[AttackRecord]) -> str:
    """Return the sentence on recovered vectors: by which attack, and from how many rounds on; or nothing."""
    hits = [attack for attack in own if beyond_chance(scored(attack), "feature_identification")]
    if not hits:
        return ""
    best = max(hits, key=lambda attack: float(scored(attack)["metrics"]["feature_identification"]["mean"]))
    record, name = scored(best), best.about["attack"]
    found, error = record["metrics"]["feature_identification"], record["metrics"]["relative_error"]
    rounds = {
        int(_card(attack).get("rounds_seen", 1)): attack in hits
        for attack in sorted(own, key=lambda attack: attack in hits)
        if attack.about["attack"] == name
    }
    return (
        f"{_VECTORS.get(record['target'], 'Vectors').capitalize()} are recovered {_from_rounds(rounds)}: {name} tells "
        f"{100 * found['mean']:.0f} % from the client's others (chance {100 * found['chance']:.0f} %), median relative "
        f"error {100 * error['median']:.0f} %."
    )


def _from_rounds(rounds: Mapping[int, bool]) -> str:
    """Return since when an attack succeeds, from whether it does by the number of rounds seen.

    >>> _from_rounds({5: False, 12: True, 30: True}), _from_rounds({30: True}), _from_rounds({1: True})
    ('from 12 rounds on (not from 5)', 'from 30 rounds', 'from one round')
    """
    seen = sorted(rounds)
    failed = [number for number in seen if not rounds[number]]
    # Success that a larger number of rounds undoes is no threshold: then the first that succeeds is told alone.
    lasting = rounds[seen[-1]]
    first = next(n for n in seen if rounds[n] and (not lasting or n > max(failed, default=0)))
    count = "one round" if first == 1 else f"{first} rounds"
    if failed and max(failed) < first:
        return f"from {count} on (not from {max(failed)})"
    return f"from {count}"
