"""The report on a study: a page over the folder that ``fedpriv audit`` makes, with what did not come to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpriv.pages.frontier import defense_label
from fedpriv.pages.guarantees import Guarantee, guarantee
from fedpriv.pages.labels import KEY, labelled
from fedpriv.pages.report import StudyFacts, UnfinishedCell, write_report
from fedpriv.pages.study_files import CELLS, STUDY, read_cells, read_study
from fedpriv.pages.study_settings import study_settings
from fedpriv.scoring.score_records import holds_scores
from fedpriv.scoring.storage import is_attack_directory
from fedpriv.util.errors import UserError
from fedpriv.util.files import read_json


def is_study(folder: Path) -> bool:
    """Whether a folder says of itself that it holds a study."""
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
    write_report(attacks, folder if out is None else out, scores, study=facts)


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
    lost = {
        str(cell["cell"]): f"{place}: no result, though it was made" for cell, place in done if not _is_there(place)
    }
    facts = StudyFacts(
        cells=len(cells),
        failed=tuple(
            _unfinished(cell, lost.get(str(cell["cell"])))
            for cell in cells
            if cell["status"] != "done" or str(cell["cell"]) in lost
        ),
        privacy=_privacy(folder, cells),
        settings=(study_settings(study),),
        commands=(study["command"],) if study.get("command") else (),
        labels={place.resolve(): _labels(cell) for cell, place in done},
    )
    images = [place for place in places if is_attack_directory(place)]
    return images, [place for place in places if holds_scores(place)], facts


def together(studies: Mapping[Path, StudyFacts]) -> StudyFacts | None:
    """Return what several studies add to one page, cells named by their study; None without any.

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


def _labels(cell: Mapping[str, Any]) -> dict[str, str]:
    return {
        "method": str(cell.get("method_label") or cell["method"]),
        "defense": str(cell.get("defense_label") or "none"),
        **{key: str(cell[key]) for key in ("method_title", "defense_title") if cell.get(key)},
    }


def _defense(cell: Mapping[str, Any]) -> str:
    label = _labels(cell)["defense"]
    return labelled({KEY: _labels(cell)}, "defense", defense_label(cell) if cell.get("defenses") else label)


def _results(folder: Path, cell: Mapping[str, Any]) -> list[Path]:
    return [folder / entry["path"] for entry in cell["attacks"] if entry.get("status") == "done"]


def _is_there(place: Path) -> bool:
    return is_attack_directory(place) or holds_scores(place)


def _unfinished(cell: Mapping[str, Any], lost: str | None) -> UnfinishedCell:
    own = [f"{entry['attack']}: {entry['error']}" for entry in cell["attacks"] if entry.get("error")]
    return UnfinishedCell(
        cell=str(cell["cell"]),
        method=labelled({KEY: _labels(cell)}, "method", str(cell["method"])),
        defense=_defense(cell),
        target=str(cell["target"]),
        seed=int(cell["seed"]),
        status="lost" if cell["status"] == "done" else str(cell["status"]),
        why=str(cell.get("error") or "; ".join(own) or lost or "not reached"),
    )


def _privacy(folder: Path, cells: Sequence[Mapping[str, Any]]) -> tuple[Guarantee, ...]:
    """Return what is accounted of the runs' defenses; what is the same once."""
    found: dict[Guarantee, None] = {}
    for cell in cells:
        summary = folder / str(cell["run"]) / "summary.json"
        if summary.is_file():
            name = f"{labelled({KEY: _labels(cell)}, 'method', str(cell['method']))} + {_defense(cell)}"
            found |= dict.fromkeys(guarantee(name, record) for record in read_json(summary).get("privacy", ()))
    return tuple(found)
