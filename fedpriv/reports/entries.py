"""Attacks and inferences as rows and sections of a report, and the uploads that they were made on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedpriv.eval.floors import LABELS
from fedpriv.eval.judgement import question_of
from fedpriv.eval.reasons import JudgedComparison, Verdict
from fedpriv.eval.records import (
    About,
    ClassAccuracy,
    FeatureIdentification,
    FeatureMeasure,
    Identification,
    InferenceResult,
    Measure,
    MembershipRecord,
    PropertyRecord,
    Rate,
    ReconstructionRecord,
    Summary,
)
from fedpriv.eval.storage import AttackRecord, scored
from fedpriv.eval.verdict import BADGES, inferred, premise_words, words
from fedpriv.reports.findings import Finding, by_work, first_beyond, furthest
from fedpriv.reports.frontier import accuracies
from fedpriv.reports.grid import PictureTable, picture_table, room_for
from fedpriv.reports.labels import (
    Verdicts,
    card_lines,
    defense_label,
    local_work,
    method_label,
    partition_words,
    point_labels,
    reach_key,
    strongest_first,
    upload_key,
    upload_size,
    upload_title,
)
from fedpriv.reports.page import number, span

_MEASURES = {
    "psnr_db": ("PSNR (dB)", "higher leaks more"),
    "psnr_of_mean_mse_db": ("PSNR of the mean MSE (dB)", ""),
    "mse_255": ("MSE on 0..255", "lower leaks more"),
    "ssim": ("SSIM", "higher leaks more"),
    "lpips": ("LPIPS", "lower leaks more"),
    "identification_top1": ("re-identified among decoys", ""),
    "relative_error": ("relative error of the feature", "lower leaks more"),
    "expected_error": ("relative error that the attack expects", ""),
    "cosine": ("cosine of the feature", "higher leaks more"),
    "label_accuracy": ("labels recovered", ""),
    "feature_identification": ("feature nearest to its own", ""),
    "direction_identification": ("feature points to its own, from the client's mean", ""),
    "class_accuracy": ("class recognised by an independent classifier", ""),
}
"""Names of measures, and which direction leaks more where that is not plain."""

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
        record, about: ``metrics.json`` and ``about.json``.
        verdict: the sentences.
        kind, badge: of the verdict, and the same in a few words.
        pictures: rows of pictures, or None where there are none to show.
        measures: rows of (name, mean, median, sd, interval, remark).
        floors: rows of (name, PSNR, MSE on 0..255, SSIM, whether it is the baseline).
        compared: every comparison with the baseline, by column.
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
    pictures: PictureTable | None
    measures: tuple[tuple[str, ...], ...]
    floors: tuple[tuple[str, str, str, str, bool], ...]
    compared: tuple[dict[str, Any], ...]


class Group(NamedTuple):
    """Attacks under one threat model, strongest first, and its lines. Threat models are never ranked against one another."""

    card: list[dict[str, str]]
    entries: tuple[Entry, ...]


def groups_of(attack_records: Sequence[AttackRecord], verdicts: Verdicts) -> tuple[Group, ...]:
    """Return scored attacks by threat model, the one with the strongest first; ``verdicts`` are those of the whole page."""
    room = room_for(sum(attack.truths is not None for attack in attack_records))
    groups = []
    for place, members in enumerate(strongest_first(attack_records, scored), start=1):
        entries = []
        for index, (attack, called) in enumerate(zip(members, _called(members), strict=True), start=1):
            record, verdict = scored(attack), verdicts[attack.directory,]
            method, upload = method_label(attack.about), upload_title(attack.about)
            entries.append(
                Entry(
                    anchor=f"attack-{place}-{index}",
                    name=f"{called} on {record.target} uploads of {upload}, {record.dataset}",
                    attack=called,
                    upload=upload.replace(method, f"{method}, {record.target}", 1),
                    record=record,
                    about=attack.about,
                    verdict=words(verdict),
                    kind=verdict.kind,
                    badge=BADGES[verdict.kind],
                    pictures=picture_table(attack, room),
                    measures=tuple(_measure(key, value) for key, value in record.metrics.measured.items()),
                    floors=_floors(record),
                    compared=comparison_rows(verdict),
                )
            )
        groups.append(Group(card_lines(scored(members[0]).knowledge), tuple(entries)))
    return tuple(groups)


def _called(members: Sequence[AttackRecord]) -> list[str]:
    """Return the name of each attack in tables: with the options that differ from those of its namesakes on the upload."""

    def key(attack: AttackRecord) -> tuple[object, ...]:
        about = attack.about
        return about.title, upload_title(about), about.target, about.dataset, about.run_seed

    alike: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    for attack in members:
        alike.setdefault(key(attack), []).append(attack.about.options)
    results = []
    for attack in members:
        options, others = attack.about.options, alike[key(attack)]
        differing = [f"{name}={value}" for name, value in options.items() if any(o.get(name) != value for o in others)]
        results.append(", ".join([attack.about.title, *differing]))
    return results


def _measure(key: str, value: Summary) -> tuple[str, ...]:
    """Return a row of the table of measures, with chance and the control where a measure has them."""
    name, remark = _MEASURES[key]
    if value.not_measured:
        return (name, "", "", "", "", value.not_measured)
    if isinstance(value, ClassAccuracy):
        floors = ", ".join(f"{LABELS.get(floor, floor)} {share:.2f}" for floor, share in value.floors.items())
        remark = f"true images {value.real:.2f}; {floors}"
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
    return (name, *map(number, (value.mean, value.median, value.sd)), span(value.ci95), remark)


def _floors(record: ReconstructionRecord) -> tuple[tuple[str, str, str, str, bool], ...]:
    rows = sorted(record.image_floors.items(), key=lambda pair: -pair[1].psnr_db)
    best = record.advantage_db.best_floor
    return tuple(
        (LABELS.get(name, name), number(v.psnr_db), number(v.mse_255), number(v.ssim), name == best) for name, v in rows
    )


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


# ---------------------------------------------------------------- uploads and sweeps


def federations(attacks: Sequence[AttackRecord], findings: Sequence[Finding] = ()) -> list[dict[str, Any]]:
    """Return the uploads that attacks were made on, by column, with what was found on each.

    Accuracies and scalars per client and round are means over seeds, None where not recorded.
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


