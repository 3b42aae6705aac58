"""One line an attack, for spreadsheets: the numbers of ``metrics.json`` without the per-target lists."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from fedpriv.pages.alike import Verdicts
from fedpriv.pages.card import card_words
from fedpriv.pages.frontier import run_figures
from fedpriv.pages.upload_size import upload_size
from fedpriv.scoring.convergence import convergence
from fedpriv.scoring.floors import PERMUTED
from fedpriv.scoring.ranking import budget_value, in_order, stage_name
from fedpriv.scoring.records import Verdict
from fedpriv.scoring.storage import AttackRecord, scored
from fedpriv.scoring.verdict import words

_MEASURES = ("psnr_db", "psnr_of_mean_mse_db", "mse_255", "ssim", "lpips", "identification_top1", "class_accuracy")
_CSV = (
    "directory",
    "target",
    "attack",
    "stage",
    "round",
    "budget",
    "method",
    "defense",
    "method_label",
    "defense_label",
    "dataset",
    "knowledge",
    "n_targets",
    "n_clients",
    "psnr_db",
    "psnr_db_low",
    "psnr_db_high",
    "psnr_db_median",
    "psnr_of_mean_mse_db",
    "mse_255",
    "ssim",
    "lpips",
    "identification_top1",
    "identification_chance",
    "class_accuracy",
    "best_floor",
    "best_floor_psnr_db",
    "advantage_db",
    "advantage_db_low",
    "advantage_db_high",
    "share_3db",
    "permuted_psnr_db",
    "control_passes",
    "converged_share",
    "objective_median",
    "n_diverged",
    "seconds",
    "iterations",
    "rows",
    "device",
    "seed",
    "run_seed",
    "accuracy_after_training",
    "upload_scalars_per_client_round",
    "upload_bytes_per_client_round",
    "verdict_kind",
    "verdict_reasons",
    "verdict",
)


def csv_text(found: Sequence[AttackRecord], verdicts: Verdicts) -> str:
    """Return the table with a header line; strongest attack of each knowledge card first; empty cells were not measured.

    Args:
        found: scored attacks.
        verdicts: as :func:`fedpriv.pages.alike.judge_results` makes them of the whole page.

    Raises:
        UserError: when an attack was not scored.
    """
    buffer = io.StringIO()
    table = csv.DictWriter(buffer, _CSV, lineterminator="\n")
    table.writeheader()
    table.writerows(csv_rows(found, verdicts))
    return buffer.getvalue()


def csv_rows(found: Sequence[AttackRecord], verdicts: Verdicts) -> list[dict[str, object]]:
    """Return the rows of the table by column, in its order; what was not measured is missing.

    Raises:
        UserError: when an attack was not scored.
    """
    rows = [_csv_row(attack, verdicts[attack.directory,]) for attack in in_order(found, scored)]
    return [{column: row[column] for column in _CSV if column in row} for row in rows]


def _csv_row(attack: AttackRecord, verdict: Verdict) -> dict[str, object]:
    record, about = scored(attack), attack.about
    metrics, gain, cost = record.metrics, record.advantage_db, record.cost
    reached, gained = metrics.psnr_db.ci95 or (None, None), gain.ci95 or (None, None)
    trained, size, search = run_figures(about)[0], upload_size(about), convergence(record)
    permuted = record.image_floors.get(PERMUTED)
    return {
        **{
            key: getattr(record, key)
            for key in ("target", "attack", "method", "dataset", "n_targets", "n_clients", "n_diverged")
        },
        **{key: metrics.measured[key].mean for key in _MEASURES if key in metrics.measured},
        **{key: getattr(cost, key) for key in ("seconds", "iterations", "rows", "device")},
        "directory": attack.directory.name,
        "knowledge": ";".join(f"{key}={value}" for key, value in card_words(record.knowledge).items()),
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
        "permuted_psnr_db": None if permuted is None else permuted.psnr_db,
        "control_passes": record.control.passes,
        "seed": record.seed,
        "run_seed": None if about.run is None else about.run.seed,
        "defense": about.defense,
        "method_label": None if about.labels is None else about.labels.method,
        "defense_label": None if about.labels is None else about.labels.defense,
        "accuracy_after_training": trained,
        "upload_scalars_per_client_round": None if size is None else size.scalars,
        "upload_bytes_per_client_round": None if size is None else size.bytes,
        "stage": stage_name(record),
        "round": max(row.round for row in record.targets),
        "budget": budget_value(record),
        "converged_share": search.share,
        "objective_median": search.objective,
        "verdict_kind": verdict.kind,
        "verdict_reasons": ";".join(reason.name for reason in verdict.reasons),
        "verdict": words(verdict),
    }
