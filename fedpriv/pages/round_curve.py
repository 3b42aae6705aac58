"""Growth or decay of an attack's leak over the rounds of a run: one curve an attack, as picture and as table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedpriv.pages.curves import house_style, open_axes, svg_text
from fedpriv.pages.stage_table import along_training, title_of
from fedpriv.scoring.convergence import convergence
from fedpriv.scoring.floors import CONTROL, LABELS, SHUFFLED
from fedpriv.scoring.records import ReconstructionRecord
from fedpriv.scoring.records.made import Stage
from fedpriv.scoring.storage import AttackRecord, scored
from fedpriv.util.escape import picture_text

_LINE, _FLOOR, _CONTROL, _SOFT = "#2f5d8a", "#0b6e4f", "#a86a00", "#5b6572"
_FEW_ROUNDS = 25  # so many points get marks


@dataclass(frozen=True)
class RoundPoint:
    """One round.

    Attributes:
        round: its number.
        accuracy: pooled accuracy of the run after local training in that round, in [0, 1]; None where it is not known.
        rounds_seen: what the attack used.
        targets: number of targets.
        psnr: mean PSNR in dB.
        floor: mean PSNR of the floor in dB, and which it is, in words; the best blind guess of this round.
        shuffled: mean PSNR on shuffled uploads, or None where that was not run.
        advantage: mean over targets of the PSNR above the floor, dB.
        interval: its 95 % interval, or None with one client.
        identified: share of targets whose own image is the nearest among decoys; None where that was not measured.
        chance: the same of a guess at random.
        converged: share of targets that met the attack's own rule.
        specific: share of targets of a single image whose fit is specific; None where it was not measured.
    """

    round: int
    accuracy: float | None
    rounds_seen: int
    targets: int
    psnr: float
    floor: tuple[float, str]
    shuffled: float | None
    advantage: float
    interval: tuple[float, float] | None
    identified: float | None
    chance: float | None
    converged: float
    specific: float | None


@dataclass(frozen=True)
class RoundCurve:
    """An attack in several rounds of one run.

    Attributes:
        name: the attack, its target, the method with its defense, and the data set.
        points: rounds ascending.
        of: rounds of the run.
        over: what the intervals are over: how many clients, or declared groups of them, in the round with the fewest.
    """

    name: str
    points: tuple[RoundPoint, ...]
    of: int
    over: str

    @property
    def description(self) -> str:
        """The picture in words."""
        text = "; ".join(f"{point.advantage:+.2f} dB in round {point.round}" for point in self.points)
        return f"Chart of {self.name}: PSNR of attack, floor and control by round, and PSNR above the floor: {text}"


def round_curves(attack_records: Sequence[AttackRecord]) -> list[RoundCurve]:
    """Return a curve for every attack that was run in at least two rounds by their number, in the order given."""
    return [_curve(members) for members in along_training(attack_records, by_number=True)]


def _curve(members: Sequence[tuple[Stage, AttackRecord]]) -> RoundCurve:
    records = [scored(attack) for _, attack in members]
    fewest = min(records, key=lambda record: record.n_clients)
    return RoundCurve(
        name=title_of(members[0][1]),
        points=tuple(_point(stage, record) for (stage, _), record in zip(members, records, strict=True)),
        of=members[0][0].of,
        over=f"{fewest.n_clients} {fewest.units}",
    )


def _point(stage: Stage, record: ReconstructionRecord) -> RoundPoint:
    gain, shuffled = record.advantage_db, record.image_floors.get(SHUFFLED)
    identification, search = record.metrics.identification_top1, convergence(record)
    return RoundPoint(
        round=stage.round,
        accuracy=stage.accuracy.get("after_training"),
        rounds_seen=record.knowledge.rounds_seen,
        targets=record.n_targets,
        psnr=record.metrics.psnr_db.mean,
        floor=(record.image_floors[gain.best_floor].psnr_db, LABELS.get(gain.best_floor, gain.best_floor)),
        shuffled=None if shuffled is None else shuffled.psnr_db,
        advantage=gain.mean,
        interval=gain.ci95,
        identified=identification.mean,
        chance=identification.chance,
        converged=search.converged,
        specific=search.specific,
    )


def round_curve_svg(curve: RoundCurve) -> str:
    """Draw a curve: PSNR of attack, floor and control by round, and beside it the advantage with its 95 % intervals."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with house_style():
        figure = Figure(figsize=(6.6, 2.7), layout="constrained")
        left, right = figure.subplots(1, 2)
        rounds = [point.round for point in curve.points]
        marker = {"marker": "o", "markersize": 4} if len(rounds) <= _FEW_ROUNDS else {}
        for axes in (left, right):
            open_axes(axes)
            axes.set_xlabel("round")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        left.plot(rounds, [point.psnr for point in curve.points], color=_LINE, linewidth=1.6, label="attack", **marker)
        floors = [point.floor[0] for point in curve.points]
        left.plot(rounds, floors, color=_FLOOR, linewidth=1.2, linestyle=(0, (4, 2)), label="floor (best blind guess)")
        wrong = [(point.round, point.shuffled) for point in curve.points if point.shuffled is not None]
        if wrong:
            left.plot(*zip(*wrong, strict=True), color=_CONTROL, linewidth=1, linestyle=(0, (1, 2)), label=CONTROL)
        left.set_ylabel("PSNR (dB)")
        _draw_advantage(right, curve.points, marker)
        handles, labels = left.get_legend_handles_labels()
        figure.legend(
            handles,
            [picture_text(label) for label in labels],
            loc="outside lower center",
            ncols=3,
            frameon=False,
            fontsize=8,
        )
        return svg_text(figure)


def _draw_advantage(axes: Any, points: Sequence[RoundPoint], marker: dict[str, Any]) -> None:
    rounds = [point.round for point in points]
    axes.axhline(0, color=_SOFT, linewidth=1, linestyle=(0, (4, 2)))
    for point in points:
        if point.interval is not None:
            axes.plot([point.round, point.round], point.interval, color=_LINE, linewidth=1)
    axes.plot(rounds, [point.advantage for point in points], color=_LINE, linewidth=1.6, **marker)
    axes.set_ylabel("advantage (dB)")
    axes.margins(y=0.1)
