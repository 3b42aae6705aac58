"""One finding for each upload that was attacked: what the verdicts on all attacks on it support together, and no more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedpriv.pages.alike import Result, Verdicts, about_of, over_seeds, reach_key, upload_key
from fedpriv.pages.frontier import point_labels
from fedpriv.pages.labels import local_work
from fedpriv.pages.reached import Reached, first_beyond, furthest, reach_sentence, reached, span_of
from fedpriv.scoring.ranking import card_key, card_numbers, reach_label
from fedpriv.scoring.records import Kind, Provenance, ThreatModel, Verdict
from fedpriv.scoring.records.made import Reach
from fedpriv.scoring.storage import AttackRecord, scored
from fedpriv.scoring.verdict import BADGES, briefly, gain, headline, inferred, untested

IMAGES: tuple[Kind, ...] = ("leaks", "some", "vectors", "classes")
"""Findings of attacks that make images, the gravest first."""


@dataclass(frozen=True)
class Told:
    """An attack, over its seeds, as a finding tells of it.

    Attributes:
        verdict: over all seeds.
        card: the attacker's knowledge.
        by: what it is called, with its card where the attacks on its upload were made under several, and its seeds.
        folders: of its results, one a seed.
    """

    verdict: Verdict
    card: ThreatModel
    by: str
    folders: tuple[Path, ...]


@dataclass(frozen=True)
class Finding:
    """The knowledge about one upload.

    Attributes:
        key: what :func:`fedpriv.pages.alike.upload_key` calls it.
        upload: kind of upload, method, defense.
        where: data set, and the local work where it is limited.
        method, target, dataset: registry names; a folder of images goes by its own.
        kinds: of the verdicts that stand, the gravest first; else ``untested`` or ``none``.
        short: the gravest of it in one sentence.
        sentence: what is said of images and vectors.
        members: what is said of membership and properties, or empty where they were not asked.
        images: what the attacks that make images come to, in one sentence; empty where there are none.
        told: the attacks on it.
        first: of those that make images the one to show: the strongest of the gravest kind that stands, else the one that
            comes nearest; None where there is none.
        setting: of a reach, that this is on; or None.
        reach: its settings, where the finding is on several of them; then ``first`` is on the last that leaks.
        parts: the findings on each of these.
    """

    key: str
    upload: str
    where: str
    method: str
    target: str
    dataset: str
    kinds: tuple[Kind, ...]
    short: str
    sentence: str
    members: str
    told: tuple[Told, ...]
    first: Told | None
    images: str = ""
    setting: Reach | None = None
    reach: tuple[Reached, ...] = ()
    parts: tuple[Finding, ...] = ()

    @property
    def leaks(self) -> bool:
        """True where something stands of images or vectors."""
        return any(kind in IMAGES for kind in self.kinds)

    @property
    def name(self) -> str:
        """The upload's name in a heading."""
        return f"{self.upload}, {self.where}"


def findings(results: Mapping[Path, Result], verdicts: Verdicts) -> tuple[Finding, ...]:
    """Return one finding an upload, by kind, the gravest first, then by name.

    Gains are compared within one knowledge card only: a sentence names the strongest attack of each card, and the order
    of findings goes by no gain.

    Args:
        results: of attacks and inferences, by their folders; of several budgets the largest.
        verdicts: as :func:`fedpriv.pages.alike.judge_results` makes them of the whole page.
    """
    uploads: dict[str, list[tuple[Path, ...]]] = {}
    for folders in over_seeds(results):
        uploads.setdefault(upload_key(about_of(results[folders[0]])), []).append(folders)
    firsts = [about_of(results[upload[0][0]]) for upload in uploads.values()]
    numbers = _cards(results)
    result = [
        _finding(key, f"{first.target} uploads of {label}", first, _told(selected, results, verdicts, numbers))
        for label, first, (key, selected) in zip(_labels(firsts), firsts, uploads.items(), strict=True)
    ]
    alike = [reach_key(about) or index for index, about in enumerate(firsts)]
    together = [
        [item for item, key in zip(result, alike, strict=True) if key == group] for group in dict.fromkeys(alike)
    ]
    return tuple(
        sorted((_on_reach(current) if current[0].setting else current[0] for current in together), key=_gravity)
    )


def _labels(abouts: Sequence[Provenance]) -> list[str]:
    """Return the names of uploads, all settings of a reach alike."""
    alike = [reach_key(about) or str(index) for index, about in enumerate(abouts)]
    firsts = dict(zip(reversed(alike), reversed(abouts), strict=True))
    order = list(dict.fromkeys(alike))
    called = dict(zip(order, point_labels([firsts[key] for key in order], with_target=False), strict=True))
    return [called[key] for key in alike]


