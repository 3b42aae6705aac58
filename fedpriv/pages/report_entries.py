"""Attacks as rows and sections of a report: numbers written as a reader sees them, groups by knowledge card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.pages.alike import Verdicts
from fedpriv.pages.card import card_words
from fedpriv.pages.comparison_table import ComparisonRow, comparison_rows
from fedpriv.pages.labels import method_label, upload_title
from fedpriv.pages.picture_table import PictureTable, picture_table, room_for
from fedpriv.scoring.convergence import Convergence, convergence
from fedpriv.scoring.floors import LABELS
from fedpriv.scoring.leakage import METRICS
from fedpriv.scoring.ranking import strongest_first, title
from fedpriv.scoring.records import About, ReconstructionRecord, Summary, ThreatModel, Verdict
from fedpriv.scoring.records.reconstruction import (
    ClassAccuracy,
    FeatureIdentification,
    FeatureMeasure,
    Identification,
    OtherMeasure,
)
from fedpriv.scoring.storage import AttackRecord, scored
from fedpriv.scoring.verdict import BADGES, words

_NAMES = {
    "psnr_db": "PSNR (dB)",
    "psnr_of_mean_mse_db": "PSNR of the mean MSE (dB)",
    "mse_255": "MSE on 0..255",
    "ssim": "SSIM",
    "lpips": "LPIPS",
    "identification_top1": "identified first among decoys",
    "relative_error": "relative error of the feature",
    "expected_error": "relative error that the attack expects",
    "cosine": "cosine of the feature",
    "label_accuracy": "labels recovered",
    "feature_identification": "feature nearest to its own",
    "direction_identification": "feature points to its own, from the client's mean",
    "class_accuracy": "class recognised by an independent classifier",
}

_GRANTS = {
    ("extractor", "white_box"): "the server holds the client's extractor, weights and all",
    ("extractor", "query"): "the server may ask the client's extractor for answers",
    ("extractor", "shadow"): "the server trains an extractor of its own in place of the client's",
    ("extractor", "none"): "the server has no extractor",
    ("labels", "given"): "the classes of the targets are known",
    ("labels", "inferred"): "classes have to be inferred",
    ("batch", "known"): "batch size, learning rate and number of local steps are known",
    ("batch", "none"): "nothing is known of the local batches",
    ("batch_norm", "none"): "no batch-norm statistics",
    ("batch_norm", "running"): "running batch-norm statistics come with the extractor",
    ("attacker_data", "none"): "the attacker owns no images",
    ("attacker_data", "same_domain"): "the attacker owns images of the same data set, none of them a client's",
    ("attacker_data", "other_domain"): "the attacker owns images of another data set, without the clients' classes",
}


@dataclass(frozen=True)
class Grant:
    """One line of a knowledge card: its name, its value as flags spell it, and what it means."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True)
class Entry:
    """One attack as the page shows it.

    Attributes:
        anchor: link within the page.
        name: title of its section.
        attack: what tables call it.
        upload: method and kind of upload, with the defense where there is one.
        record: ``metrics.json``.
        about: ``about.json``.
        verdict: the sentences.
        kind: of the verdict.
        badge: the kind in two words.
        search: what the attack's own objective says.
        low, point, high: the advantage and its interval as positions in per cent of the group's scale; low and high are
            None without an interval.
        pictures: rows of pictures, or None where the private truth was left out.
        measures: rows of (name, mean, median, sd, interval, remark).
        floors: rows of (name, PSNR, MSE on 0..255, SSIM, whether it is the best).
        compared: every comparison with the best guess.
        directory: folder of the attack.
    """

    anchor: str
    name: str
    attack: str
    upload: str
    record: ReconstructionRecord
    about: About
    verdict: str
    kind: str
    badge: str
    search: Convergence
    low: float | None
    point: float
    high: float | None
    pictures: PictureTable | None
    measures: tuple[tuple[str, ...], ...]
    floors: tuple[tuple[str, str, str, str, bool], ...]
    compared: tuple[ComparisonRow, ...]
    directory: Path

    @property
    def seed(self) -> int:
        """Seed of the run; of the attack where the run is not known."""
        return self.about.run_seed


