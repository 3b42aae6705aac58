"""One finding for each upload that was attacked: what the verdicts on all attacks on it support together, and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedpriv.pages.alike import Result, Verdicts, about_of, over_seeds, reach_key, upload_key
from fedpriv.pages.labels import local_work, point_labels
from fedpriv.pages.reach import Reached, first_beyond, furthest, reach_sentence, reached, span_of
from fedpriv.scoring.ranking import card_key, card_numbers, reach_label
from fedpriv.scoring.records import Kind, Provenance, ThreatModel, Verdict
from fedpriv.scoring.records.made import Reach
from fedpriv.scoring.storage import AttackRecord, scored
from fedpriv.scoring.verdict import BADGES, briefly, gain, headline, inferred, untested

IMAGES: tuple[Kind, ...] = ("leaks", "some", "vectors", "classes")
"""Findings of attacks that make images, the most severe first."""


@dataclass(frozen=True)
class Attacked:
    """An attack, over its seeds.

    Attributes:
        verdict: over all seeds.
        card: the threat model.
        by: what it is called, with its seeds, and its threat model where the attacks on its upload were made under several.
        folders: of its results, one a seed.
    """

    verdict: Verdict
    card: ThreatModel
    by: str
    folders: tuple[Path, ...]

    @property
    def mean_gain(self) -> float:
        """Mean PSNR above the baseline in dB; minus infinity where no image was compared."""
        result = self.verdict.overall("images")
        return float("-inf") if result is None or result.mean is None else result.mean

    @property
    def vector_gain(self) -> float | None:
        """By how much recovered vectors beat the baseline where that stands, else None."""
        claims = [claim.mean for claim in self.verdict.claims if claim.measure in ("vectors", "vectors_identified")]
        return max((mean for mean in claims if mean is not None), default=None)


@dataclass(frozen=True)
class Finding:
    """The knowledge about one upload.

    Attributes:
        key: what :func:`fedpriv.pages.alike.upload_key` calls it.
        upload: kind of upload, method, defense.
        where: data set, and the local work where it is limited.
        method, target, dataset: registry names; a folder of images goes by its own.
        kinds: of the verdicts that stand, the most severe first; else ``untested`` or ``none``.
        short: the most severe of it in one sentence.
        sentence: what is said of images and vectors.
        members: what is said of membership and properties, or empty where they were not asked.
        attacks: on it.
        first: of those that make images the one to show: the strongest of the most severe kind that stands, else the one
            that comes nearest; None where there is none.
        images: what the attacks that make images come to, in one sentence; empty where there are none.
        setting: of a sweep over local work, that this is on; or None.
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
    attacks: tuple[Attacked, ...]
    first: Attacked | None
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
    """Return one finding an upload, by kind, the most severe first, then by name.

    Gains are compared under one threat model only: a sentence names the strongest attack of each, and the order of findings
    goes by no gain.

    Args:
        results: of attacks and inferences, by their folders; of several budgets the largest.
        verdicts: as :func:`fedpriv.pages.alike.judge_results` makes them of the whole page.
    """
    uploads: dict[str, list[tuple[Path, ...]]] = {}
    for folders in over_seeds(results):
        uploads.setdefault(upload_key(about_of(results[folders[0]])), []).append(folders)
    firsts = [about_of(results[upload[0][0]]) for upload in uploads.values()]
    numbers = card_numbers([result for result in results.values() if isinstance(result, AttackRecord)], scored)
    sweeps = [reach_key(about) or str(index) for index, about in enumerate(firsts)]  # those of one sweep are alike
    heads = dict(zip(reversed(sweeps), reversed(firsts), strict=True))
    order = list(dict.fromkeys(sweeps))
    labels = dict(zip(order, point_labels([heads[key] for key in order], with_target=False), strict=True))
    together: dict[str, list[Finding]] = {}
    for sweep, about, (key, selected) in zip(sweeps, firsts, uploads.items(), strict=True):
        name = f"{about.target} uploads of {labels[sweep]}"
        together.setdefault(sweep, []).append(
            _finding(key, name, about, _attacked(selected, results, verdicts, numbers))
        )
    made = [_on_reach(group) if group[0].setting else group[0] for group in together.values()]
    # Without a defense before with one.
    return tuple(sorted(made, key=lambda item: (list(BADGES).index(item.kinds[0]), item.upload, item.where)))


