"""A run to go on with has everything of the rounds that it has done; files of lines that check may still lack some.

Lines that the list of a folder does not know yet are what a crash left, and are dropped. Where that list itself lost a
line, lines of rounds that are done would go with them; this finds such a gap.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedpriv.federation.run_directory import RunDirectory
from fedpriv.util.errors import UserError
from fedpriv.wire.ledger import Count, count


def refuse_gaps(run: RunDirectory, last_round: int) -> None:
    """Check that a run has the lines and stored messages of its rounds up to the last that is done.

    Args:
        run: its lines beyond ``last_round`` are cut off already.
        last_round: of the newest checkpoint, or 0.

    Raises:
        UserError: naming the file that lacks some.
    """
    expected = list(range(1, last_round + 1))
    for name in ("metrics", "timings"):
        path = run.path / f"{name}.jsonl"
        found = [row["round"] for row in run.lines(name)] if expected or path.is_file() else []
        if found != expected:
            raise _gap(path, f"a line for each of {last_round} rounds is expected, got {len(found)}")
    if not expected:
        return
    told: dict[str, Count] = {"paper": Count(), "full": Count()}
    for line in run.rounds():
        for kind in told:
            one = getattr(line.communication, kind)
            told[kind] += Count(**one.model_dump())
    if count(run.ledger()) != told:
        raise _gap(run.path / "ledger.jsonl", "its messages do not add up to the communication in metrics.jsonl")
    for listing, folders in (("captures", ("uploads", "broadcasts")), ("truth/files", ("truth",))):
        path = run.path / f"{listing}.jsonl"
        listed = {row["file"] for row in run.lines(listing)} if path.is_file() else set()
        stored = {name for folder in folders for name in _stored(run.path, run.path / folder, last_round)}
        if not stored <= listed:
            raise _gap(path, f"does not list {min(stored - listed)}, which is there")


def _stored(home: Path, folder: Path, last_round: int) -> Iterable[str]:
    """Return the stored messages of rounds that are done, from the run's folder."""
    for path in folder.rglob("*.safetensors") if folder.is_dir() else ():
        own = path.relative_to(folder).parts[0].removesuffix(".safetensors").removeprefix("round-")
        if path.is_file() and own.isdecimal() and int(own) <= last_round:
            yield path.relative_to(home).as_posix()


def _gap(path: Path, why: str) -> UserError:
    return UserError(f"{path}: {why}; train the run again")
