"""One finding for each upload that was attacked: what the verdicts on all attacks on it support together, and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from fedpriv.eval.reasons import Kind, Verdict
from fedpriv.eval.records import Provenance, Reach, ThreatModel
from fedpriv.eval.storage import AttackRecord, scored
from fedpriv.eval.verdict import BADGES, briefly, gain, headline, inferred, untested
from fedpriv.reports.labels import (
    Result,
    Verdicts,
    about_of,
    card_key,
    local_work,
    over_seeds,
    point_labels,
    reach_key,
    strongest_first,
    upload_key,
)

IMAGES: tuple[Kind, ...] = ("leaks", "some", "vectors", "classes")
"""Findings of attacks that make images, the most severe first."""

State = Literal["leaks", "none", "untested", "unasked"]
"""Of an endpoint: a leak stands; none is detected; inconclusive; not asked."""

SIGNS: dict[State, tuple[str, str]] = {
    "leaks": ("●", "leaks"),
    "none": ("○", BADGES["none"]),
    "untested": ("◐", BADGES["untested"]),
    "unasked": ("–", "not asked"),
}
"""Shape and meaning of a state, so that it is read without its colour."""


@dataclass(frozen=True)
class Attacked:
    """An attack over its seeds: the verdict, the threat model, and what it is called."""

    verdict: Verdict
    card: ThreatModel
    by: str

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


class Reached(NamedTuple):
    """One setting of a sweep over local work: its label, its words, what attacks that make images come to, if it leaks."""

    label: str
    words: str
    images: str = ""
    leaks: bool = False


class Mark(NamedTuple):
    """The answer on one endpoint of an upload."""

    question: str
    state: State
    words: str

    @property
    def sign(self) -> str:
        """The state as a shape."""
        return SIGNS[self.state][0]


@dataclass(frozen=True)
class Finding:
    """The knowledge about one upload.

    Attributes:
        key: what :func:`fedpriv.reports.labels.upload_key` calls it.
        upload: kind of upload, method, defense.
        where: data set, and the local work where it is limited.
        dataset: its name.
        kinds: of the verdicts that stand, the most severe first; else ``untested`` or ``none``.
        short: the most severe of it in one sentence.
        sentence: what is said of images and vectors.
        members: what is said of membership and properties, or empty where they were not asked.
        attacks: on it.
        images: what the attacks that make images come to, in one sentence; empty where there are none.
        setting: of a sweep over local work, that this is on; or None.
        reach: its settings, where the finding is on several of them.
        parts: the findings on each of these.
    """

    key: str
    upload: str
    where: str
    dataset: str
    kinds: tuple[Kind, ...]
    short: str
    sentence: str
    members: str
    attacks: tuple[Attacked, ...]
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

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The four marks: on images, representations, membership and properties."""
        return marks([item.verdict for item in self.attacks])