class Sweep(NamedTuple):
    """Attacks on uploads of one federation and seed at several settings of local work, the least first.

    ``last`` is the label of the last setting that leaks, ``beyond`` of the first beyond it; empty where there is none.
    ``untried`` are settings at which no attack gave a result.
    """

    name: str
    last: str
    beyond: str
    untried: tuple[str, ...]
    entries: tuple[Entry, ...]


def sweeps_of(groups: Sequence[Group], said: Sequence[Finding]) -> tuple[Sweep, ...]:
    """Return every sweep of two settings or more from the entries and findings of a page."""
    series = {part.key: entry.reach for entry in said if entry.reach for part in entry.parts}
    together: dict[tuple[str, int], list[tuple[tuple[bool, int, int], Entry]]] = {}
    for entry in (entry for group in groups for entry in group.entries):
        if entry.about.reach is not None and len(series.get(upload_key(entry.about), ())) > 1:
            key = reach_key(entry.about), entry.about.run_seed
            together.setdefault(key, []).append((by_work(entry.about.reach), entry))
    results = []
    for members in together.values():
        entries = tuple(entry for _, entry in sorted(members, key=lambda item: item[0]))
        about = entries[0].about
        settings = series[upload_key(about)]
        ends = ["" if at is None else settings[at].label for at in (furthest(settings), first_beyond(settings))]
        there = {entry.about.reach_label for entry in entries}
        name = f"{about.target} uploads of {upload_title(about)}, {about.dataset}, seed {about.run_seed}"
        untried = tuple(item.label for item in settings if item.label not in there)
        results.append(Sweep(name, ends[0], ends[1], untried, entries))
    return tuple(results)


# ---------------------------------------------------------------- inferences


_INTRODUCTIONS = {
    "membership": (
        "Candidates: as many training images as non-members of the same classes, client by client. Non-members are the "
        "client's own held-out images; where there are none, others' images, and no leak is claimed. AUC 0.5 is chance; the "
        "baseline is a score through the networks that the attacker is assumed to know, without the upload. Strata: how "
        "many images of the class the client holds; one is claimed only in the verdict, where all comparisons of the page "
        "are tested together. Intervals: 95 %, over"
    ),
    "property": (
        "One question for each class of each client that the upload leaves open. AUC 0.5 is chance. Intervals: 95 %, over"
    ),
}

WORDS = ("attack", "upload", "method", "defense", "data set", "question", "learned from")
"""Columns that hold words, which stand to the left."""

_ONLY_WHERE_THEY_DIFFER = ("attack", "data set", "seed")


