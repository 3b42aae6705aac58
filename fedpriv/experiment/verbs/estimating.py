"""The verb ``estimate``: what a study would run, send and take, from a rehearsal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from fedpriv.experiment.named_code import imports_what_is_named
from fedpriv.experiment.saving import Tabular
from fedpriv.experiment.study import estimate as rehearsal
from fedpriv.experiment.study.cells import lay_out
from fedpriv.experiment.study.estimate import Estimate
from fedpriv.experiment.verbs.auditing import Described, StudySettings, read_asked
from fedpriv.util.durations import duration
from fedpriv.util.listener import SILENT, Listener


@dataclass(frozen=True)
class StudyEstimate(Tabular):
    """Expected traffic and time of a study.

    Attributes:
        cells: one a run with its attacks: labels, uploaded scalars and bytes a round, seconds, and what is not known.
        workers: processes at a time.
        notices: what is left out, and why.
    """

    cells: tuple[Estimate, ...]
    workers: int
    notices: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds of all that is known, one process at a time."""
        return sum(part for one in self.cells for part in (one.train, one.attack) if part is not None)

    @property
    def complete(self) -> bool:
        """True where the figures of every cell are known."""
        return all(one.complete for one in self.cells)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why something is not known, each once."""
        return tuple(dict.fromkeys(reason for one in self.cells for reason in one.reasons))

    def in_words(self) -> Sequence[Mapping[str, str]]:
        """Return one row a cell as a person reads it; "?" for what is not known."""
        return [
            {
                "cell": one.cell,
                "target": one.target or "none",
                "attacks": ", ".join(one.attacks),
                "upload scalars / round (paper)": _count(one.upload.get("paper_scalars")),
                "(full)": _count(one.upload.get("full_scalars")),
                "bytes": _count(one.upload.get("full_bytes")),
                "train": "?" if one.train is None else duration(one.train),
                "attack": _sum(one),
            }
            for one in self.cells
        ]

    @property
    def sentences(self) -> tuple[str, ...]:
        """The time of all cells together, how it was estimated, and what is not known."""
        least = "" if self.complete else "at least "
        together = duration(self.seconds / min(self.workers, len(self.cells)))
        per_worker = f", {together} with {self.workers} workers" if self.workers > 1 else ""
        return (
            f"time: {least}about {duration(self.seconds)} with one worker{per_worker}",
            "estimated from a rehearsal: two clients' rounds and a few iterations of each attack, scaled up; nothing ran",
            *(f"not estimated: {reason}" for reason in self.reasons),
        )

    def __str__(self) -> str:
        rows = [", ".join(f"{name} {value}" for name, value in row.items() if value) for row in self.in_words()]
        return "\n".join([*rows, *self.sentences])

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return one row a cell; seconds that are not known are None."""
        names = ("cell", "method", "defense", "seed", "target", "train", "attack", "complete")
        return [{name: getattr(one, name) for name in names} | dict(one.upload) for one in self.cells]


def _sum(one: Estimate) -> str:
    if one.attack is None:
        return "?"
    return duration(one.attack) if None not in one.attacks.values() else f"at least {duration(one.attack)}"


def _count(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


@imports_what_is_named
def estimate(
    study: Described = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    allow_code: str | Sequence[str] = (),
    listener: Listener = SILENT,
    **settings: Unpack[StudySettings],
) -> StudyEstimate:
    """Rehearse a study: check it whole, and tell what each cell would send and how long it may take. Nothing is kept.

    Args:
        study: as for :func:`fedpriv.audit`.
        out: folder of a study that was begun; with ``resume`` only.
        resume: estimate the study in ``out``.
        allow_code: modules that may be imported although only a file names them (docs/reliability.md); one or several.
        listener: hears of what is rehearsed, and of attacks that are left out.
        settings: as for :func:`fedpriv.audit`; rehearsals take the CPU.

    Raises:
        UserError: naming the key that is wrong.
    """
    described, execution = read_asked(study, out, settings, resume=resume)
    with listener.progress("rehearsal") as report:  # of many seeds even laying out takes long
        cells, notes = lay_out(described, execution)
        notices = tuple(f"left out: {note}" for note in notes)
        for line in notices:
            listener.say(line)
        told: list[str] = []

        def say(what: str) -> None:
            told.append(what)
            report(len(told), 2 * len(cells), what)

        found = rehearsal.estimate(cells, download=execution.download, say=say)
    return StudyEstimate(tuple(found), execution.workers, notices)
