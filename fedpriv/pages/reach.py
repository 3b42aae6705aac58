"""The reach of a leak: attacks on the same clients after more and more local work, as sentence, picture and table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedpriv.pages.alike import Verdicts, reach_key, upload_key
from fedpriv.pages.charts import BASELINE, COLOURS, DASHES, SOFT, drawing, legend, open_axes, svg_text
from fedpriv.pages.labels import upload_title
from fedpriv.scoring.floors import CONTROL, LABELS, SHUFFLED, blind_floors
from fedpriv.scoring.records import Kind, ReconstructionRecord
from fedpriv.scoring.records.made import Reach
from fedpriv.scoring.storage import AttackRecord, scored
from fedpriv.util.escape import picture_text

_APART = 0.12
"""Distance between two attacks at one setting, of that between settings."""


@dataclass(frozen=True)
class Reached:
    """One setting of a sweep over local work.

    Attributes:
        label, words: the setting on an axis, and in a sentence.
        images: what the attacks on it that make images come to, in one sentence; empty where none gave a result.
        leaks: whether images or vectors are shown to come back.
    """

    label: str
    words: str
    images: str = ""
    leaks: bool = False


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


def span_of(series: Sequence[Reached]) -> str:
    """Return several settings from the first to the last in words."""
    return f"from {series[0].words} to {series[-1].words}"


def reach_sentence(series: Sequence[Reached]) -> str:
    """Return the sentences on the last of several settings that leaks and on the first that does not."""
    last, beyond = furthest(series), first_beyond(series)
    if last is None:
        parts = [f"No leak is shown, {span_of(series)}."]
    else:
        far = "as far as was asked, " if beyond is None else ""
        before = [other.words for other in series[:last] if not other.leaks]
        gap = f" (at {' and '.join(before)} none is shown)" if before else ""
        parts = [f"The leak reaches {far}{series[last].words}{gap}: {_inside(series[last].images)}"]
    if beyond is not None:
        item = series[beyond]
        if item.images:
            parts.append(f"At {item.words} none is shown: {_inside(item.images)}")
        else:
            parts.append(f"At {item.words} no attack that makes images gave a result.")
    return " ".join(parts)


def _inside(text: str) -> str:
    return text[:1].lower() + text[1:]


# ---------------------------------------------------------------- curves


@dataclass(frozen=True)
class ReachCurve:
    """Attacks on uploads of one federation at several settings of local work.

    Attributes:
        name: the target, the method with its defense, the data set and the seed.
        series: labels of the settings that were asked for.
        points: rows of ``reach.csv`` by setting, each with its ``setting`` and with ``interval`` and ``gained``, the ends of
            PSNR and advantage, or None.
        last, beyond: labels of the last setting that leaks and of the first beyond it; empty where there is none.
        over: what the intervals are over, at the setting with the fewest.
    """

    name: str
    series: tuple[str, ...]
    points: tuple[dict[str, Any], ...]
    last: str
    beyond: str
    over: str

    @property
    def untried(self) -> tuple[str, ...]:
        """The settings at which no attack gave a result."""
        there = {point["reach"] for point in self.points}
        return tuple(label for label in self.series if label not in there)

    @property
    def description(self) -> str:
        """The picture in words."""
        text = "; ".join(f"{point['attack']} {point['psnr_db']:.1f} dB at {point['reach']}" for point in self.points)
        return f"Chart of {self.name}: PSNR of attacks, baseline and control by local work: {text}"


def reach_curves(
    attack_records: Sequence[AttackRecord], verdicts: Verdicts, said: Sequence[Any]
) -> tuple[ReachCurve, ...]:
    """Return a curve for every sweep and seed of two settings or more.

    Args:
        attack_records: scored attacks.
        verdicts: on all of the page.
        said: findings of the page (:class:`fedpriv.pages.findings.Finding`).
    """
    series = {part.key: entry.reach for entry in said if entry.reach for part in entry.parts}
    together: dict[tuple[str, int], list[AttackRecord]] = {}
    for attack in attack_records:
        if key := reach_key(attack.about):
            together.setdefault((key, attack.about.run_seed), []).append(attack)
    return tuple(
        _curve(members, verdicts, current)
        for members in together.values()
        if len(current := series.get(upload_key(members[0].about), ())) > 1
    )


def _curve(members: Sequence[AttackRecord], verdicts: Verdicts, series: Sequence[Reached]) -> ReachCurve:
    last, beyond = ("" if at is None else series[at].label for at in (furthest(series), first_beyond(series)))
    fewest, about = min(map(scored, members), key=lambda record: record.n_clients), members[0].about
    name = f"{about.target} uploads of {upload_title(about)}, {about.dataset}, seed {about.run_seed}"
    points: list[dict[str, Any]] = [
        {"upload": name, "last_that_leaks": record.reach.label == last, "first_beyond": record.reach.label == beyond}
        | _point(record, record.reach, verdicts[attack.directory,].kind)
        for attack in members
        if (record := scored(attack)).reach is not None
    ]
    points.sort(key=lambda point: by_work(point["setting"]))
    labels = tuple(item.label for item in series)
    return ReachCurve(name, labels, tuple(points), last, beyond, f"{fewest.n_clients} {fewest.units}")


def _point(record: ReconstructionRecord, setting: Reach, kind: Kind) -> dict[str, Any]:
    gain, psnr, floors = record.advantage_db, record.metrics.psnr_db, record.image_floors
    best = max(blind_floors(floors), key=lambda name: floors[name].psnr_db)
    interval, gained = psnr.ci95 or (None, None), gain.ci95 or (None, None)
    return {
        "setting": setting,
        "interval": psnr.ci95,
        "gained": gain.ci95,
        "reach": setting.label,
        "local_steps": setting.steps,
        "local_images": setting.images,
        "attack": record.attack,
        "verdict_kind": kind,
        "psnr_db": psnr.mean,
        "psnr_db_low": interval[0],
        "psnr_db_high": interval[1],
        "best_floor": LABELS.get(best, best),
        "best_floor_psnr_db": floors[best].psnr_db,
        "shuffled_psnr_db": floors[SHUFFLED].psnr_db if SHUFFLED in floors else None,
        "advantage_db": gain.mean,
        "advantage_db_low": gained[0],
        "advantage_db_high": gained[1],
        "converged_share": record.converged_share,
        "specific_share": record.specific_share,
        "n_targets": record.n_targets,
        "iterations": record.cost.iterations,
    }


def reach_rows(curves: Sequence[ReachCurve]) -> list[dict[str, Any]]:
    """Return the rows of ``reach.csv``: one an attack and setting."""
    beside = ("setting", "interval", "gained")
    return [{k: v for k, v in point.items() if k not in beside} for curve in curves for point in curve.points]


def reach_svg(curve: ReachCurve) -> str:
    """Draw PSNR of each attack at each setting, filled where a leak stands, beside the baseline and the control."""
    places = {label: index for index, label in enumerate(curve.series)}
    attacks = list(dict.fromkeys(point["attack"] for point in curve.points))
    with drawing(6.6, 3.1) as figure:
        axes = open_axes(figure.subplots())
        for number, attack in enumerate(attacks):
            colour, group = COLOURS[number % len(COLOURS)], [p for p in curve.points if p["attack"] == attack]
            shift = _APART * (number - (len(attacks) - 1) / 2)
            xs, ys = [places[p["reach"]] + shift for p in group], [p["psnr_db"] for p in group]
            axes.plot(xs, ys, color=colour, linewidth=1.4, label=picture_text(attack))
            for x, point in zip(xs, group, strict=True):
                if point["interval"] is not None:
                    axes.plot([x, x], point["interval"], color=colour, linewidth=1)
                face = "#ffffff" if point["verdict_kind"] in ("untested", "none") else colour
                axes.plot([x], [point["psnr_db"]], marker="o", markersize=5, color=colour, markerfacecolor=face)
                if point["shuffled_psnr_db"] is not None:
                    axes.plot(
                        [x], [point["shuffled_psnr_db"]], "D", markersize=4, color=colour, markerfacecolor="#ffffff"
                    )
        label: str | None = "baseline"
        for setting, position in places.items():
            floors = [p["best_floor_psnr_db"] for p in curve.points if p["reach"] == setting]
            if floors:
                ends = [position - 0.4, position + 0.4]
                axes.plot(ends, [max(floors)] * 2, color=BASELINE, linewidth=1.4, linestyle=DASHES, label=label)
                label = None
        axes.plot([], [], "D", color=SOFT, markersize=4, markerfacecolor="#ffffff", label=CONTROL)
        axes.set_xlim(-0.5, len(places) - 0.5)
        axes.set_xticks(list(places.values()), [picture_text(setting) for setting in places])
        axes.set_xlabel("local work behind the upload")
        axes.set_ylabel("PSNR (dB)")
        legend(figure, 3)
        return svg_text(figure)