def _on_reach(group: Sequence[Finding]) -> Finding:
    """Return one finding from those on the settings of a reach."""
    there = {items.setting.label: items for items in group if items.setting is not None}
    series = reached([(item.setting, item.images, item.leaks) for item in group if item.setting is not None])
    if len(series) == 1:
        return group[0]
    last = furthest(series)
    parts = tuple(there[part.label] for part in series if part.label in there)
    shown = parts[0] if last is None else there[series[last].label]
    kinds = {kind for entry in group for kind in entry.kinds}
    said = tuple(kind for kind in BADGES if kind in kinds and kind not in ("untested", "none"))
    members = [f"At {one.setting.words}: {one.members}" for one in parts if one.setting and one.members]
    named = {series[position].label for position in (last, first_beyond(series)) if position is not None}
    others = [one for one in parts if one.setting and one.setting.label not in named]
    each = [f"At {other.setting.words}: {other.sentence}" for other in others if other.setting]
    return replace(
        shown,
        where=f"{shown.dataset}, {span_of(series)}",
        kinds=said or ("untested" if "untested" in kinds else "none",),
        short=reach_sentence(series),
        sentence=" ".join([reach_sentence(series), *each]),
        members=" ".join(members),
        told=tuple(details for one in parts for details in one.told),
        reach=series,
        parts=parts,
    )


def _cards(results: Mapping[Path, Result]) -> dict[str, int]:
    """Return the numbers by which the report calls knowledge cards."""
    attacks = [result for result in results.values() if isinstance(result, AttackRecord)]
    return card_numbers(attacks, scored)


def _told(
    paths: Sequence[tuple[Path, ...]], results: Mapping[Path, Result], verdicts: Verdicts, numbers: Mapping[str, int]
) -> list[Told]:
    cards = {folders: about_of(results[folders[0]]).knowledge for folders in paths}
    several = {card_key(card) for folders, card in cards.items() if verdicts[folders].makes_images}
    result = []
    for folders, card in cards.items():
        verdict = verdicts[folders]
        under = f" under card {numbers[card_key(card)]}" if verdict.makes_images and len(several) > 1 else ""
        seeds = f" ({verdict.n_seeds} seeds)" if verdict.n_seeds > 1 else ""
        # On a reach, sentences name the setting themselves.
        called = verdict.attack.removesuffix(f", {reach_label(about_of(results[folders[0]]))}")
        result.append(Told(verdict, card, f"{called}{seeds}{under}", folders))
    return result


def _finding(key: str, upload: str, about: Provenance, lines: Sequence[Told]) -> Finding:
    images = [items for items in lines if items.verdict.makes_images]
    requested = [entry for entry in lines if not entry.verdict.makes_images]
    kinds = {item.verdict.kind for item in lines}
    most_severe = next((kind for kind in IMAGES if kind in {one.verdict.kind for one in images}), None)
    standing = [
        kind for kind in BADGES if kind == most_severe or (kind in kinds and kind in ("membership", "property"))
    ]
    nothing: Kind = "untested" if "untested" in kinds else "none"
    shown = [image for image in images if image.verdict.kind == (most_severe or nothing)] or images
    first = max(shown, key=_mean_gain, default=None)
    said = tuple(standing) or (nothing,)
    return Finding(
        key=key,
        upload=upload,
        where=", ".join(filter(None, (about.dataset, local_work(about.run)))),
        method=about.method,
        target=about.target,
        dataset=about.dataset,
        kinds=said,
        short=_short(said[0], first, requested),
        images="" if first is None else _of_images(first),
        setting=about.reach,
        sentence=_sentence(most_severe, images) if images else "No attack that makes images was run.",
        members=" ".join(dict.fromkeys(_question(one, requested) for one in requested)),
        told=tuple(lines),
        first=first,
    )


def _short(kind: Kind, first: Told | None, requested: Sequence[Told]) -> str:
    """Return the one sentence that a reader in haste takes along."""
    if kind in ("membership", "property") or first is None:
        return inferred(next(item.verdict for item in requested if item.verdict.kind == kind))
    return _of_images(first)


def _of_images(first: Told) -> str:
    if first.verdict.kind == "none":
        nearest = f"nearest comes {first.by}: {gain(first.verdict)}"
        return f"No attack does better than a guess, though tested hard enough; {nearest}."
    untold = first.verdict.kind == "untested"
    return briefly(first.verdict, first.by) if untold else headline(first.verdict, first.by)


