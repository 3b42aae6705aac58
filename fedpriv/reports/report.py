"""One page over attacks, inferences and audits, as HTML, Markdown, CSV and SVG. A function of the saved records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from fedpriv.eval.floors import CONTROL, LABELS, SHUFFLED
from fedpriv.eval.reasons import Verdict
from fedpriv.eval.records import InferenceResult, Labels, PrivacyAuditRecord, Provenance
from fedpriv.eval.redaction import NONE, stricter
from fedpriv.eval.storage import AttackRecord, load_attack, load_scores, scored
from fedpriv.eval.verdict import BADGES, TOGETHER, objective_words, words
from fedpriv.reports.charts import WITHOUT_LOCAL, effect_words, frontier_svg, image_source
from fedpriv.reports.entries import WORDS, federations, groups_of, score_sections, sweeps_of
from fedpriv.reports.findings import SIGNS, findings
from fedpriv.reports.frontier import MOMENTS, accuracies, card_cell, frontier_rows, frontiers, gain_cells
from fedpriv.reports.labels import Verdicts, by_folder, card_lines, judge_results, strongest_first, upload_size
from fedpriv.reports.page import LeftOut, columns, environment, table_text, with_script
from fedpriv.reports.privacy import TITLE, Guarantee, audited_claims, defenses
from fedpriv.reports.run_records import Baselines, gain_over_local, gain_words
from fedpriv.util.errors import UserError
from fedpriv.util.files import write_text

P = TypeVar("P", bound=Provenance)

_FILTERS: Mapping[str, Any] = {
    "label": lambda name: LABELS.get(name, name),
    "objective": objective_words,
    "effect": effect_words,
    "gain": gain_words,
}
"""Of templates, beside those of every page."""


@dataclass(frozen=True)
class UnfinishedCell:
    """A cell of a study that has no result, or not all; ``lost`` where results that were made are gone or damaged."""

    cell: str
    method: str
    defense: str
    target: str
    seed: int
    status: str
    why: str


@dataclass(frozen=True)
class StudyFacts:
    """Additions of a study to the results of its attacks.

    ``failed`` are cells that are not done; ``settings`` (title, what was asked for as JSON) of each study; ``labels`` by the
    resolved folder of a result. ``trained_only``: nothing is attacked in it.
    """

    cells: int
    failed: tuple[UnfinishedCell, ...] = ()
    privacy: tuple[Guarantee, ...] = ()
    commands: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    labels: Mapping[Path, Labels] = field(default_factory=dict)
    trained_only: bool = False

    @property
    def done(self) -> int:
        """The number of cells that came to their end."""
        return self.cells - len(self.failed)


def write_report(directories: Sequence[Path], out: Path, inferred: Sequence[Path] = ()) -> None:
    """Write ``report.html``, ``report.md``, tables and pictures on scored attacks and inferences into the folder ``out``.

    Raises:
        UserError: when there are none, or one is damaged or was not scored.
    """
    if not directories and not inferred:
        raise UserError("report: no attack directories; give at least one")
    results = [load_attack(Path(directory)) for directory in directories]
    write_results(results, {Path(folder): load_scores(Path(folder)) for folder in inferred}, out)


def load_scored(directory: Path) -> AttackRecord:
    """Return an attack directory, read and checked.

    Raises:
        UserError: when it is damaged or was not scored.
    """
    attack = load_attack(directory)
    scored(attack)
    return attack


def write_results(
    attacks: Sequence[AttackRecord],
    inferred: Mapping[Path, InferenceResult],
    out: Path,
    *,
    runs: str | None = None,
    study: StudyFacts | None = None,
    alone: Baselines | None = None,
    left_out: Sequence[LeftOut] = (),
    audits: Sequence[PrivacyAuditRecord] = (),
    redact: str = NONE,
) -> None:
    """Write the same of results that are read already.

    Args:
        attacks: that return images, scored.
        inferred: records of inferences by their folders.
        out: folder to write to.
        runs: file name of the page about runs beside this one, or None.
        study: the study that the results are of, or None.
        alone: accuracies of clients that exchange nothing.
        left_out: results that could not be read, which the page names.
        audits: of claims of differential privacy.
        redact: rule by which pictures are kept out of the page; what is stored redacted is shown by the stricter rule.
    """
    called = {} if study is None else study.labels
    results = [_shown(attack, called, redact) for attack in attacks]
    scores = {folder: _labelled(record, folder, called) for folder, record in inferred.items()}
    everything = by_folder(results, scores)
    verdicts = judge_results(everything)
    points, said = frontiers(everything, verdicts, alone), findings(everything, verdicts)
    groups = groups_of(results, verdicts)
    # A study's command makes all of its results, so it stands for what each of them recorded.
    made: list[Provenance] = [*(attack.about for attack in results), *scores.values()]
    commands = [*(study.commands if study else ()), *(m.command for m in made if m.labels is None and m.command)]
    versions = [", ".join(f"{k} {v}" for k, v in scored(attack).versions.items()) for attack in results]
    values: dict[str, Any] = {
        "count": len(results),
        "scoring": len(scores),
        "findings": said,
        "signs": [(sign, state, meaning) for state, (sign, meaning) in SIGNS.items()],
        "badges": BADGES,
        "together": TOGETHER,
        "federations": federations(results, said),
        "groups": groups,
        "frontiers": [
            {"frontier": item, "card": card_lines(item.card), "chart": image_source(frontier_svg([item]))}
            for item in points
            if len(item.points) > 1
        ],
        "sweeps": sweeps_of(groups, said),
        "defenses": defenses(results, audits),
        "audited": audited_claims(audits),
        "scores": score_sections(scores, verdicts),
        "score_words": WORDS,
        "study": study,
        "commands": list(dict.fromkeys(commands)),
        "versions": list(dict.fromkeys(versions)),
        "words": {"control": CONTROL, "shuffled": SHUFFLED, "without_local": WITHOUT_LOCAL},
        "runs": runs,
        "left_out": left_out,
    }
    values["contents"] = _contents(values)
    files = {
        "report.html": with_script("report.html.j2", "report.js", values, _FILTERS),
        "report.md": environment(autoescape=False, filters=_FILTERS).get_template("report.md.j2").render(values),
        "results.csv": table_text("results.csv", csv_rows(results, verdicts, alone)),
    }
    if points:
        files |= {"frontier.svg": frontier_svg(points)}
        files |= {"frontier.csv": table_text("frontier.csv", frontier_rows(points))}
    for file, text in files.items():  # only once all of them could be made
        write_text(out / file, text)


def _labelled(about: P, folder: Path, called: Mapping[Path, Labels]) -> P:
    return about.model_copy(update={"labels": called.get(folder.resolve())})


def _shown(attack: AttackRecord, called: Mapping[Path, Labels], rule: str) -> AttackRecord:
    about = _labelled(attack.about, attack.directory, called)
    return replace(attack, about=about.model_copy(update={"redacted": stricter(about.redacted, rule)}))


def _contents(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the sections that the page has, as (anchor, name)."""
    groups, study = values["groups"], values["study"]
    several = len(groups) > 1
    models = [(f"card-{n}", f"Threat model {n}" if several else "Attacks") for n in range(1, len(groups) + 1)]
    wanted = [
        ("findings", "Findings", values["findings"]),
        ("privacy", TITLE, values["audited"]),
        ("reach", "Reach", values["sweeps"]),
        ("runs", "What was attacked", values["findings"]),
        *((anchor, name, True) for anchor, name in models),
        ("frontier", "Frontier", values["frontiers"]),
        ("defenses", "Defenses", values["defenses"] or (study and study.privacy)),
        *((section["title"].lower(), section["title"], True) for section in values["scores"]),
        ("details", "Each attack", groups),
        ("failed", "What did not finish", study and study.failed),
        ("left-out", "Left out", values["left_out"]),
        ("reproduce", "How to reproduce", True),
        ("terms", "How to read this page", True),
    ]
    return [(anchor, name) for anchor, name, there in wanted if there]


