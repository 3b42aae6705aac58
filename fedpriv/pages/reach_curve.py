"""The reach of a leak, as picture and as table: attacks on the same clients after more and more local work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpriv.pages.alike import Verdicts, reach_key, upload_key
from fedpriv.pages.curves import house_style, open_axes, svg_text
from fedpriv.pages.findings import Finding
from fedpriv.pages.labels import upload_title
from fedpriv.pages.reached import by_work, first_beyond, furthest
from fedpriv.scoring.convergence import convergence
from fedpriv.scoring.floors import CONTROL, LABELS, SHUFFLED, blind_floors
from fedpriv.scoring.records import Kind, ReconstructionRecord
from fedpriv.scoring.records.made import Reach
from fedpriv.scoring.storage import AttackRecord, scored
from fedpriv.util.escape import picture_text

_LINES = ("#2f5d8a", "#8a2f5d", "#5d8a2f", "#6b4fa0", "#2f8a84", "#8a5d2f")
_FLOOR, _SOFT = "#0b6e4f", "#5b6572"
_APART = 0.12
"""Distance between two attacks at one setting, of that between settings."""


@dataclass(frozen=True)
class ReachPoint:
    """One attack at one setting.

    Attributes:
        setting: of local work.
        attack: registry name.
        kind: of the verdict on it.
        iterations: what the row that took most used.
        psnr: mean PSNR in dB, with its 95 % interval, or None with one client.
        floor: mean PSNR of the best blind guess in dB, and which it is.
        shuffled: mean PSNR on shuffled uploads, or None where that was not run.
        advantage: mean over targets of the PSNR above the floor, control included, with its interval.
        converged: share of targets that met the attack's own rule.
        specific: share of targets of a single image whose fit is specific; None where it was not measured.
        targets: number of uploads.
    """

    setting: Reach
    attack: str
    kind: Kind
    iterations: int
    psnr: tuple[float, tuple[float, float] | None]
    floor: tuple[float, str]
    shuffled: float | None
    advantage: tuple[float, tuple[float, float] | None]
    converged: float
    specific: float | None
    targets: int


@dataclass(frozen=True)
class ReachCurve:
    """Attacks on uploads of one federation at several settings of local work.

    Attributes:
        name: the target, the method with its defense, and the data set.
        series: labels of the settings that were asked for.
        points: by setting, then by attack as they come.
        last, beyond: labels of the last setting that leaks and of the first beyond it; empty where there is none.
        over: what the intervals are over, at the setting with the fewest.
    """

    name: str
    series: tuple[str, ...]
    points: tuple[ReachPoint, ...]
    last: str
    beyond: str
    over: str

    @property
    def attacks(self) -> tuple[str, ...]:
        """Every attack, once."""
        return tuple(dict.fromkeys(point.attack for point in self.points))

    @property
    def untried(self) -> tuple[str, ...]:
        """The settings at which no attack gave a result."""
        there = {point.setting.label for point in self.points}
        return tuple(label for label in self.series if label not in there)

    @property
    def description(self) -> str:
        """The picture in words."""
        text = "; ".join(f"{point.attack} {point.psnr[0]:.1f} dB at {point.setting.label}" for point in self.points)
        return f"Chart of {self.name}: PSNR of attacks, best guess and control by local work: {text}"


def reach_curves(
    attack_records: Sequence[AttackRecord], verdicts: Verdicts, said: Sequence[Finding]
) -> tuple[ReachCurve, ...]:
    """Return a curve for every reach and seed of two settings or more.

    Args:
        attack_records: scored attacks.
        verdicts: on all of the page.
        said: findings of the page.
    """
    series = {part.key: entry.reach for entry in said if entry.reach for part in entry.parts}
    together: dict[tuple[str, int], list[AttackRecord]] = {}
    for attack in attack_records:
        if key := reach_key(attack.about):
            together.setdefault((key, attack.about.run_seed), []).append(attack)
    curves = []
    for members in together.values():
        current = series.get(upload_key(members[0].about), ())
        if len(current) > 1:
            last, beyond = (
                None if position is None else current[position].label
                for position in (furthest(current), first_beyond(current))
            )
            curves.append(_curve(members, verdicts, tuple(item.label for item in current), last or "", beyond or ""))
    return tuple(curves)


def _curve(
    members: Sequence[AttackRecord], verdicts: Verdicts, series: tuple[str, ...], last: str, beyond: str
) -> ReachCurve:
    points = [_point(scored(attack), verdicts[attack.directory,].kind) for attack in members]
    fewest = min(map(scored, members), key=lambda record: record.n_clients)
    about = members[0].about
    return ReachCurve(
        name=f"{about.target} uploads of {upload_title(about)}, {about.dataset}, seed {about.run_seed}",
        series=series,
        points=tuple(sorted(points, key=lambda point: by_work(point.setting))),
        last=last,
        beyond=beyond,
        over=f"{fewest.n_clients} {fewest.units}",
    )


def _point(record: ReconstructionRecord, kind: Kind) -> ReachPoint:
    assert record.reach is not None
    gain, reached, search = record.advantage_db, record.metrics.psnr_db, convergence(record)
    best = max(blind_floors(record.image_floors), key=lambda name: record.image_floors[name].psnr_db)
    shuffled = record.image_floors.get(SHUFFLED)
    return ReachPoint(
        setting=record.reach,
        attack=record.attack,
        kind=kind,
        iterations=record.cost.iterations,
        psnr=(reached.mean, reached.ci95),
        floor=(record.image_floors[best].psnr_db, LABELS.get(best, best)),
        shuffled=None if shuffled is None else shuffled.psnr_db,
        advantage=(gain.mean, gain.ci95),
        converged=search.converged,
        specific=search.specific,
        targets=record.n_targets,
    )


def reach_rows(curves: Sequence[ReachCurve]) -> list[dict[str, object]]:
    """Return the rows of ``reach.csv``: one an attack and setting."""
    return [_row(curve, point) for curve in curves for point in curve.points]


def _row(curve: ReachCurve, point: ReachPoint) -> dict[str, object]:
    reached, gained = point.psnr[1] or (None, None), point.advantage[1] or (None, None)
    return {
        "upload": curve.name,
        "reach": point.setting.label,
        "local_steps": point.setting.steps,
        "local_images": point.setting.images,
        "attack": point.attack,
        "verdict_kind": point.kind,
        "last_that_leaks": point.setting.label == curve.last,
        "first_beyond": point.setting.label == curve.beyond,
        "psnr_db": point.psnr[0],
        "psnr_db_low": reached[0],
        "psnr_db_high": reached[1],
        "best_floor": point.floor[1],
        "best_floor_psnr_db": point.floor[0],
        "shuffled_psnr_db": point.shuffled,
        "advantage_db": point.advantage[0],
        "advantage_db_low": gained[0],
        "advantage_db_high": gained[1],
        "converged_share": point.converged,
        "specific_share": point.specific,
        "n_targets": point.targets,
        "iterations": point.iterations,
    }


def reach_curve_svg(curve: ReachCurve) -> str:
    """Draw a curve: PSNR of each attack with its 95 % intervals at each setting, beside the best guess and the control."""
    from matplotlib.figure import Figure

    with house_style():
        figure = Figure(figsize=(6.6, 3.1), layout="constrained")
        axes = figure.subplots()
        open_axes(axes)
        places = {label: index for index, label in enumerate(curve.series)}
        for number, attack in enumerate(curve.attacks):
            group = [point for point in curve.points if point.attack == attack]
            shift = _APART * (number - (len(curve.attacks) - 1) / 2)
            xs = [places[point.setting.label] + shift for point in group]
            _draw_attack(axes, xs, group, _LINES[number % len(_LINES)], picture_text(attack))
        _draw_floor(axes, curve, places)
        axes.plot([], [], color=_SOFT, marker="D", markersize=4, markerfacecolor="#ffffff", linewidth=0, label=CONTROL)
        axes.set_xlim(-0.5, len(places) - 0.5)
        axes.set_xticks(list(places.values()), [picture_text(label) for label in places])
        axes.set_xlabel("local work behind the upload")
        axes.set_ylabel("PSNR (dB)")
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
        return svg_text(figure)


def _draw_attack(axes: Any, xs: Sequence[float], points: Sequence[ReachPoint], colour: str, name: str) -> None:
    """Draw an attack; its points are filled where a leak stands."""
    axes.plot(xs, [point.psnr[0] for point in points], color=colour, linewidth=1.4, label=name)
    for x, point in zip(xs, points, strict=True):
        mean, interval = point.psnr
        if interval is not None:
            axes.plot([x, x], interval, color=colour, linewidth=1)
        face = "#ffffff" if point.kind in ("untested", "none") else colour
        axes.plot([x], [mean], marker="o", markersize=5, color=colour, markerfacecolor=face)
        if point.shuffled is not None:
            axes.plot([x], [point.shuffled], marker="D", markersize=4, color=colour, markerfacecolor="#ffffff")


def _draw_floor(axes: Any, curve: ReachCurve, places: Mapping[str, int]) -> None:
    """Draw the best blind guess of each setting, of all attacks the highest."""
    label: str | None = "best guess"
    for setting, position in places.items():
        floors = [point.floor[0] for point in curve.points if point.setting.label == setting]
        if floors:
            ends = [position - 0.4, position + 0.4]
            axes.plot(ends, [max(floors)] * 2, color=_FLOOR, linewidth=1.4, linestyle=(0, (4, 2)), label=label)
            label = None