def score_sections(scores: Mapping[Path, InferenceResult], verdicts: Verdicts) -> list[dict[str, Any]]:
    """Return the sections on the kinds of inference that were run.

    Of each its ``title``, ``introduction``, ``rows`` by column, ``lines`` (upload, verdict, command, seed) and ``commands``.
    """
    sections = []
    for kind, introduction in _INTRODUCTIONS.items():
        records = {folder: record for folder, record in scores.items() if record.kind == kind}
        if not records:
            continue
        units = " or ".join(dict.fromkeys(record.units for record in records.values()))
        rows = [score_row(record) for record in records.values()]
        same = [name for name in _ONLY_WHERE_THEY_DIFFER if len({row.get(name) for row in rows}) < 2]
        names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in same]
        several = len({record.attack for record in records.values()}) > 1
        lines = []
        for folder, record in records.items():
            upload = _upload(record)
            called = f"{upload_title(record)}, {upload['upload']}, {upload['data set']}, seed {upload['seed']}"
            verdict = f"{inferred(verdicts[folder,])} {premise_words(record.premise)}".rstrip()
            lines.append((called + (f", {record.attack}" if several else ""), verdict, record.command, record.seed))
        sections.append(
            {
                "title": kind.capitalize(),
                "introduction": f"{introduction} {units}.",
                "rows": [{name: row.get(name, "") for name in names} for row in rows],
                "lines": lines,
                "commands": "\n".join(dict.fromkeys(command for _, _, command, _ in lines)),
            }
        )
    return sections


def with_interval(value: Rate, digits: int, factor: float = 1) -> str:
    """Return a value and its interval, both times ``factor``: ``0.53 [0.50, 0.57]``."""
    text = f"{factor * value.value:.{digits}f}"
    if value.ci95 is None:
        return text
    low, high = value.ci95
    return f"{text} [{factor * low:.{digits}f}, {factor * high:.{digits}f}]"


def _upload(record: InferenceResult) -> dict[str, str]:
    return {
        "upload": ", ".join(part for part in (record.target, record.stage_name) if part),
        "method": method_label(record),
        "defense": defense_label(record),
        "data set": record.dataset,
        "seed": str(record.run_seed),
    }


def score_row(record: InferenceResult) -> dict[str, str]:
    """Return one line of the table of its kind, by column."""
    members = isinstance(record, MembershipRecord)
    noes = record.n_nonmembers if isinstance(record, MembershipRecord) else record.n_pairs - record.n_yes
    few = "" if noes >= 1000 else f" (fewer than 1,000 {'non-members' if members else 'noes'})"
    rates = {
        "AUC [95 %]": with_interval(record.auc, 3),
        "TPR at 1 % FPR": with_interval(record.tpr_at_1_percent, 1, 100) + " %",
        "TPR at 0.1 % FPR": with_interval(record.tpr_at_0_1_percent, 1, 100) + " %" + few,
        "AUC, shuffled uploads": "not run" if record.shuffled is None else with_interval(record.shuffled.auc, 3),
    }
    if isinstance(record, PropertyRecord):
        return _property(record, rates)
    classes, baseline = record.classes, record.baseline
    areas = {name: with_interval(Rate(value=s.auc, ci95=s.ci95), 2) for name, s in record.strata.items()}
    return {
        "attack": record.attack,
        **_upload(record),
        "candidates": f"{record.n_candidates} of {record.n_clients} {record.units}",
        "members left out": str(record.n_left_out),
        "non-members": "held-out images" if record.nonmembers == "held_out" else "others' images",
        **rates,
        "AUC, baseline": "no network known" if baseline is None else with_interval(baseline.auc, 3),
        "AUC by images of the class": ", ".join(f"{n}: {area}" for n, area in areas.items()) or "not measured",
        "class sets exact": "none uploaded" if classes is None else f"{classes.exact}/{classes.clients}",
    }


def _property(record: PropertyRecord, rates: Mapping[str, str]) -> dict[str, str]:
    columns = {
        **_upload(record),
        "question": f"{question_of(record)}?",
        "pairs": f"{record.n_pairs} of {record.n_clients} {record.units}, {record.n_yes} yes",
        "learned from": record.learned_from,
        **rates,
        "AUC, number of classes alone": with_interval(record.classes_alone.auc, 3),
    }
    if record.shares is not None:
        guesses = record.shares.guesses
        best = min(guesses, key=lambda name: guesses[name].value)
        columns["class shares, distance"] = with_interval(record.shares.estimated, 2)
        columns["class shares, baseline"] = f"{guesses[best].value:.2f} ({best})"
    return columns
