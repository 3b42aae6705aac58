"""Every attack of a page as a row and a folded part: exploratory figures with their own intervals, and no claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpriv.eval.answers import Result, about_of, record_of
from fedpriv.eval.endpoints import Record, endpoint_of, threat_of
from fedpriv.eval.records import (
    LABELS,
    SHUFFLED,
    Able,
    Comparison,
    Identification,
    Measure,
    MembershipRecord,
    Rate,
    ReconstructionRecord,
    Summary,
)
from fedpriv.eval.redaction import NONE, OMIT
from fedpriv.eval.storage import GRID, TRUTH, StoredAttack, load_attack, load_stored, scored
from fedpriv.eval.words import able_words, premise_words, threat_title
from fedpriv.reports.labels import card_cell, strongest_first, upload_size, upload_title
from fedpriv.reports.page import image_source, number, span
from fedpriv.reports.run_records import MOMENTS, Baselines, gain_over_local
from fedpriv.util.errors import UserError
from fedpriv.util.files import read_bytes

PAGE_BYTES = 10_000_000  # room for all pictures of a page, as base64

_MEASURES = {
    "psnr_db": ("PSNR (dB)", "higher leaks more"),
    "mse_255": ("MSE on 0..255", "lower leaks more"),
    "ssim": ("SSIM", "higher leaks more"),
    "lpips": ("LPIPS", "lower leaks more"),
    "identification_top1": ("re-identified among decoys", ""),
    "relative_error": ("relative error of the feature", "lower leaks more"),
    "cosine": ("cosine of the feature", "higher leaks more"),
    "label_accuracy": ("labels recovered", ""),
}
"""Names of measures, and which direction leaks more where that is not plain."""

_COMPARED: dict[Measure, str] = {
    "images": "PSNR (dB)",
    "identified": "share re-identified among decoys",
    "membership": "AUC of membership",
    "members_found": "TPR at 1 % FPR",
    "property": "AUC of a property",
}


@dataclass(frozen=True)
class Entry:
    """One attack as the page shows it."""

    anchor: str  # link within the page
    name: str  # title of its part
    row: Mapping[str, str]  # its line in the table of all attacks, by column
    remark: str  # how it is scored, its control, its ability, the premise
    picture: str  # its grid as the source of an image, or nothing
    hidden: str  # why there is no picture, of an attack that makes images
    measures: tuple[tuple[str, ...], ...]  # name, mean, median, sd, interval, remark
    compared: tuple[tuple[str, ...], ...]  # measure, images a target, targets / units, better by, interval, baseline
    command: str  # that does it again
    made: str  # seed, seconds and versions


def entries_of(results: Mapping[Path, Result]) -> dict[Path, Entry]:
    """Return every attack by its folder: those that make images first, the strongest of a kind of upload before others."""
    attacks = strongest_first([result for result in results.values() if isinstance(result, StoredAttack)], scored)
    order = [attack.directory for attack in attacks]
    order += [key for key, result in results.items() if not isinstance(result, StoredAttack)]
    room, entries = PAGE_BYTES, dict[Path, Entry]()
    for place, (key, name) in enumerate(zip(order, _called([results[key] for key in order]), strict=True), start=1):
        entries[key] = _entry(f"attack-{place}", name, results[key], room)
        room -= len(entries[key].picture)
    return entries


def _entry(anchor: str, name: str, result: Result, room: int) -> Entry:
    record, about = record_of(result), about_of(result)
    able: Able | None = record.able_on("all")
    said = [_scored(record), "" if able is None else able_words(able), premise_words(record.premise)]
    made = [f"seed {record.seed}", f"{record.cost.seconds:.1f} s"]
    picture, hidden = _picture(result, room) if isinstance(result, StoredAttack) else ("", "")
    if isinstance(record, ReconstructionRecord):
        made.append(f"{record.cost.iterations} iterations a row, {record.cost.rows} rows on {record.cost.device}")
        made.append(", ".join(f"{name} {version}" for name, version in record.versions.items()))
    upload = upload_title(about)
    where = {"upload": f"{upload}, {about.target}", "data set": about.dataset, "seed": str(about.run_seed)}
    return Entry(
        anchor=anchor,
        name=f"{name} on {about.target} uploads of {upload}, {about.dataset}, seed {about.run_seed}",
        row={"attack": name, **where, **figures(record)},
        remark=" ".join(filter(None, said)),
        picture=picture,
        hidden=hidden,
        measures=tuple(_measures(record)),
        compared=tuple(map(_compared, record.comparisons)),
        command=about.command,
        made=" · ".join(made),
    )


def _picture(attack: StoredAttack, room: int) -> tuple[str, str]:
    """Return the picture of an attack as the source of an image of so many bytes at most, or why there is none."""
    rule, path = attack.about.redacted, attack.directory / GRID
    if rule == OMIT:
        return "", "this result is redacted"
    if rule == NONE and not (attack.directory / TRUTH).is_file():
        return "", "the private truth was left out of this directory"
    if path.is_file() and rule == load_stored(attack.directory).about.redacted:
        try:
            content = read_bytes(path)
        except UserError as error:
            return "", str(error)
    else:  # to be redacted anew, or left for later
        from fedpriv.reports.grid import grid_png

        content = grid_png(replace(load_attack(attack.directory), about=attack.about))
    source = image_source(content, "png")
    return ("", f"the page has no room for {GRID}") if len(source) > room else (source, "")


def _scored(record: Record) -> str:
    units = f"Intervals are over {record.n_clients} {record.units}."
    if isinstance(record, ReconstructionRecord):
        diverged = f" {record.n_diverged} diverged target(s) count as black images." if record.n_diverged else ""
        return f"Score: {record.headline}. {record.control.verdict}{diverged} {units}"
    if isinstance(record, MembershipRecord):
        others = "the client's own held-out images" if record.nonmembers == "held_out" else "others' images"
        return f"Non-members: {others}, {record.n_nonmembers} of {record.n_candidates} candidates. {units}"
    return f"{record.n_yes} of {record.n_pairs} answers are yes; learned from {record.learned_from}. {units}"


def figures(record: Record) -> dict[str, str]:
    """Return the columns that all attacks share: what is measured, its value, and what it is beside the baseline."""
    mean: float | None
    if isinstance(record, ReconstructionRecord):
        gain, floors = record.advantage_db, record.floors
        measured, value, against = "PSNR (dB)", record.metrics.psnr_db.mean, gain.best_floor
        baseline, mean, ends, n = floors[against].psnr_db.mean, gain.mean, gain.ci95, record.n_targets
        control = floors[SHUFFLED].psnr_db.mean if SHUFFLED in floors else None
    else:
        item = next((one for one in record.comparisons if one.stratum == "all"), None)
        measured, value = f"{endpoint_of(record)}, AUC", record.auc.value
        control = None if record.shuffled is None else record.shuffled.auc.value
        mean, ends, against = (item.mean, item.ci95, item.against) if item else (None, None, "")
        baseline = value - (mean or 0.0)
        n = record.n_candidates if isinstance(record, MembershipRecord) else record.n_pairs
    interval = "" if ends is None else f" [{ends[0]:+.2f}, {ends[1]:+.2f}]"
    return {
        "threat model": threat_title(threat_of(record), record.target),
        "measure": measured,
        "value": number(value),
        "baseline": f"{number(baseline)} ({LABELS.get(against, against)})" if against else "–",
        "advantage [95 %]": "–" if mean is None else f"{mean:+.2f}{interval}",
        "shuffled": "not run" if control is None else number(control),
        "n / units": f"{n} / {record.n_clients}",
        "seconds": f"{record.cost.seconds:.0f}",
    }


def _called(results: Sequence[Result]) -> list[str]:
    """Return the name of each attack in tables: with the options that differ from those of its namesakes on the upload."""

    def key(about: Any) -> tuple[object, ...]:
        return about.title, upload_title(about), about.target, about.dataset, about.run_seed

    abouts = [about_of(result) for result in results]
    alike: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    for about in abouts:
        alike.setdefault(key(about), []).append(about.options)
    names = []
    for about in abouts:
        others = alike[key(about)]
        options = [f"{k}={v}" for k, v in about.options.items() if any(other.get(k) != v for other in others)]
        names.append(", ".join([about.title, *options]))
    return names


def _measures(record: Record) -> list[tuple[str, ...]]:
    if isinstance(record, ReconstructionRecord):
        rows = [_measure(key, value) for key, value in record.metrics.measured.items()]
        guesses = sorted(record.floors.items(), key=lambda pair: -pair[1].psnr_db.mean)
        for name, guess in guesses:
            remark = "the baseline" if name == record.advantage_db.best_floor else ""
            rows.append((f"PSNR (dB), {LABELS.get(name, name)}", number(guess.psnr_db.mean), "–", "–", "–", remark))
        return rows
    noes = record.n_nonmembers if isinstance(record, MembershipRecord) else record.n_pairs - record.n_yes
    few = "" if noes >= 1000 else f"{noes} without the answer yes, fewer than 1,000"
    rows = [_rate("AUC", record.auc), _rate("TPR at 1 % FPR", record.tpr_at_1_percent, few)]
    rows += [] if record.shuffled is None else [_rate("AUC, shuffled uploads", record.shuffled.auc)]
    if isinstance(record, MembershipRecord):
        rows += [] if record.baseline is None else [_rate("AUC, baseline", record.baseline.auc, record.baseline.name)]
    return rows


def _rate(name: str, value: Rate, remark: str = "") -> tuple[str, ...]:
    return name, number(value.value), "–", "–", span(value.ci95), remark


def _measure(key: str, value: Summary) -> tuple[str, ...]:
    """Return a row of the table of measures, with chance and the control where a measure has them."""
    name, remark = _MEASURES[key]
    if value.not_measured:
        return (name, "", "", "", "", value.not_measured)
    if isinstance(value, Identification):
        by = "chance" if value.chance_of is None else LABELS.get(value.chance_of, value.chance_of)
        remark = f"{by} {number(value.chance)}, decoys {', '.join(map(str, value.decoys))}"
        remark += f"; {value.n_left_out} left out: fewer than ten of the class" if value.n_left_out else ""
    if SHUFFLED in value.guesses:
        remark += f"; on shuffled uploads {number(value.guesses[SHUFFLED])}"
    return (name, *map(number, (value.mean, value.median, value.sd)), span(value.ci95), remark)


def _compared(item: Comparison) -> tuple[str, ...]:
    by = "–" if item.mean is None else f"{item.mean:+.3g}"
    ends = "–" if item.ci95 is None else f"{item.ci95[0]:+.3g} to {item.ci95[1]:+.3g}"
    images = {"1": "one", "several": "several"}.get(item.stratum, item.stratum)
    against = LABELS.get(item.against, item.against)
    return _COMPARED.get(item.measure, item.measure), images, f"{item.n} / {item.n_clients}", by, ends, against


def result_items(attacks: Sequence[StoredAttack], alone: Baselines | None = None) -> Iterator[dict[str, Any]]:
    """Yield what rows of ``results.csv`` are made of, the strongest of each kind of upload first."""
    for attack in strongest_first(attacks, scored):
        record = scored(attack)
        yield {
            "record": record,
            "about": attack.about,
            "directory": attack.directory.name,
            "baseline": record.floors[record.advantage_db.best_floor],
            "knowledge": card_cell(record.knowledge),
            "threat": threat_of(record),
            "size": upload_size(attack.about),
            "round": max(row.round for row in record.targets),
            "gains": {moment: gain_over_local([attack.about], moment, alone or {}) for moment in MOMENTS},
        }
