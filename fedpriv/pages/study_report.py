"""The report on a study: a page over the folder that ``fedpriv audit`` makes, with what did not come to its end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedpriv.federation.run_directory import RunDirectory
from fedpriv.pages.baselines import baselines
from fedpriv.pages.guarantees import Guarantee, guarantee
from fedpriv.pages.labels import labelled
from fedpriv.pages.left_out import LeftOut, readable
from fedpriv.pages.report import Others, StudyFacts, UnfinishedCell, load_scored, write_results
from fedpriv.pages.study_files import CELLS, STUDY, Cell, read_cells, read_study
from fedpriv.pages.study_settings import study_settings
from fedpriv.scoring.records import InferenceResult, Labels
from fedpriv.scoring.storage import AttackRecord, holds_scores, load_scores
from fedpriv.util.errors import UserError


def is_study(folder: Path) -> bool:
    """True for a folder that holds a study, or what is left of one. Its files may be damaged."""
    return (folder / CELLS).is_file() or ((folder / STUDY).is_file() and (folder / "runs").is_dir())


@dataclass(frozen=True)
class StudyResults:
    """All that a page takes from a study.

    Attributes:
        attacks: results of attacks that return images, by their folders.
        scores: results of inferences.
        runs: finished runs.
        facts: the study's own.
        left_out: finished runs that cannot be read. Results that cannot be are lost cells of the facts.
    """

    attacks: Mapping[Path, AttackRecord]
    scores: Mapping[Path, InferenceResult]
    runs: tuple[Path, ...]
    facts: StudyFacts
    left_out: tuple[LeftOut, ...]


def write_study_report(folder: Path, out: Path | None = None) -> None:
    """Write the report on a study.

    Args:
        folder: the study, as ``docs/audit.md`` describes it.
        out: where to; None for the study's own folder.

    Raises:
        UserError: when a file of the study is missing or damaged.
    """
    results = read_results(folder)
    write_results(
        list(results.attacks.values()),
        results.scores,
        folder if out is None else out,
        study=results.facts,
        alone=baselines(results.runs),
        others=Others(results.left_out),
    )


def _finished_runs(folder: Path, cells: Sequence[Cell]) -> tuple[tuple[Path, ...], tuple[LeftOut, ...]]:
    """Return the runs of a study that came to their end, and those of them that cannot be read."""
    ended = [
        folder / cell.run for cell in cells if cell.status == "done" or (folder / cell.run / "summary.json").is_file()
    ]
    runs, damaged = readable(dict.fromkeys(ended), _check_end)
    return tuple(sorted(runs)), tuple(damaged)


def _check_end(folder: Path) -> None:
    run = RunDirectory.open(folder)
    run.require_complete()
    _ = run.summary


def read_results(folder: Path) -> StudyResults:
    """Return the results of a study; what cannot be read is left out, and told.

    Raises:
        UserError: when a file of the study itself is missing or damaged.
    """
    study, cells = read_study(folder), read_cells(folder)
    if not cells:
        raise UserError(f"{folder / CELLS}: holds no cell; repeat the command of the study")
    done = [(cell, place) for cell in cells for place in _results(folder, cell)]
    places = dict.fromkeys(place for _, place in done)
    scores, not_scores = readable([positions for positions in places if holds_scores(positions)], load_scores)
    attacks, no_attacks = readable([position for position in places if not holds_scores(position)], load_scored)
    reasons = {Path(not_score.folder): not_score.why for not_score in (*not_scores, *no_attacks)}
    lost = {
        cell.cell: f"{index}: no result, though it was made: {reasons[index]}"
        for cell, index in done
        if index in reasons
    }
    runs, damaged = _finished_runs(folder, cells)
    facts = StudyFacts(
        cells=len(cells),
        failed=tuple(
            _unfinished(cell, lost.get(cell.cell)) for cell in cells if cell.status != "done" or cell.cell in lost
        ),
        privacy=_privacy(folder, cells, runs),
        settings=(study_settings(study),),
        commands=(study.command,) if study.command else (),
        labels={place.resolve(): _labels(cell) for cell, place in done},
        trained_only=not any(cell.attacks for cell in cells),
    )
    return StudyResults(attacks, scores, runs, facts, damaged)


def together(studies: Mapping[Path, StudyFacts]) -> StudyFacts | None:
    """Return the additions of several studies to one page, cells named by their study; None without any.

    Args:
        studies: facts by the folder of the study.
    """
    if len(studies) < 2:
        return next(iter(studies.values()), None)
    every = list(studies.values())
    return StudyFacts(
        cells=sum(facts.cells for facts in every),
        failed=tuple(
            replace(cell, cell=f"{folder}: {cell.cell}") for folder, facts in studies.items() for cell in facts.failed
        ),
        privacy=tuple(
            replace(item, told=f"{folder}: {item.told}") for folder, facts in studies.items() for item in facts.privacy
        ),
        settings=tuple(
            replace(setting, title=str(folder)) for folder, facts in studies.items() for setting in facts.settings
        ),
        commands=tuple(dict.fromkeys(command for facts in every for command in facts.commands)),
        labels={name: called for facts in reversed(every) for name, called in facts.labels.items()},
    )


def _labels(cell: Cell) -> Labels:
    return Labels(
        method=cell.method_label or cell.method,
        defense=cell.defense_label or "none",
        method_title=cell.method_title or "",
        defense_title=cell.defense_title or "",
    )


def _method(cell: Cell) -> str:
    called = _labels(cell)
    return labelled(called.method, called.method_title, cell.method)


def _defense(cell: Cell) -> str:
    called = _labels(cell)
    name = " + ".join(choice.label or choice.name for choice in cell.defenses or ())
    return labelled(called.defense, called.defense_title, name or called.defense)


def _results(folder: Path, cell: Cell) -> list[Path]:
    return [folder / entry.path for entry in cell.attacks if entry.status == "done"]


def _unfinished(cell: Cell, lost: str | None) -> UnfinishedCell:
    group = [f"{entry.attack}: {entry.error}" for entry in cell.attacks if entry.error]
    return UnfinishedCell(
        cell=cell.cell,
        method=_method(cell),
        defense=_defense(cell),
        target=cell.target or "–",
        seed=cell.seed,
        status="lost" if cell.status == "done" else cell.status,
        why=cell.error or "; ".join(group) or lost or "not reached",
    )


def _privacy(folder: Path, cells: Sequence[Cell], runs: Collection[Path]) -> tuple[Guarantee, ...]:
    """Return the accounts of the runs' defenses; equal ones once."""
    results: dict[Guarantee, None] = {}
    for cell in cells:
        if folder / cell.run in runs:
            name, run = f"{_method(cell)} + {_defense(cell)}", RunDirectory(folder / cell.run)
            results |= dict.fromkeys(guarantee(name, record) for record in run.summary.privacy)
    return tuple(results)