def findings(results: Mapping[Path, Result], verdicts: Verdicts) -> tuple[Finding, ...]:
    """Return one finding an upload, by kind, the most severe first, then by name; ``verdicts`` are those of the whole page.

    Gains are compared under one threat model only: a sentence names the strongest attack of each, and the order of findings
    goes by no gain.
    """
    uploads: dict[str, list[tuple[Path, ...]]] = {}
    for folders in over_seeds(results):
        uploads.setdefault(upload_key(about_of(results[folders[0]])), []).append(folders)
    firsts = [about_of(results[upload[0][0]]) for upload in uploads.values()]
    ranked = strongest_first([result for result in results.values() if isinstance(result, AttackRecord)], scored)
    numbers = {card_key(scored(group[0]).knowledge): number for number, group in enumerate(ranked, start=1)}
    sweeps = [reach_key(about) or str(index) for index, about in enumerate(firsts)]  # those of one sweep are alike
    heads = dict(zip(reversed(sweeps), reversed(firsts), strict=True))
    order = list(dict.fromkeys(sweeps))
    labels = dict(zip(order, point_labels([heads[key] for key in order], with_target=False), strict=True))
    together: dict[str, list[Finding]] = {}
    for sweep, about, (key, selected) in zip(sweeps, firsts, uploads.items(), strict=True):
        name, attacks = f"{about.target} uploads of {labels[sweep]}", _attacked(selected, results, verdicts, numbers)
        together.setdefault(sweep, []).append(_finding(key, name, about, attacks))
    made = [_over_sweep(group) if group[0].setting else group[0] for group in together.values()]
    # Without a defense before with one.
    return tuple(sorted(made, key=lambda item: (list(BADGES).index(item.kinds[0]), item.upload, item.where)))


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
        called = verdict.attack.removesuffix(f", {about_of(results[folders[0]]).reach_label}")
        result.append(Attacked(verdict, card, f"{called}{seeds}{under}"))
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
        dataset=about.dataset,
        kinds=said,
        short=short,
        images=on_images,
        setting=about.reach,
        sentence=_sentence(severe, images) if images else "No attack that makes images was run.",
        members=" ".join(dict.fromkeys(_inference(one, inferences) for one in inferences)),
        attacks=tuple(attacks),
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
    cards: dict[str, list[Attacked]] = {}
    for image in images:
        cards.setdefault(card_key(image.card), []).append(image)
    strongest = [max(current, key=lambda item: item.mean_gain) for current in cards.values()]
    nearest = "; ".join(f"{item.by} comes nearest: {gain(item.verdict)}" for item in strongest)
    if severe is None:
        inconclusive = [untested(item.verdict, item.by) for item in images if item.verdict.kind == "untested"]
        return " ".join(inconclusive) or f"No leak detected: {nearest}."
    parts = []
    for current in cards.values():
        alike = [image for image in current if image.verdict.kind == severe != "vectors"]
        recovered = [image for image in current if image.vector_gain is not None]
        if alike:
            best = max(alike, key=lambda item: item.mean_gain)
            parts.append(headline(best.verdict, best.by))
        if recovered:
            best = max(recovered, key=lambda item: item.vector_gain or 0.0)
            parts.append(headline(best.verdict.model_copy(update={"kind": "vectors"}), best.by))
    if severe in ("vectors", "classes"):
        parts.append(f"Images are not shown to come back: {nearest}.")
    return " ".join(parts)


def marks(verdicts: Sequence[Verdict]) -> tuple[Mark, ...]:
    """Return the four marks of an upload from the verdicts on all attacks on it."""
    images = [item for item in verdicts if item.makes_images]
    vectors = [entry for entry in images if any(part.measure == "vectors" for part in entry.compared)]
    members = [item for item in verdicts if not item.makes_images and not item.question]
    properties = [item for item in verdicts if not item.makes_images and item.question]
    severe = next((kind for kind in IMAGES if kind != "vectors" and any(image.kind == kind for image in images)), None)
    standing = [verdict for verdict in properties if verdict.kind == "property"]
    clear = standing and all(item.clear for item in standing)
    of_images = "" if severe is None else BADGES[severe].removeprefix("images ")
    return (
        _mark("images", images, ("images", "beyond_3db", "identified", "classes"), of_images),
        _mark("representations", vectors, ("vectors", "vectors_identified"), "recovered"),
        _mark("membership", members, None, "leaks"),
        _mark("properties", properties, None, "sent in clear" if clear else "leak"),
    )


def _mark(question: str, verdicts: Sequence[Verdict], measures: tuple[str, ...] | None, leaks: str) -> Mark:
    if not verdicts:
        return Mark(question, "unasked", SIGNS["unasked"][1])
    if measures is None:
        stands = any(verdict.kind in ("membership", "property") for verdict in verdicts)
    else:
        stands = any(claim.measure in measures for verdict in verdicts for claim in verdict.claims)
    if stands:
        return Mark(question, "leaks", leaks)
    why = [reason for item in verdicts for reason in (item.silent_on(measures) if measures else item.reasons)]
    state: State = "untested" if why else "none"
    return Mark(question, state, SIGNS[state][1])


