"""Rows for spreadsheets: one an attack, with the numbers of ``metrics.json`` but for the per-target lists; one a point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedpriv.pages.alike import Verdicts
from fedpriv.pages.baselines import Baselines, gain_over_local
from fedpriv.pages.card import card_words
from fedpriv.pages.columns import RESULTS
from fedpriv.pages.frontier import MOMENTS, Frontier, Point, run_figures
from fedpriv.pages.upload_size import upload_size
from fedpriv.scoring.convergence import convergence
from fedpriv.scoring.floors import SHUFFLED
from fedpriv.scoring.ranking import budget_value, in_order, reach_label, stage_name
from fedpriv.scoring.records import Comparison, ThreatModel, Verdict
from fedpriv.scoring.storage import AttackRecord, scored
from fedpriv.scoring.verdict import words

_MEASURES = ("psnr_db", "psnr_of_mean_mse_db", "mse_255", "ssim", "lpips", "identification_top1", "class_accuracy")


def frontier_rows(frontiers: Sequence[Frontier]) -> list[dict[str, object]]:
    """Return a row for each point of the frontiers: verdict, what is reached by each measure, accuracies and sizes."""
    return [
        {"frontier": number, "knowledge": _card(frontier.card)} | _point_row(point, best=best)
        for number, frontier in enumerate(frontiers, start=1)
        for point, best in zip(frontier.points, frontier.best, strict=True)
    ]


def _point_row(point: Point, *, best: bool) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(point, name) for name in ("method", "target", "defense")}
    for name, effect in point.effects.items():
        row |= {name: effect.value, f"{name}_low": effect.low, f"{name}_high": effect.high}
        row |= {f"{name}_attack": effect.attack, f"{name}_found": effect.found}
    return row | {
        "upload": point.label,
        "seeds": ";".join(str(seed) for seed in point.seeds),
        "verdict_kind": point.kind,
        "dominated": not best,
        "accuracy_after_training": point.trained.mean,
        "accuracy_after_broadcast": None if point.received is None else point.received.mean,
        **_gains(point.gains),
        "upload_scalars_per_client_round": point.scalars.mean,
        "upload_bytes_per_client_round": point.bytes.mean,
        "adapted_attack_not_run": point.unadapted,
        "under_other_cards": point.elsewhere,
    }


def _gains(comparisons: Mapping[str, Comparison | None]) -> dict[str, object]:
    row: dict[str, object] = {}
    for moment, item in comparisons.items():
        name, (low, high) = f"gain_over_local_{moment}", (item and item.ci95) or (None, None)
        row |= {name: item and item.mean, f"{name}_low": low, f"{name}_high": high}
    return row


def _card(card: ThreatModel) -> str:
    return ";".join(f"{key}={value}" for key, value in card_words(card).items())


def csv_rows(
    attack_records: Sequence[AttackRecord], verdicts: Verdicts, alone: Baselines | None = None
) -> list[dict[str, object]]:
    """Return the rows of ``results.csv`` by column, in its order; what was not measured is missing.

    Args:
        attack_records: scored attacks; the strongest of each knowledge card comes first.
        verdicts: as :func:`fedpriv.pages.alike.judge_results` makes them of the whole page.
        alone: accuracies of clients that exchange nothing.

    Raises:
        UserError: when an attack was not scored.
    """
    rows = [_csv_row(attack, verdicts[attack.directory,], alone or {}) for attack in in_order(attack_records, scored)]
    return [{item.name: row[item.name] for item in RESULTS if item.name in row} for row in rows]


def _csv_row(attack: AttackRecord, verdict: Verdict, alone: Baselines) -> dict[str, object]:
    record, about = scored(attack), attack.about
    metrics, gain, cost = record.metrics, record.advantage_db, record.cost
    reached, gained = metrics.psnr_db.ci95 or (None, None), gain.ci95 or (None, None)
    (trained, received, _), size, search = run_figures(about), upload_size(about), convergence(record)
    shuffled = record.image_floors.get(SHUFFLED)
    return {
        **{
            key: getattr(record, key)
            for key in ("target", "attack", "method", "dataset", "n_targets", "n_clients", "n_diverged")
        },
        **{key: metrics.measured[key].mean for key in _MEASURES if key in metrics.measured},
        **{key: getattr(cost, key) for key in ("seconds", "iterations", "evaluations", "rows", "device")},
        "directory": attack.directory.name,
        "knowledge": _card(record.knowledge),
        "psnr_db_low": reached[0],
        "psnr_db_high": reached[1],
        "psnr_db_median": metrics.psnr_db.median,
        "identification_chance": metrics.identification_top1.chance,
        "best_floor": gain.best_floor,
        "best_floor_psnr_db": record.image_floors[gain.best_floor].psnr_db,
        "advantage_db": gain.mean,
        "advantage_db_low": gained[0],
        "advantage_db_high": gained[1],
        "share_3db": gain.share_3db,
        "shuffled_psnr_db": None if shuffled is None else shuffled.psnr_db,
        "control_passes": record.control.passes,
        "seed": record.seed,
        "run_seed": None if about.run is None else about.run.seed,
        "defense": about.defense,
        "method_label": None if about.labels is None else about.labels.method,
        "defense_label": None if about.labels is None else about.labels.defense,
        "accuracy_after_training": trained,
        "accuracy_after_broadcast": received,
        **_gains({moment: gain_over_local([about], moment, alone) for moment in MOMENTS}),
        "upload_scalars_per_client_round": None if size is None else size.scalars,
        "upload_bytes_per_client_round": None if size is None else size.bytes,
        "stage": stage_name(record),
        "reach": reach_label(record),
        "round": max(row.round for row in record.targets),
        "budget": budget_value(record),
        "converged_share": search.converged,
        "specific_share": search.specific,
        "objective_median": search.objective,
        "verdict_kind": verdict.kind,
        "verdict_reasons": ";".join(reason.name for reason in verdict.reasons),
        "verdict": words(verdict),
    }