# ---------------------------------------------------------------- results.csv


def csv_rows(
    attack_records: Sequence[AttackRecord], verdicts: Verdicts, alone: Baselines | None = None
) -> list[dict[str, object]]:
    """Return the rows of ``results.csv`` by column, strongest first under each threat model."""
    ranked = [attack for group in strongest_first(attack_records, scored) for attack in group]
    rows = [_csv_row(attack, verdicts[attack.directory,], alone or {}) for attack in ranked]
    return [{name: row[name] for name in columns()["results.csv"] if name in row} for row in rows]


_COPIED = ("target", "attack", "method", "dataset", "n_targets", "n_clients", "n_diverged", "seed")
_MEASURES = ("psnr_db", "psnr_of_mean_mse_db", "mse_255", "ssim", "lpips", "identification_top1", "class_accuracy")
_COST = ("seconds", "iterations", "evaluations", "rows", "device")


def _csv_row(attack: AttackRecord, verdict: Verdict, alone: Baselines) -> dict[str, object]:
    record, about = scored(attack), attack.about
    metrics, gain, floors = record.metrics, record.advantage_db, record.image_floors
    psnr, gained = metrics.psnr_db.ci95 or (None, None), gain.ci95 or (None, None)
    size, (trained, received) = upload_size(about) or (None, None, None), accuracies(about)
    return {
        **{key: getattr(record, key) for key in _COPIED},
        **{key: metrics.measured[key].mean for key in _MEASURES if key in metrics.measured},
        **{key: getattr(record.cost, key) for key in _COST},
        "directory": attack.directory.name,
        "knowledge": card_cell(record.knowledge),
        "psnr_db_low": psnr[0],
        "psnr_db_high": psnr[1],
        "psnr_db_median": metrics.psnr_db.median,
        "identification_chance": metrics.identification_top1.chance,
        "best_floor": gain.best_floor,
        "best_floor_psnr_db": floors[gain.best_floor].psnr_db,
        "advantage_db": gain.mean,
        "advantage_db_low": gained[0],
        "advantage_db_high": gained[1],
        "share_3db": gain.share_3db,
        "shuffled_psnr_db": floors[SHUFFLED].psnr_db if SHUFFLED in floors else None,
        "control_passes": record.control.passes,
        "run_seed": None if about.run is None else about.run.seed,
        "defense": about.defense,
        "method_label": None if about.labels is None else about.labels.method,
        "defense_label": None if about.labels is None else about.labels.defense,
        "accuracy_after_training": trained,
        "accuracy_after_broadcast": received,
        **gain_cells({moment: gain_over_local([about], moment, alone) for moment in MOMENTS}),
        "upload_scalars_per_client_round": size[0],
        "upload_bytes_per_client_round": size[2],
        "stage": record.stage_name,
        "reach": record.reach_label,
        "round": max(row.round for row in record.targets),
        "converged_share": record.converged_share,
        "specific_share": record.specific_share,
        "objective_median": record.objective_median,
        "verdict_kind": verdict.kind,
        "verdict_reasons": ";".join(reason.name for reason in verdict.reasons),
        "verdict": words(verdict),
    }
