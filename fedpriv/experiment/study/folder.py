"""A study's folder: what the study is, and how far each of its cells has come."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.experiment.result_folders import differences, is_result
from fedpriv.experiment.study.cells import Cell, Execution, cells_of
from fedpriv.experiment.study.grid import Study, parse_study
from fedpriv.pages import study_files
from fedpriv.pages.study_files import CELLS, STUDY, CellAttack, Choice, Spent, StudyFile
from fedpriv.pages.study_files import Cell as Row
from fedpriv.util import folders
from fedpriv.util.config import plain
from fedpriv.util.errors import UserError
from fedpriv.util.escape import command_line
from fedpriv.util.files import write_json, write_text

if TYPE_CHECKING:
    pass

FORMAT = 4
OVER = ("done", "left out")
"""States of an attack that need not be run again."""


def described(study: Study, command: str = "") -> StudyFile:
    """Return a study as ``study.json`` holds it, its grids expanded and every default filled in."""
    kept = _fields(study)
    del kept["card"]["rounds_seen"]
    source = None if study.source == "study" else study.source
    kept |= {"format": FORMAT, "source": source, "command": command, "written": plain(study.written)}
    return StudyFile.model_validate(kept)


def _fields(value: Any) -> Any:
    """Return a dataclass as nested dictionaries, without where it was written, which is not compared."""
    if is_dataclass(value):
        return {spec.name: _fields(getattr(value, spec.name)) for spec in fields(value) if spec.compare}
    if isinstance(value, Mapping):
        return {str(key): _fields(entry) for key, entry in value.items()}
    return [_fields(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def claim(path: Path, study: Study, *, command: str, force: bool) -> bool:
    """Make a study's folder, or take up the one that is there; return whether there was one."""
    wanted = described(study, command)
    with folders.writing(path):
        there = (path / STUDY).is_file()
    if there and not force:
        folders.refuse_unmarked(path)
        changed = differences(read_study(path).asked, wanted.asked)
        if changed:
            raise UserError(
                f"{path}: holds another study ({_named(changed)}); choose another out, or force to replace it"
            )
        return True
    with folders.output(path, "study", force=force):
        write_json(path / STUDY, wanted.model_dump(mode="json", exclude_unset=True))
    return False


def read_study(path: Path) -> StudyFile:
    """Return a folder's study.json, to go on with."""
    if not (path / STUDY).is_file():
        start = command_line("audit", "STUDY.toml", "--out", path)
        raise UserError(f"{path}: no study here ({STUDY} is missing); start one with: {start}")
    study = study_files.read_study(path)
    if study.format != FORMAT:
        raise UserError(
            f"{path / STUDY}: of format {study.format!r}, but this version goes on with format {FORMAT}; use the "
            "fedpriv that began it (0.1.0 reads 3), or run the study again"
        )
    if study.written is None:
        raise UserError(f"{path / STUDY}: field 'written' is missing; run the study again")
    return study


def saved_study(path: Path) -> Study:
    """Return the study that a folder holds, to go on with."""
    return parse_study(read_study(path).written or {}, str(path / STUDY))


# ---------------------------------------------------------------- cells.jsonl


def saved_cells(path: Path, execution: Execution) -> tuple[Cell, ...]:
    """Return the cells of the study that a folder holds; they were checked when its ``cells.jsonl`` was written."""
    rows = study_files.read_list(path)
    targets = {(str(row.method_label), str(row.defense_label)): row.target for row in rows if row.target is not None}
    return cells_of(saved_study(path), targets, execution)


def save_rows(path: Path, rows: Sequence[Row]) -> None:
    """Replace all lines of a study, or of a shard's account, at once."""
    write_text(path / CELLS, "".join(row.model_dump_json() + "\n" for row in rows))


def standing(path: Path, cells: Sequence[Cell], besides: Collection[Path] = ()) -> list[Row]:
    """Return a line for each cell: what is on disk is done, everything else is pending, also what failed before."""
    before = {row.cell: row for row in study_files.read_cells(path, besides)}
    return [_row(path, cell, before.get(cell.name)) for cell in cells]


def _row(path: Path, cell: Cell, before: Row | None) -> Row:
    from fedpriv.defenses import build_defenses
    from fedpriv.federation.defense import defense_facts

    kept = {entry.path: entry for entry in (() if before is None else before.attacks) if entry.status in OVER}
    attacks = tuple(_entry(path, item, kept.get(item.path)) for item in results(cell))
    defenses = [defense_facts(made) for made in build_defenses(cell.defense.choices)]
    done = (path / "runs" / cell.run / "summary.json").is_file() and all(entry.status in OVER for entry in attacks)
    return Row(
        cell=cell.name,
        method=cell.method.name,
        method_label=cell.method.label,
        method_title=cell.method.title,
        method_options=plain(cell.method.options),
        defenses=tuple(Choice(name=facts.name, options=dict(facts.options), label=facts.label) for facts in defenses),
        defense_label=cell.defense.label,
        defense_title=cell.defense.title,
        defense_family=cell.defense.family,
        seed=cell.seed,
        varied=plain(cell.method.varied),
        target=cell.target,
        division=cell.division,
        run=f"runs/{cell.run}",
        attack_folder=f"attacks/{cell.name}",
        attacks=attacks,
        status="done" if done else "pending",
        seconds=Spent() if before is None else before.seconds,
    )


def _entry(path: Path, result: Result, kept: CellAttack | None) -> CellAttack:
    """Return the row of a result by what is on disk, with what is known of it from before."""
    left_out = kept is not None and kept.status == "left out"
    return CellAttack(
        attack=result.attack,
        path=result.path,
        status="done" if is_result(path / result.path) else "left out" if left_out else "pending",
        error=None if kept is None else kept.error,
        seconds=None if kept is None else kept.seconds,
    )


@dataclass(frozen=True)
class Result:
    """One result that a cell will have: its folder from the study's, and the place of the plan that makes it."""

    attack: str
    path: str
    plan: int


def results(cell: Cell) -> list[Result]:
    """Return every result that a cell will have, in order."""
    result: list[Result] = []
    for number, (plan, home) in enumerate(zip(cell.plans, cell.homes, strict=True)):
        for job in plan.jobs():
            result.append(Result(job.name, f"{home}/{job.folder}", number))
        result += [Result(name, f"{home}/{name}", number) for name in plan.inferences]
    return result


def _named(changed: Sequence[str]) -> str:
    return f"{', '.join(changed[:6])} differ{'s' if len(changed) == 1 else ''}"
