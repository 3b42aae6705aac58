"""The report on a study: a page over the folder that ``fedpriv audit`` makes, with what did not come to its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fedpriv.eval.records import InferenceResult, Labels
from fedpriv.eval.storage import StoredAttack, holds_scores, load_scores
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.reports.labels import labelled
from fedpriv.reports.page import LeftOut, readable
from fedpriv.reports.privacy import Guarantee, guarantee
from fedpriv.reports.report import StudyFacts, UnfinishedCell, load_scored, write_results
from fedpriv.reports.run_records import baselines
from fedpriv.reports.study_files import CELLS, STUDY, Cell, read_cells, read_study
from fedpriv.util.errors import UserError


def is_study(folder: Path) -> bool:
    """True for a folder that holds a study, or what is left of one. Its files may be damaged."""
    return (folder / CELLS).is_file() or ((folder / STUDY).is_file() and (folder / "runs").is_dir())


@dataclass(frozen=True)
class StudyResults:
    """All that a page takes from a study: attacks, inferences, finished runs, its facts, and runs that cannot be read."""

    attacks: Mapping[Path, StoredAttack]
    scores: Mapping[Path, InferenceResult]
    runs: tuple[Path, ...]
    facts: StudyFacts
    left_out: tuple[LeftOut, ...]


def write_study_report(folder: Path) -> None:
    """Write the report on a study into its folder."""
    results = read_results(folder)
    attacks, alone = list(results.attacks.values()), baselines(results.runs)
    write_results(attacks, results.scores, folder, study=results.facts, alone=alone, left_out=results.left_out)


def read_results(folder: Path) -> StudyResults:
    """Return the results of a study; what cannot be read is left out, and named. Its own files have to be whole."""
    study, cells = read_study(folder), read_cells(folder)
    if not cells:
        raise UserError(f"{folder / CELLS}: holds no cell; repeat the command of the study")
    done = [(cell, folder / entry.path) for cell in cells for entry in cell.attacks if entry.status == "done"]
    places = dict.fromkeys(place for _, place in done)
    scores, not_scores = readable([place for place in places if holds_scores(place)], load_scores)
    attacks, no_attacks = readable([place for place in places if not holds_scores(place)], load_scored)
    reasons = {Path(item.folder): item.why for item in (*not_scores, *no_attacks)}
    lost = {
        cell.cell: f"{place}: no result, though it was made: {reasons[place]}"
        for cell, place in done
        if place in reasons
    }
    ended = [folder / c.run for c in cells if c.status == "done" or (folder / c.run / "summary.json").is_file()]
    finished, damaged = readable(dict.fromkeys(ended), _check_end)
    runs = tuple(sorted(finished))
    accounts: dict[Guarantee, None] = {}
    for cell in cells:
        if folder / cell.run in finished:
            name, run = " + ".join(_names(cell)), RunDirectory(folder / cell.run)
            accounts |= dict.fromkeys(guarantee(name, record) for record in run.summary.privacy)
    facts = StudyFacts(
        cells=len(cells),
        failed=tuple(_unfinished(c, lost.get(c.cell)) for c in cells if c.status != "done" or c.cell in lost),
        privacy=tuple(accounts),
        settings=((Path(study.source or "flags").name, json.dumps(study.written, indent=2, ensure_ascii=False)),),
        commands=(study.command,) if study.command else (),
        labels={
            place.resolve(): Labels(method=cell.method_label or "", defense=cell.defense_label or "")
            for cell, place in done
        },
        trained_only=not any(cell.attacks for cell in cells),
    )
    return StudyResults(attacks, scores, runs, facts, tuple(damaged))


def _check_end(folder: Path) -> None:
    run = RunDirectory.open(folder)
    run.require_complete()
    _ = run.summary


def together(studies: Mapping[Path, StudyFacts]) -> StudyFacts | None:
    """Return the additions of several studies, by their folders, to one page, cells named by their study; None without."""
    if len(studies) < 2:
        return next(iter(studies.values()), None)
    every, named = list(studies.values()), studies.items()
    return StudyFacts(
        cells=sum(facts.cells for facts in every),
        failed=tuple(replace(cell, cell=f"{folder}: {cell.cell}") for folder, facts in named for cell in facts.failed),
        privacy=tuple(
            replace(item, words=f"{folder}: {item.words}") for folder, facts in named for item in facts.privacy
        ),
        settings=tuple((str(folder), text) for folder, facts in named for _, text in facts.settings),
        commands=tuple(dict.fromkeys(command for facts in every for command in facts.commands)),
        labels={name: called for facts in reversed(every) for name, called in facts.labels.items()},
    )


def _names(cell: Cell) -> tuple[str, str]:
    called = cell.defense_label or "none"
    chain = " + ".join(choice.label or choice.name for choice in cell.defenses or ()) or called
    return labelled(cell.method_label or "", cell.method), labelled(called, chain)


def _unfinished(cell: Cell, lost: str | None) -> UnfinishedCell:
    group = [f"{entry.attack}: {entry.error}" for entry in cell.attacks if entry.error]
    return UnfinishedCell(
        cell.cell,
        *_names(cell),
        target=cell.target or "–",
        seed=cell.seed,
        status="lost" if cell.status == "done" else cell.status,
        why=cell.error or "; ".join(group) or lost or "not reached",
    )