@dataclass(frozen=True)
class Group:
    """Attacks under one knowledge card, strongest first. Cards are never ranked against one another.

    Attributes:
        card: its lines.
        zero: where zero advantage lies, in per cent of the group's scale.
        entries: the attacks.
        seeds: whether they differ in their seeds.
        datasets: whether they differ in their data sets.
    """

    card: tuple[Grant, ...]
    zero: float
    entries: tuple[Entry, ...]
    seeds: bool
    datasets: bool


def groups_of(attack_records: Sequence[AttackRecord], verdicts: Verdicts) -> tuple[Group, ...]:
    """Return attacks by knowledge card, the card with the strongest first.

    Args:
        attack_records: scored attacks.
        verdicts: as :func:`fedpriv.pages.alike.judge_results` makes them of the whole page.

    Raises:
        UserError: when an attack was not scored.
    """
    room = room_for(sum(attack.truths is not None for attack in attack_records))
    return tuple(
        _group(number, members, verdicts, room)
        for number, members in enumerate(strongest_first(attack_records, scored), start=1)
    )


def _group(number: int, members: Sequence[AttackRecord], verdicts: Verdicts, room: int) -> Group:
    ends = [0.0]
    for attack in members:
        gain = scored(attack).advantage_db
        ends += [gain.mean, *(gain.ci95 or ())]
    low, high = min(ends), max(ends)
    margin = 0.05 * (high - low) or 1.0
    low, high = low - margin, high + margin
    entries = tuple(
        _entry(f"{number}-{index}", attack, called, verdicts[attack.directory,], (low, high), room)
        for index, (attack, called) in enumerate(zip(members, _called(members), strict=True), start=1)
    )
    return Group(
        card=card_grants(scored(members[0]).knowledge),
        zero=_place(0.0, low, high),
        entries=entries,
        seeds=len({entry.seed for entry in entries}) > 1,
        datasets=len({entry.record.dataset for entry in entries}) > 1,
    )


def card_grants(knowledge: ThreatModel) -> tuple[Grant, ...]:
    """Return the lines of a knowledge card with what each means."""
    results = []
    for name, value in card_words(knowledge).items():
        meaning = _GRANTS.get((name, value), "")
        if name == "rounds_seen":
            meaning = (
                "uploads of one round are used" if value == "1" else f"uploads of {value} rounds are used together"
            )
        results.append(Grant(name.replace("_", " "), value.replace("_", " "), meaning))
    return tuple(results)


def _place(value: float, low: float, high: float) -> float:
    return round(100 * (value - low) / (high - low), 2)


def _called(members: Sequence[AttackRecord]) -> list[str]:
    """Return the name of each attack in tables: with the options that differ from those of its namesakes on the upload."""

    def key(attack: AttackRecord) -> tuple[object, ...]:
        about = attack.about
        return title(scored(attack)), upload_title(about), about.target, about.dataset, about.run_seed

    alike: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    for attack in members:
        alike.setdefault(key(attack), []).append(attack.about.options)
    results = []
    for attack in members:
        current, others = attack.about.options, alike[key(attack)]
        differing = [
            f"{name}={current[name]}" for name in current if any(other.get(name) != current[name] for other in others)
        ]
        results.append(", ".join([title(scored(attack)), *differing]))
    return results