def _gravity(finding: Finding) -> tuple[int, str, str]:
    return list(BADGES).index(finding.kinds[0]), finding.upload, finding.where  # without a defense before with one


def _question(item: Told, requested: Sequence[Told]) -> str:
    """Return the sentence on an inference, with its stage where it was asked at several."""
    text = inferred(item.verdict)
    names = {other.verdict.attack for other in requested if other.verdict.question == item.verdict.question}
    return f"{item.verdict.attack}: {text}" if len(names) > 1 else text


def _sentence(most_severe: Kind | None, images: Sequence[Told]) -> str:
    if most_severe is None:
        return _nothing(images)
    parts = (
        []
        if most_severe == "vectors"
        else [headline(item.verdict, item.by) for item in _strongest(images, most_severe)]
    )
    parts += _recovered(images)
    if most_severe in ("vectors", "classes"):
        parts.append(f"Images are not shown to come back: {_nearest(images)}.")
    return " ".join(parts)


def _nothing(images: Sequence[Told]) -> str:
    """Return the sentence where nothing stands: the attacks that were not tested hard enough speak first."""
    loose = [image for image in images if image.verdict.kind == "untested"]
    if not loose:
        return f"Nothing is found beyond a guess, though tested hard enough: {_nearest(images)}."
    return " ".join(untested(item.verdict, item.by) for item in loose)


def _nearest(images: Sequence[Told]) -> str:
    return "; ".join(f"{item.by} comes nearest: {gain(item.verdict)}" for item in _by_card(images, _mean_gain))


def _mean_gain(item: Told) -> float:
    result = item.verdict.overall("images")
    return float("-inf") if result is None or result.mean is None else result.mean


def _strongest(images: Sequence[Told], kind: Kind) -> list[Told]:
    return _by_card([image for image in images if image.verdict.kind == kind], _mean_gain)


def _by_card(images: Sequence[Told], size: Callable[[Told], float]) -> list[Told]:
    """Return the largest of each knowledge card."""
    cards: dict[str, list[Told]] = {}
    for image in images:
        cards.setdefault(card_key(image.card), []).append(image)
    return [max(current, key=size) for current in cards.values()]


# ---------------------------------------------------------------- recovered vectors


def _recovered(images: Sequence[Told]) -> list[str]:
    """Return the sentences on recovered vectors: one for each set of cards that differ in the rounds seen alone.

    Told is the attack that wins most against the best guess, of those that see most rounds among those that succeed.
    """
    apart: dict[str, list[Told]] = {}
    for image in images:
        apart.setdefault(card_key(replace(image.card, rounds_seen=1)), []).append(image)
    results = []
    for alike in apart.values():
        hits = [entry for entry in alike if _wins(entry) is not None]
        if hits:
            best = max(hits, key=lambda items: (items.card.rounds_seen, _wins(items) or 0.0))
            rounds = {item.card.rounds_seen: False for item in alike if item.verdict.attack == best.verdict.attack}
            rounds |= {hit.card.rounds_seen: True for hit in hits if hit.verdict.attack == best.verdict.attack}
            details = headline(best.verdict.model_copy(update={"kind": "vectors"}), best.by)
            results.append(f"{details} {_from_rounds(rounds)}".rstrip())
    return results


def _wins(item: Told) -> float | None:
    """Return by how much recovered vectors beat the best guess where that stands, else None."""
    claims = [claim.mean for claim in item.verdict.claims if claim.measure in ("vectors", "vectors_identified")]
    return max((mean for mean in claims if mean is not None), default=None)


def _from_rounds(rounds: Mapping[int, bool]) -> str:
    """Return since when an attack succeeds, from whether it does by the number of rounds seen; nothing for one round.

    >>> _from_rounds({5: False, 12: True, 30: True}), _from_rounds({30: True}), _from_rounds({1: True})
    ('It takes 12 rounds (5 were too few).', 'It saw 30 rounds.', '')
    """
    seen = sorted(rounds)
    failed = [number for number in seen if not rounds[number]]
    # Success that a larger number of rounds undoes is no threshold: then the first that succeeds is told alone.
    first = next(n for n in seen if rounds[n] and (not rounds[seen[-1]] or n > max(failed, default=0)))
    if failed and max(failed) < first:
        return f"It takes {first} rounds ({max(failed)} were too few)."
    return f"It saw {first} rounds." if first > 1 else ""
