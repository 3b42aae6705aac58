"""One page over one or more attack directories, as HTML, Markdown and CSV. A function of the saved records alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.errors import UserError
from fedpriv.eval.csv_table import csv_text
from fedpriv.eval.floors import LABELS
from fedpriv.eval.grid import grid_png
from fedpriv.eval.leakage import METRICS
from fedpriv.eval.membership import load_membership
from fedpriv.eval.membership_report import html_section, markdown_section
from fedpriv.eval.page import environment
from fedpriv.eval.storage import AttackRecord, load_attack, scored
from fedpriv.eval.verdict import verdict, verdict_kind
from fedpriv.files import write_text

_KINDS = {
    "leaks": "leaks",
    "some": "leaks for some",
    "features": "leaks representations",
    "classes": "shows classes",
    "none": "no leak found",
    "worse": "attack fails",
    "single": "one target",
}
_NAMES = {
    "psnr_db": "PSNR (dB)",
    "psnr_of_mean_mse_db": "PSNR of the mean MSE (dB)",
    "mse_255": "MSE on 0..255",
    "ssim": "SSIM",
    "lpips": "LPIPS",
    "identification_top1": "identified first among decoys",
    "relative_error": "relative error of the feature",
    "cosine": "cosine of the feature",
    "label_accuracy": "labels recovered",
    "feature_identification": "feature nearest to its own",
    "class_accuracy": "class recognised by an independent classifier",
}


@dataclass(frozen=True)
class Entry:
    """One attack as the page shows it.

    Attributes:
        anchor: link within the page.
        name: title.
        record: ``metrics.json``.
        about: ``about.json``.
        verdict: the sentence.
        kind: as :func:`fedpriv.eval.verdict.verdict_kind` has it.
        badge: the kind in two words.
        low, point, high: the advantage and its interval as positions in per cent of the group's scale; low and high are
            None without an interval.
        grid: PNG as a data URI, or None where the private truth was left out.
        alt: what the grid shows, in words.
        measures: rows of (name, mean, median, sd, interval, remark).
        floors: rows of (name, PSNR, MSE on 0..255, SSIM, whether it is the best).
    """

    anchor: str
    name: str
    record: dict[str, Any]
    about: dict[str, Any]
    verdict: str
    kind: str
    badge: str
    low: float | None
    point: float
    high: float | None
    grid: str | None
    alt: str
    measures: tuple[tuple[str, ...], ...]
    floors: tuple[tuple[str, str, str, str, bool], ...]


@dataclass(frozen=True)
class Group:
    """Attacks under one knowledge card, strongest first. Cards are never ranked against one another."""

    card: tuple[tuple[str, str], ...]
    zero: float
    entries: tuple[Entry, ...]


def write_report(
    directories: Sequence[Path], out: Path, membership: Sequence[Path] = (), *, runs: str | None = None
) -> None:
    """Write ``report.html``, ``report.md`` and ``results.csv`` into the folder ``out``.

    Args:
        directories: attack directories that have been scored.
        out: folder to write to; it is made where it is missing.
        membership: folders that hold a ``membership.json``.
        runs: file name of the page about runs beside this one, or None.

    Raises:
        UserError: when there are none, or one is damaged or was not scored.
    """
    if not directories and not membership:
        raise UserError("report: no attack directories; give at least one")
    found = [load_attack(Path(directory)) for directory in directories]
    groups = _groups(found)
    records = [load_membership(Path(folder)) for folder in membership]
    page = _render("report.html.j2", groups, runs, autoescape=True)
    write_text(out / "report.html", page.replace("</main>", html_section(records) + "</main>"))
    text = _render("report.md.j2", groups, runs, autoescape=False)
    write_text(out / "report.md", text + markdown_section(records))
    write_text(out / "results.csv", csv_text(found))


def _groups(found: Sequence[AttackRecord]) -> tuple[Group, ...]:
    by_card: dict[str, list[tuple[int, AttackRecord]]] = {}
    for number, attack in enumerate(found):
        card = json.dumps(scored(attack)["knowledge"], sort_keys=True)
        by_card.setdefault(card, []).append((number, attack))
    groups = []
    for members in by_card.values():
        ends = [0.0]
        for _, attack in members:
            gain = scored(attack)["advantage_db"]
            ends += [gain["mean"], *(gain["ci95"] or ())]
        low, high = min(ends), max(ends)
        margin = 0.05 * (high - low) or 1.0
        low, high = low - margin, high + margin
        ranked = sorted(members, key=lambda pair: -scored(pair[1])["advantage_db"]["mean"])
        groups.append(
            Group(
                card=_card(scored(members[0][1])["knowledge"]),
                zero=_place(0.0, low, high),
                entries=tuple(_entry(number, attack, low, high) for number, attack in ranked),
            )
        )
    return tuple(groups)


def _place(value: float, low: float, high: float) -> float:
    return round(100 * (value - low) / (high - low), 2)


def _card(knowledge: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    plain = {True: "known", False: "unknown"}
    return tuple(
        (key.replace("_", " "), plain[value] if isinstance(value, bool) else str(value).replace("_", " "))
        for key, value in knowledge.items()
    )


def _entry(number: int, attack: AttackRecord, low: float, high: float) -> Entry:
    record = scored(attack)
    gain = record["advantage_db"]
    interval = gain["ci95"]
    grid = None
    if attack.truths is not None:
        png = grid_png(record, attack.reconstruction, attack.truths, attack.permuted)
        grid = "data:image/png;base64," + base64.b64encode(png).decode()
    name = f"{record['attack']} on {record['target']} uploads of {record['method']}, {record['dataset']}"
    return Entry(
        anchor=f"attack-{number + 1}",
        name=name,
        record=record,
        about=attack.about,
        verdict=verdict(record),
        kind=verdict_kind(record),
        badge=_KINDS[verdict_kind(record)],
        low=None if interval is None else _place(interval[0], low, high),
        point=_place(gain["mean"], low, high),
        high=None if interval is None else _place(interval[1], low, high),
        grid=grid,
        alt=(
            f"Image grid of {name}: true images, reconstructions, the best blind guess and the control, with the PSNR "
            "under each; targets chosen by fixed quantiles of the score, or all of them"
        ),
        measures=tuple(_measure_row(key, value) for key, value in record["metrics"].items()),
        floors=_floor_rows(record),
    )


def _measure_row(key: str, value: Mapping[str, Any]) -> tuple[str, ...]:
    if value.get("not_measured"):
        return (_NAMES.get(key, key), "", "", "", "", str(value["not_measured"]))
    remark = ""
    if key in METRICS:
        remark = "higher leaks more" if METRICS[key].higher_is_better else "lower leaks more"
    if key == "identification_top1":
        remark = f"chance {value['chance']:.3f}, decoys {', '.join(str(n) for n in value['decoys'])}"
    if key == "feature_identification":
        remark = f"chance {value['chance']:.3f}, among the client's own"
    if "permuted" in value:
        remark += f"; from other clients' uploads {number(value['permuted']['mean'])}"
    if key == "class_accuracy":
        floors = ", ".join(f"{LABELS.get(name, name)} {share:.2f}" for name, share in value["floors"].items())
        remark = f"true images {value['real']:.2f}, chance {value['chance']:.2f}; {floors}"
    return (
        _NAMES.get(key, key),
        *(number(value[part]) for part in ("mean", "median", "sd")),
        span(value["ci95"]),
        remark,
    )


def _floor_rows(record: Mapping[str, Any]) -> tuple[tuple[str, str, str, str, bool], ...]:
    rows = sorted(record["floors"].items(), key=lambda pair: -pair[1]["psnr_db"])
    return tuple(
        (
            LABELS.get(name, name),
            number(values["psnr_db"]),
            number(values["mse_255"]),
            number(values.get("ssim")),
            name == record["advantage_db"]["best_floor"],
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


def _render(template: str, groups: tuple[Group, ...], runs: str | None, *, autoescape: bool) -> str:
    home = environment(autoescape=autoescape)
    home.filters |= {"number": number, "span": span, "label": lambda name: LABELS.get(name, name)}
    shown = sum(len(group.entries) for group in groups)
    return home.get_template(template).render(groups=groups, count=shown, runs=runs)