# ---------------------------------------------------------------- sweeps over local work


def _over_sweep(group: Sequence[Finding]) -> Finding:
    """Return one finding from those on the settings of a sweep."""
    there = {items.setting.label: items for items in group if items.setting is not None}
    series = reached([(item.setting, item.images, item.leaks) for item in group if item.setting is not None])
    if len(series) == 1:
        return group[0]
    last, beyond = furthest(series), first_beyond(series)
    parts = tuple(there[part.label] for part in series if part.label in there)
    kinds = {kind for entry in group for kind in entry.kinds}
    said = tuple(kind for kind in BADGES if kind in kinds and kind not in ("untested", "none"))
    named = {series[position].label for position in (last, beyond) if position is not None}
    at = [(f"At {one.setting.words}", one) for one in parts if one.setting]
    each = [f"{where}: {one.sentence}" for where, one in at if one.setting and one.setting.label not in named]
    return replace(
        parts[0] if last is None else there[series[last].label],
        where=f"{group[0].dataset}, from {series[0].words} to {series[-1].words}",
        kinds=said or ("untested" if "untested" in kinds else "none",),
        short=reach_sentence(series),
        sentence=" ".join([reach_sentence(series), *each]),
        members=" ".join(f"{where}: {one.members}" for where, one in at if one.members),
        attacks=tuple(attack for one in parts for attack in one.attacks),
        reach=series,
        parts=parts,
    )


def by_work(setting: Reach) -> tuple[bool, int, int]:
    """Return a key by which settings are put in order: a client's own training last, then by images and steps."""
    return setting.setting == "epoch", setting.images, setting.steps


def reached(reaches: Sequence[tuple[Reach, str, bool]]) -> tuple[Reached, ...]:
    """Return the settings of a sweep from the least local work to the most, those without any result in their place.

    Args:
        reaches: settings that attacks gave results at, each with the sentence on its images, and whether it leaks.
    """
    group = sorted(reaches, key=lambda item: by_work(item[0]))
    there = {setting.label: Reached(setting.label, setting.words, images, leaks) for setting, images, leaks in group}
    series = next((setting.series for setting, _, _ in group if set(there) <= set(setting.series)), tuple(there))
    return tuple(there.get(label, Reached(label, label)) for label in series)


def furthest(series: Sequence[Reached]) -> int | None:
    """Return the place of the last setting that leaks, or None."""
    return max((index for index, part in enumerate(series) if part.leaks), default=None)


def first_beyond(series: Sequence[Reached]) -> int | None:
    """Return the place of the first setting beyond :func:`furthest` at which no leak is shown, or None."""
    position = furthest(series)
    beyond = 0 if position is None else position + 1
    return beyond if beyond < len(series) else None


def reach_sentence(series: Sequence[Reached]) -> str:
    """Return the sentences on the last of several settings that leaks and on the first that does not."""

    def inside(text: str) -> str:
        return text[:1].lower() + text[1:]

    last, beyond = furthest(series), first_beyond(series)
    if last is None:
        parts = [f"No leak is shown, from {series[0].words} to {series[-1].words}."]
    else:
        far = "as far as was asked, " if beyond is None else ""
        before = [other.words for other in series[:last] if not other.leaks]
        gap = f" (at {' and '.join(before)} none is shown)" if before else ""
        parts = [f"The leak reaches {far}{series[last].words}{gap}: {inside(series[last].images)}"]
    if beyond is not None:
        item = series[beyond]
        none = f"At {item.words} none is shown: {inside(item.images)}"
        parts.append(none if item.images else f"At {item.words} no attack that makes images gave a result.")
    return " ".join(parts)
