"""A study from its description to its report: read, carried out in a folder, or gone on with. Prints nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpriv.experiment.saving import Tabular
from fedpriv.experiment.scratch import Scratch
from fedpriv.experiment.study.cells import Cell, Execution, lay_out
from fedpriv.experiment.study.execution import carry_out, outcome
from fedpriv.experiment.study.folder import claim, saved_study, standing
from fedpriv.experiment.study.grid import Study, parse_study
from fedpriv.experiment.study.shards import Shard, at_work, join, merge, others, over, patiently
from fedpriv.pages.study_files import SHARDS, read_cells
from fedpriv.pages.study_files import Cell as Row
from fedpriv.util import files, folders
from fedpriv.util.compute import pick_device, read_numerics
from fedpriv.util.folders import Busy
from fedpriv.util.foreign import toml_file
from fedpriv.util.parallel import SILENT, Listener

__all__ = ["Execution", "StudyResult", "load_study", "run_study", "saved_study"]

STUDY_PAGE = "report.html"
MERGING = 10.0
"""Seconds for which the last shard waits for others that are just letting go of the folder."""


@dataclass(frozen=True)
class StudyResult(Tabular):
    """The outcome of a study.

    Attributes:
        folder: of the study.
        rows: a line a cell, as ``cells.jsonl`` has them.
        report: the page over what is done, or None where nothing is.
        shard: which part of the study was done, as ``1/4``, whose cells alone are in ``rows``; None for all of it.
        pending: cells of the whole study that no shard has brought to an end.
        lifetime: what keeps a temporary folder; None for a folder that stays.
    """

    folder: Path
    rows: tuple[Row, ...]
    report: Path | None
    shard: str | None = None
    pending: int = 0
    lifetime: Scratch | None = field(default=None, repr=False, compare=False)

    @property
    def failed(self) -> tuple[Row, ...]:
        """Cells whose training or some attack failed."""
        return tuple(row for row in self.rows if row.status == "failed")

    @property
    def failures(self) -> tuple[str, ...]:
        """Failed cells in words, a line each: the cell and the error."""
        return tuple(outcome(row) for row in self.failed)

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return one row a result of a cell."""
        names = ("cell", "method_label", "defense_label", "seed", "target")
        return [
            {name: getattr(row, name) for name in names} | entry.model_dump() | dict(row.varied)
            for row in self.rows
            for entry in row.attacks
        ]

    @property
    def results(self) -> tuple[Path, ...]:
        """Folders of the results that came to their end."""
        return tuple(self.folder / entry.path for row in self.rows for entry in row.attacks if entry.status == "done")


def load_study(source: Path | Mapping[str, Any]) -> Study:
    """Read a study from a TOML file or from the mapping that such a file holds, and check all that needs no data."""
    if isinstance(source, Path):
        return parse_study(toml_file(source, expected="a study in TOML, see docs/audit.md"), str(source))
    return parse_study(source)


def run_study(
    study: Study,
    out: Path,
    execution: Execution | None = None,
    *,
    shard: Shard | None = None,
    force: bool = False,
    command: str = "",
    listener: Listener = SILENT,
) -> StudyResult:
    """Train every cell's run, attack it, and report on all; or go on with the same study in its folder.

    Everything is checked before anything runs. A cell that fails is told of in its row, and the others go on.
    """
    execution = execution or Execution()
    read_numerics(study.precision, pick_device(execution.device), compiled=execution.compiled)
    cells, notes = lay_out(study, execution)
    for note in notes:
        listener.say(f"left out: {note}")
    if shard is not None:
        join(out, study, cells, command=command)
        return _run_shard(out, cells, execution, shard, listener)
    claim(out, study, command=command, force=force)
    with folders.held(out):
        files.make(out / "runs")
        if (out / SHARDS).is_dir():
            merge(out, cells)
        rows = standing(out, cells)
        listener.resumable()
        carry_out(out, rows, execution, listener)
        report = _reported(out, rows)
    return StudyResult(out, tuple(rows), report)


def _run_shard(out: Path, cells: Sequence[Cell], execution: Execution, shard: Shard, listener: Listener) -> StudyResult:
    """Work off the cells of one shard, and where that was the last of all, merge the shards and report."""
    mine = shard.own(cells)
    with at_work(out, shard, mine, listener) as account:
        rows = standing(out, mine, others(out, shard))
        listener.resumable()
        carry_out(out, rows, execution, listener, account)
        every = read_cells(out)  # while nobody can merge them
    report = _merged(out, cells, listener) if over(every) else None
    return StudyResult(
        out, tuple(rows), report, shard=str(shard), pending=sum(row.status == "pending" for row in every)
    )


def _merged(out: Path, cells: Sequence[Cell], listener: Listener) -> Path | None:
    """Merge shards that are all over and report on the study; None where another process does."""

    def attempt() -> Path | None:
        with folders.held(out):
            if not (out / SHARDS).is_dir():  # another process was faster
                return None
            return _reported(out, merge(out, cells))

    try:
        return patiently(attempt, MERGING)
    except Busy:  # the last of those that hold it merges
        return None


def _reported(out: Path, rows: Sequence[Row]) -> Path | None:
    """Write the page over the results of a study, or over its runs where nothing is attacked; None where nothing is done."""
    if any(entry.status == "done" for row in rows for entry in row.attacks):
        from fedpriv.pages.study_report import write_study_report

        write_study_report(out)
        return out / STUDY_PAGE
    runs = dict.fromkeys(out / row.run for row in rows if row.status == "done")
    if not runs or any(row.attacks for row in rows):
        return None
    from fedpriv.pages.runs_report import PAGE, write_runs_report

    write_runs_report(list(runs), out)
    return out / PAGE