def _on_reach(group: Sequence[Finding]) -> Finding:
    """Return one finding from those on the settings of a sweep."""
    there = {items.setting.label: items for items in group if items.setting is not None}
    series = reached([(item.setting, item.images, item.leaks) for item in group if item.setting is not None])
    if len(series) == 1:
        return group[0]
    last = furthest(series)
    parts = tuple(there[part.label] for part in series if part.label in there)
    shown = parts[0] if last is None else there[series[last].label]
    kinds = {kind for entry in group for kind in entry.kinds}
    said = tuple(kind for kind in BADGES if kind in kinds and kind not in ("untested", "none"))
    named = {series[position].label for position in (last, first_beyond(series)) if position is not None}
    at = [(f"At {one.setting.words}", one) for one in parts if one.setting]
    each = [f"{where}: {one.sentence}" for where, one in at if one.setting and one.setting.label not in named]
    return replace(
        shown,
        where=f"{shown.dataset}, {span_of(series)}",
        kinds=said or ("untested" if "untested" in kinds else "none",),
        short=reach_sentence(series),
        sentence=" ".join([reach_sentence(series), *each]),
        members=" ".join(f"{where}: {one.members}" for where, one in at if one.members),
        attacks=tuple(attack for one in parts for attack in one.attacks),
        reach=series,
        parts=parts,
    )


def _attacked(
    paths: Sequence[tuple[Path, ...]], results: Mapping[Path, Result], verdicts: Verdicts, numbers: Mapping[str, int]
) -> list[Attacked]:
    cards = {folders: about_of(results[folders[0]]).knowledge for folders in paths}
    several = {card_key(card) for folders, card in cards.items() if verdicts[folders].makes_images}
    result = []
    for folders, card in cards.items():
        verdict = verdicts[folders]
        under = f" under threat model {numbers[card_key(card)]}" if verdict.makes_images and len(several) > 1 else ""
        seeds = f" ({verdict.n_seeds} seeds)" if verdict.n_seeds > 1 else ""
        # In a sweep, sentences name the setting themselves.
        called = verdict.attack.removesuffix(f", {reach_label(about_of(results[folders[0]]))}")
        result.append(Attacked(verdict, card, f"{called}{seeds}{under}", folders))
    return result


def _finding(key: str, upload: str, about: Provenance, attacks: Sequence[Attacked]) -> Finding:
    images = [items for items in attacks if items.verdict.makes_images]
    inferences = [entry.verdict for entry in attacks if not entry.verdict.makes_images]
    kinds = {item.verdict.kind for item in attacks}
    severe = next((kind for kind in IMAGES if kind in {one.verdict.kind for one in images}), None)
    nothing: Kind = "untested" if "untested" in kinds else "none"
    said = tuple(kind for kind in BADGES if kind == severe or (kind in kinds and kind in ("membership", "property")))
    said = said or (nothing,)
    shown = [image for image in images if image.verdict.kind == (severe or nothing)] or images
    first = max(shown, key=lambda item: item.mean_gain, default=None)
    on_images = "" if first is None else _of_images(first)
    short = on_images
    if said[0] in ("membership", "property") or first is None:
        short = inferred(next(verdict for verdict in inferences if verdict.kind == said[0]))
    return Finding(
        key=key,
        upload=upload,
        where=", ".join(filter(None, (about.dataset, local_work(about.run)))),
        method=about.method,
        target=about.target,
        dataset=about.dataset,
        kinds=said,
        short=short,
        images=on_images,
        setting=about.reach,
        sentence=_sentence(severe, images) if images else "No attack that makes images was run.",
        members=" ".join(dict.fromkeys(_inference(one, inferences) for one in inferences)),
        attacks=tuple(attacks),
        first=first,
    )


