"""One page over one or more attack directories, as HTML, Markdown and CSV. A function of the saved records alone."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.errors import UserError
from fedpriv.eval.budget_curve import budget_curves, curve_svg
from fedpriv.eval.card import card_words
from fedpriv.eval.convergence import Convergence, convergence, objective
from fedpriv.eval.csv_table import csv_text
from fedpriv.eval.floors import CONTROL, FLOOR, LABELS
from fedpriv.eval.grid import grid_png
from fedpriv.eval.leakage import METRICS
from fedpriv.eval.page import environment
from fedpriv.eval.ranking import by_budget, in_order, strongest_first, title
from fedpriv.eval.score_records import score_sections
from fedpriv.eval.stage_table import stage_tables
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
        search: what the attack's own objective says.
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
    search: Convergence
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
        membership: folders that hold a ``membership.json`` or a ``property.json``.
        runs: file name of the page about runs beside this one, or None.

    Raises:
        UserError: when there are none, or one is damaged or was not scored.
    """
    if not directories and not membership:
        raise UserError("report: no attack directories; give at least one")
    found = [load_attack(Path(directory)) for directory in directories]
    # Of an attack with several budgets the largest stands for it: choosing by score would be choosing by the truth.
    shown = [series[-1] for series in by_budget(found, scored, lambda attack: attack.about)]
    groups = _groups(shown)
    curves = budget_curves(in_order(found, scored))
    pictures = [curve_svg(curve) for curve in curves]
    files = [f"budget-{number}-{slug(curve.name)}.svg" for number, curve in enumerate(curves, start=1)]
    values = {
        "groups": groups,
        "count": len(shown),
        "runs": runs,
        "curves": curves,
        "files": files,
        "pictures": ["data:image/svg+xml;base64," + base64.b64encode(text.encode()).decode() for text in pictures],
        "stages": stage_tables(in_order(shown, scored)),
        "words": {"floor": FLOOR, "control": CONTROL},
    }
    as_html, as_markdown = score_sections([Path(folder) for folder in membership])
    page = _render("report.html.j2", values, autoescape=True)
    write_text(out / "report.html", page.replace("</main>", as_html + "</main>"))
    text = _render("report.md.j2", values, autoescape=False)
    write_text(out / "report.md", text + as_markdown)
    write_text(out / "results.csv", csv_text(found))
    for file, picture in zip(files, pictures, strict=True):
        write_text(out / file, picture)


def slug(name: str) -> str:
    """Return a name as part of a file name.

    >>> slug("dip on entangled uploads of fedre, digits")
    'dip-on-entangled-uploads-of-fedre-digits'
    """
    return "-".join(re.findall(r"[a-z0-9]+", name.lower()))


def _groups(found: Sequence[AttackRecord]) -> tuple[Group, ...]:
    groups = []
    for number, members in enumerate(strongest_first(found, scored), start=1):
        ends = [0.0]
        for attack in members:
            gain = scored(attack)["advantage_db"]
            ends += [gain["mean"], *(gain["ci95"] or ())]
        low, high = min(ends), max(ends)
        margin = 0.05 * (high - low) or 1.0
        low, high = low - margin, high + margin
        groups.append(
            Group(
                card=_card(scored(members[0])["knowledge"]),
                zero=_place(0.0, low, high),
                entries=tuple(_entry(f"{number}-{place}", a, low, high) for place, a in enumerate(members, start=1)),
            )
        )
    return tuple(groups)


def _place(value: float, low: float, high: float) -> float:
    return round(100 * (value - low) / (high - low), 2)


def _card(knowledge: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((key.replace("_", " "), value.replace("_", " ")) for key, value in card_words(knowledge).items())


def _entry(place: str, attack: AttackRecord, low: float, high: float) -> Entry:
    record = scored(attack)
    gain = record["advantage_db"]
    interval = gain["ci95"]
    grid = None
    if attack.truths is not None:
        png = grid_png(record, attack.reconstruction, attack.truths, attack.permuted)
        grid = "data:image/png;base64," + base64.b64encode(png).decode()
    name = f"{title(record)} on {record['target']} uploads of {record['method']}, {record['dataset']}"
    return Entry(
        anchor=f"attack-{place}",
        name=name,
        record=record,
        about=attack.about,
        verdict=verdict(record),
        kind=verdict_kind(record),
        badge=_KINDS[verdict_kind(record)],
        search=convergence(record),
        low=None if interval is None else _place(interval[0], low, high),
        point=_place(gain["mean"], low, high),
        high=None if interval is None else _place(interval[1], low, high),
        grid=grid,
        alt=(
            f"Image grid of {name}: true images, reconstructions, the floor and permuted uploads, with the PSNR "
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
        remark += f"; on permuted uploads {number(value['permuted']['mean'])}"
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


def _render(template: str, values: Mapping[str, Any], *, autoescape: bool) -> str:
    home = environment(autoescape=autoescape)
    home.filters |= {
        "number": number,
        "span": span,
        "label": lambda name: LABELS.get(name, name),
        "objective": objective,
    }
    return home.get_template(template).render(values)
