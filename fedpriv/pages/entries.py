"""Attacks as rows and sections of a report, by threat model, and the uploads that they were made on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.pages.alike import Verdicts, upload_key
from fedpriv.pages.findings import Finding
from fedpriv.pages.frontier import accuracies
from fedpriv.pages.labels import (
    card_lines,
    defense_label,
    local_work,
    method_label,
    partition_words,
    point_labels,
    upload_size,
    upload_title,
)
from fedpriv.pages.page import number, span
from fedpriv.pages.pictures import PictureTable, picture_table, room_for
from fedpriv.scoring.floors import LABELS
from fedpriv.scoring.ranking import strongest_first, title
from fedpriv.scoring.records import About, JudgedComparison, ReconstructionRecord, Summary, Verdict
from fedpriv.scoring.records.base import Measure
from fedpriv.scoring.records.reconstruction import (
    ClassAccuracy,
    FeatureIdentification,
    FeatureMeasure,
    Identification,
)
from fedpriv.scoring.storage import AttackRecord, scored
from fedpriv.scoring.verdict import BADGES, words

_NAMES = {
    "psnr_db": "PSNR (dB)",
    "psnr_of_mean_mse_db": "PSNR of the mean MSE (dB)",
    "mse_255": "MSE on 0..255",
    "ssim": "SSIM",
    "lpips": "LPIPS",
    "identification_top1": "re-identified among decoys",
    "relative_error": "relative error of the feature",
    "expected_error": "relative error that the attack expects",
    "cosine": "cosine of the feature",
    "label_accuracy": "labels recovered",
    "feature_identification": "feature nearest to its own",
    "direction_identification": "feature points to its own, from the client's mean",
    "class_accuracy": "class recognised by an independent classifier",
}

_LOWER_LEAKS_MORE = {
    "psnr_db": False,
    "mse_255": True,
    "ssim": False,
    "lpips": True,
    "relative_error": True,
    "cosine": False,
}

_COMPARED: dict[Measure, str] = {
    "images": "PSNR",
    "beyond_3db": "images 3 dB above every baseline",
    "identified": "re-identified among decoys",
    "vectors": "relative error of {subject}",
    "vectors_identified": "{subject} nearest to their own",
    "classes": "class recognised",
}


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
        badge: the kind in a few words.
        low, point, high: the advantage and its interval as positions in per cent of the group's scale; low and high are
            None without an interval.
        pictures: rows of pictures, or None where the private truth was left out.
        measures: rows of (name, mean, median, sd, interval, remark).
        floors: rows of (name, PSNR, MSE on 0..255, SSIM, whether it is the baseline).
        compared: every comparison with the baseline, by column.
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
    low: float | None
    point: float
    high: float | None
    pictures: PictureTable | None
    measures: tuple[tuple[str, ...], ...]
    floors: tuple[tuple[str, str, str, str, bool], ...]
    compared: tuple[dict[str, Any], ...]
    directory: Path

    @property
    def seed(self) -> int:
        """Seed of the run; of the attack where the run is not known."""
        return self.about.run_seed


@dataclass(frozen=True)
class Group:
    """Attacks under one threat model, strongest first. Threat models are never ranked against one another.

    Attributes:
        card: lines of the threat model.
        zero: where zero advantage lies, in per cent of the group's scale.
        entries: the attacks.
        seeds: whether they differ in their seeds.
        datasets: whether they differ in their data sets.
    """

    card: list[dict[str, str]]
    zero: float
    entries: tuple[Entry, ...]
    seeds: bool
    datasets: bool


def groups_of(attack_records: Sequence[AttackRecord], verdicts: Verdicts) -> tuple[Group, ...]:
    """Return scored attacks by threat model, the one with the strongest first; ``verdicts`` are those of the whole page."""
    room = room_for(sum(attack.truths is not None for attack in attack_records))
    groups = []
    for number_, members in enumerate(strongest_first(attack_records, scored), start=1):
        gains = [scored(attack).advantage_db for attack in members]
        ends = [0.0, *(end for gain in gains for end in (gain.mean, *(gain.ci95 or ())))]
        margin = 0.05 * (max(ends) - min(ends)) or 1.0
        low, high = min(ends) - margin, max(ends) + margin

        def place(value: float, low: float = low, high: float = high) -> float:
            return round(100 * (value - low) / (high - low), 2)

        entries = []
        for index, (attack, called, gain) in enumerate(zip(members, _called(members), gains, strict=True), start=1):
            record, verdict = scored(attack), verdicts[attack.directory,]
            method, upload = method_label(attack.about), upload_title(attack.about)
            entries.append(
                Entry(
                    anchor=f"attack-{number_}-{index}",
                    name=f"{called} on {record.target} uploads of {upload}, {record.dataset}",
                    attack=called,
                    upload=upload.replace(method, f"{method}, {record.target}", 1),
                    record=record,
                    about=attack.about,
                    verdict=words(verdict),
                    kind=verdict.kind,
                    badge=BADGES[verdict.kind],
                    low=None if gain.ci95 is None else place(gain.ci95[0]),
                    point=place(gain.mean),
                    high=None if gain.ci95 is None else place(gain.ci95[1]),
                    pictures=picture_table(attack, room),
                    measures=tuple(_measure(key, value, record) for key, value in record.metrics.measured.items()),
                    floors=_floors(record),
                    compared=comparison_rows(verdict),
                    directory=attack.directory,
                )
            )
        groups.append(
            Group(
                card=card_lines(scored(members[0]).knowledge),
                zero=place(0.0),
                entries=tuple(entries),
                seeds=len({entry.seed for entry in entries}) > 1,
                datasets=len({entry.record.dataset for entry in entries}) > 1,
            )
        )
    return tuple(groups)


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
        options, others = attack.about.options, alike[key(attack)]
        differing = [f"{name}={value}" for name, value in options.items() if any(o.get(name) != value for o in others)]
        results.append(", ".join([title(scored(attack)), *differing]))
    return results


def _measure(key: str, value: Summary, record: ReconstructionRecord) -> tuple[str, ...]:
    if value.not_measured:
        return (_NAMES[key], "", "", "", "", value.not_measured)
    figures = (number(part) for part in (value.mean, value.median, value.sd))
    return (_NAMES[key], *figures, span(value.ci95), _remark(key, value))


def _remark(key: str, value: Summary) -> str:
    """Return the reading of a measure, with chance and the control where it has them."""
    remark = ""
    if key in _LOWER_LEAKS_MORE:
        remark = f"{'lower' if _LOWER_LEAKS_MORE[key] else 'higher'} leaks more"
    if isinstance(value, ClassAccuracy):
        floors = ", ".join(f"{LABELS.get(name, name)} {share:.2f}" for name, share in value.floors.items())
        return f"true images {value.real:.2f}; {floors}"
    if isinstance(value, (Identification, FeatureIdentification)):
        by = "chance" if value.chance_of in (None, "vectors") else LABELS.get(str(value.chance_of), value.chance_of)
        remark = f"{by} {number(value.chance)}, "
        if isinstance(value, Identification):
            remark += f"decoys {', '.join(map(str, value.decoys))}"
            remark += f"; {value.n_left_out} left out: fewer than ten of the class" if value.n_left_out else ""
        else:
            remark += "among the client's own"
    if isinstance(value, (Identification, FeatureIdentification, FeatureMeasure)) and value.shuffled is not None:
        remark += f"; on shuffled uploads {number(value.shuffled.mean)}"
    return remark


def _floors(record: ReconstructionRecord) -> tuple[tuple[str, str, str, str, bool], ...]:
    rows = sorted(record.image_floors.items(), key=lambda pair: -pair[1].psnr_db)
    best = record.advantage_db.best_floor
    return tuple(
        (LABELS.get(name, name), number(v.psnr_db), number(v.mse_255), number(v.ssim), name == best) for name, v in rows
    )


# ---------------------------------------------------------------- comparisons


def comparison_rows(verdict: Verdict) -> tuple[dict[str, Any], ...]:
    """Return each comparison of an attack that makes images with its baseline, as the page judges it, by column.

    ``better`` is positive where the attack is better; ``p_value`` is adjusted for all comparisons of the page; ``stands``
    says whether the page claims it.
    """
    return tuple(_compared(item, verdict) for item in verdict.compared if item.measure in _COMPARED)


def _compared(item: JudgedComparison, verdict: Verdict) -> dict[str, Any]:
    share = item.measure != "images"

    def value(amount: float | None) -> str:
        return "–" if amount is None else f"{100 * amount:.0f} %" if share else f"{amount:.2f} dB"

    def gain(amount: float | None) -> str:
        return "–" if amount is None else f"{round(100 * amount):+d}" if share else f"{round(amount, 2) + 0.0:+.2f}"

    return {
        "measure": _COMPARED[item.measure].format(subject=verdict.subject),
        "images": item.stratum,
        "over": f"{item.n} / {item.n_clients}",
        "attack": value(item.value),
        "guess": f"{value(item.guess)} ({LABELS.get(item.against, item.against)})",
        "better": gain(item.mean),
        "interval": "–" if item.ci95 is None else " to ".join(map(gain, item.ci95)),
        "p_value": "–" if item.adjusted is None else f"{item.adjusted:.2g}",
        "stands": item.stands,
    }


# ---------------------------------------------------------------- uploads


def federations(attacks: Sequence[AttackRecord], findings: Sequence[Finding] = ()) -> list[dict[str, Any]]:
    """Return the uploads that attacks were made on, in the order in which they come, with what was found on each.

    Returns:
        By column; accuracies and scalars per client and round are means over seeds, None where not recorded.
    """
    said = {
        part.key: ", ".join(BADGES[kind] for kind in part.kinds) for item in findings for part in item.parts or (item,)
    }
    uploads: dict[str, dict[int, About]] = {}
    for attack in attacks:
        uploads.setdefault(upload_key(attack.about), {}).setdefault(attack.about.run_seed, attack.about)
    firsts = [next(iter(runs.values())) for runs in uploads.values()]
    rows = []
    for label, first, (key, runs) in zip(point_labels(firsts), firsts, uploads.items(), strict=True):
        figures = [(*accuracies(about), (upload_size(about) or (None,))[0]) for about in runs.values()]
        means = [None if None in values else sum(values) / len(values) for values in zip(*figures, strict=True)]
        rows.append(
            {
                "name": label,
                "target": first.target,
                "setting": _setting(first),
                "defense": defense_label(first),
                "found": said.get(key, ""),
                "trained": means[0],
                "received": means[1],
                "scalars": means[2],
                "seeds": sorted(runs),
            }
        )
    return rows


def _setting(about: About) -> str:
    run = about.run
    if run is None:
        return about.dataset
    rounds = f"{run.rounds} round" + ("" if run.rounds == 1 else "s")
    parts = f"{about.dataset}, {run.clients} clients ({partition_words(run.partition)}), {rounds}, models {run.models}"
    work = local_work(run)
    return parts + (f", {work}" if work else "") + (f"; {about.images}" if about.images else "")