def _of_images(first: Attacked) -> str:
    if first.verdict.kind == "none":
        return f"No leak detected; nearest comes {first.by}: {gain(first.verdict)}."
    inconclusive = first.verdict.kind == "untested"
    return briefly(first.verdict, first.by) if inconclusive else headline(first.verdict, first.by)


def _inference(verdict: Verdict, inferences: Sequence[Verdict]) -> str:
    names = {other.attack for other in inferences if other.question == verdict.question}
    return f"{verdict.attack}: {inferred(verdict)}" if len(names) > 1 else inferred(verdict)


def _sentence(severe: Kind | None, images: Sequence[Attacked]) -> str:
    nearest = "; ".join(f"{item.by} comes nearest: {gain(item.verdict)}" for item in _by_card(images))
    if severe is None:
        inconclusive = [image for image in images if image.verdict.kind == "untested"]
        if not inconclusive:
            return f"No leak detected: {nearest}."
        return " ".join(untested(item.verdict, item.by) for item in inconclusive)
    strongest = _by_card([image for image in images if image.verdict.kind == severe])
    parts = [] if severe == "vectors" else [headline(item.verdict, item.by) for item in strongest]
    parts += _recovered(images)
    if severe in ("vectors", "classes"):
        parts.append(f"Images are not shown to come back: {nearest}.")
    return " ".join(parts)


def _by_card(images: Sequence[Attacked]) -> list[Attacked]:
    cards: dict[str, list[Attacked]] = {}
    for image in images:
        cards.setdefault(card_key(image.card), []).append(image)
    return [max(current, key=lambda item: item.mean_gain) for current in cards.values()]


def _recovered(images: Sequence[Attacked]) -> list[str]:
    """Return the sentences on recovered vectors: one for each set of threat models that differ in the rounds seen alone.

    Named is the attack that wins most against the baseline, of those that see most rounds among those that succeed.
    """
    apart: dict[str, list[Attacked]] = {}
    for image in images:
        apart.setdefault(card_key(replace(image.card, rounds_seen=1)), []).append(image)
    results = []
    for alike in apart.values():
        hits = [entry for entry in alike if entry.vector_gain is not None]
        if hits:
            best = max(hits, key=lambda items: (items.card.rounds_seen, items.vector_gain or 0.0))
            rounds = {item.card.rounds_seen: False for item in alike if item.verdict.attack == best.verdict.attack}
            rounds |= {hit.card.rounds_seen: True for hit in hits if hit.verdict.attack == best.verdict.attack}
            details = headline(best.verdict.model_copy(update={"kind": "vectors"}), best.by)
            results.append(f"{details} {_from_rounds(rounds)}".rstrip())
    return results


def _from_rounds(rounds: Mapping[int, bool]) -> str:
    """Return since when an attack succeeds, from whether it does by the number of rounds seen; nothing for one round.

    >>> _from_rounds({5: False, 12: True, 30: True}), _from_rounds({30: True}), _from_rounds({1: True})
    ('It takes 12 rounds (5 were too few).', 'It saw 30 rounds.', '')
    """
    seen = sorted(rounds)
    failed = [number for number in seen if not rounds[number]]
    # Success that a larger number of rounds undoes is no threshold: then the first that succeeds is named alone.
    first = next(n for n in seen if rounds[n] and (not rounds[seen[-1]] or n > max(failed, default=0)))
    if failed and max(failed) < first:
        return f"It takes {first} rounds ({max(failed)} were too few)."
    return f"It saw {first} rounds." if first > 1 else ""
