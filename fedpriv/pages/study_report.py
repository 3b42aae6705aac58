"""The report on a study: a page over the folder that ``fedpriv audit`` makes, with what did not come to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedpriv.federation.run_directory import RunDirectory
from fedpriv.pages.baselines import baselines
from fedpriv.pages.guarantees import Guarantee, guarantee
from fedpriv.pages.labels import labelled
from fedpriv.pages.report import StudyFacts, UnfinishedCell, write_report
from fedpriv.pages.study_files import CELLS, STUDY, Cell, read_cells, read_study
from fedpriv.pages.study_settings import study_settings
from fedpriv.scoring.records import Labels
from fedpriv.scoring.storage import holds_scores, is_attack_directory
from fedpriv.util.errors import UserError


def is_study(folder: Path) -> bool:
    """True for a folder that says of itself that it holds a study."""
    return (folder / STUDY).is_file() and (folder / CELLS).is_file()


def write_study_report(folder: Path, out: Path | None = None) -> None:
    """Write the report on a study.

    Args:
        folder: the study, as ``docs/audit.md`` describes it.
        out: where to; None for the study's own folder.

    Raises:
        UserError: when a file of the study is missing or damaged.
    """
    attacks, scores, facts = read_results(folder)
    write_report(attacks, folder if out is None else out, scores, study=facts, alone=baselines(study_runs(folder)))


def study_runs(folder: Path) -> list[Path]:
    """Return the finished runs of a study."""
    return sorted(file.parent for file in folder.glob("runs/*/summary.json") if (file.parent / "config.json").is_file())


def read_results(folder: Path) -> tuple[list[Path], list[Path], StudyFacts]:
    """Return the attack directories of a study, its folders of membership and property inference, and its facts.

    Raises:
        UserError: when a file of the study is missing or damaged.
    """
    study, cells = read_study(folder), read_cells(folder)
    if not cells:
        raise UserError(f"{folder / CELLS}: holds no cell; repeat the command of the study")
    done = [(cell, place) for cell in cells for place in _results(folder, cell)]
    places = [place for _, place in done]
    lost = {cell.cell: f"{place}: no result, though it was made" for cell, place in done if not _is_there(place)}
    facts = StudyFacts(
        cells=len(cells),
        failed=tuple(
            _unfinished(cell, lost.get(cell.cell)) for cell in cells if cell.status != "done" or cell.cell in lost
        ),
        privacy=_privacy(folder, cells),
        settings=(study_settings(study),),
        commands=(study.command,) if study.command else (),
        labels={place.resolve(): _labels(cell) for cell, place in done},
    )
    images = [place for place in places if is_attack_directory(place)]
    return images, [place for place in places if holds_scores(place)], facts


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
            replace(one, told=f"{folder}: {one.told}") for folder, facts in studies.items() for one in facts.privacy
        ),
        settings=tuple(replace(one, title=str(folder)) for folder, facts in studies.items() for one in facts.settings),
        commands=tuple(dict.fromkeys(command for facts in every for command in facts.commands)),
        labels={place: called for facts in reversed(every) for place, called in facts.labels.items()},
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


def _is_there(place: Path) -> bool:
    return is_attack_directory(place) or holds_scores(place)


def _unfinished(cell: Cell, lost: str | None) -> UnfinishedCell:
    own = [f"{entry.attack}: {entry.error}" for entry in cell.attacks if entry.error]
    return UnfinishedCell(
        cell=cell.cell,
        method=_method(cell),
        defense=_defense(cell),
        target=cell.target or "–",
        seed=cell.seed,
        status="lost" if cell.status == "done" else cell.status,
        why=cell.error or "; ".join(own) or lost or "not reached",
    )


def _privacy(folder: Path, cells: Sequence[Cell]) -> tuple[Guarantee, ...]:
    """Return the accounts of the runs' defenses; equal ones once."""
    found: dict[Guarantee, None] = {}
    for cell in cells:
        run = RunDirectory(folder / cell.run)
        if run.complete:
            name = f"{_method(cell)} + {_defense(cell)}"
            found |= dict.fromkeys(guarantee(name, record) for record in run.summary.privacy)
    return tuple(found)