def _entry(
    text: str, attack: AttackRecord, called: str, verdict: Verdict, scale: tuple[float, float], room: int
) -> Entry:
    record = scored(attack)
    gain = record.advantage_db
    interval = gain.ci95
    method, upload = method_label(attack.about), upload_title(attack.about)
    return Entry(
        anchor=f"attack-{text}",
        name=f"{called} on {record.target} uploads of {upload}, {record.dataset}",
        attack=called,
        upload=upload.replace(method, f"{method}, {record.target}", 1),
        record=record,
        about=attack.about,
        verdict=words(verdict),
        kind=verdict.kind,
        badge=BADGES[verdict.kind],
        search=convergence(record),
        low=None if interval is None else _place(interval[0], *scale),
        point=_place(gain.mean, *scale),
        high=None if interval is None else _place(interval[1], *scale),
        pictures=picture_table(attack, room),
        measures=tuple(_measure_row(key, value, record) for key, value in record.metrics.measured.items()),
        floors=_floor_rows(record),
        compared=comparison_rows(verdict),
        directory=attack.directory,
    )


def _measure_row(key: str, value: Summary, record: ReconstructionRecord) -> tuple[str, ...]:
    if value.not_measured:
        return (_NAMES.get(key, key), "", "", "", "", value.not_measured)
    return (
        _NAMES.get(key, key),
        *(number(part) for part in (value.mean, value.median, value.sd)),
        span(value.ci95),
        _remark(key, value, record),
    )


def _remark(key: str, value: Summary, record: ReconstructionRecord) -> str:
    """Return the reading of a measure, with chance and the control where it has them."""
    remark = ""
    if key in METRICS.builtins:
        remark = "higher leaks more" if METRICS.load(key).higher_is_better else "lower leaks more"
    if isinstance(value, OtherMeasure):
        remark = f"{value.description}; {'higher' if value.higher_is_better else 'lower'} leaks more"
        best = record.advantage_db.best_floor
        if (floor := record.floor_details[best].others.get(key)) is not None:
            remark += f"; {LABELS.get(best, best)} {number(floor.mean)}"
    if isinstance(value, Identification):
        remark = f"{_by(value.chance_of)} {number(value.chance)}, decoys {', '.join(str(n) for n in value.decoys)}"
        remark += f"; {value.n_left_out} left out: fewer than ten of the class" if value.n_left_out else ""
    if isinstance(value, FeatureIdentification):
        remark = f"{_by(value.chance_of)} {number(value.chance)}, among the client's own"
    if isinstance(value, ClassAccuracy):
        floors = ", ".join(f"{LABELS.get(name, name)} {share:.2f}" for name, share in value.floors.items())
        return f"true images {value.real:.2f}; {floors}"
    if (
        isinstance(value, (Identification, FeatureIdentification, FeatureMeasure, OtherMeasure))
        and value.shuffled is not None
    ):
        remark += f"; on shuffled uploads {number(value.shuffled.mean)}"
    return remark


def _by(name: str | None) -> str:
    """Return the guess that reaches a rate without the upload, as a reader sees it."""
    return "chance" if name is None or name == "vectors" else LABELS.get(name, name)


def _floor_rows(record: ReconstructionRecord) -> tuple[tuple[str, str, str, str, bool], ...]:
    rows = sorted(record.image_floors.items(), key=lambda pair: -pair[1].psnr_db)
    return tuple(
        (
            LABELS.get(name, name),
            number(values.psnr_db),
            number(values.mse_255),
            number(values.ssim),
            name == record.advantage_db.best_floor,
        )
        for name, values in rows
    )


def number(value: float | None) -> str:
    """Return a number as a table shows it: three digits or so; "–" for None."""
    if value is None:
        return "–"
    size = abs(value)
    return (
        f"{value:.0f}"
        if size >= 1000
        else f"{value:.1f}"
        if size >= 100
        else f"{value:.2f}"
        if size >= 1
        else f"{value:.3f}"
    )


def span(interval: Sequence[float] | None) -> str:
    """Return an interval as a table shows it; "–" for None."""
    return "–" if interval is None else f"{number(interval[0])} to {number(interval[1])}"


def gain_span(interval: Sequence[float] | None) -> str:
    """Return an interval of a difference in dB as a table shows it; "–" for None.

    >>> gain_span((-0.997, 3.154))
    '-1.00 to +3.15'
    """
    return "–" if interval is None else f"{interval[0]:+.2f} to {interval[1]:+.2f}"
