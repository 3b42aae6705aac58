"""The recorded run: a folder of messages that crossed another framework's federation.

::

    recorded.json                            format, framework
    rounds/round-0001.jsonl                  one line a message, in the order in which they were seen
    broadcasts/round-0001/0001.safetensors   a broadcast that some clients got; equal ones are one file
    uploads/round-0001/0002.safetensors      one client's answer
    notes.jsonl                              what was unusual, one line each

Files are numbered by the line of the round that names them. Arrays keep their names, shapes and types. Nothing of a
client's data is here: the truth is written on the clients' side (:mod:`fedpriv.integrations.partitions`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

from pydantic import Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedpriv.util import files
from fedpriv.util.config import Record, first_fault
from fedpriv.util.errors import UserError, shown
from fedpriv.util.files import append_lines, checked_tensors, read_json, read_lines, write_bytes, write_json
from fedpriv.util.foreign import json_value
from fedpriv.wire.payload import check_names, check_plain

KIND: Final = "recorded"
FORMAT: Final = 1
HEADER: Final = "fedpriv-recorded"
TRAIN: Final = "train"
"""The phase whose answers are uploads, unless the user says otherwise."""

Scalar = bool | int | float | str
R = TypeVar("R", bound=Record)


class Seen(Record):
    """One message as it was seen: a broadcast to some clients, or the answer of one.

    Attributes:
        round: of the federation, as the framework counts it.
        phase: what was asked for: ``train``, ``evaluate``, ...
        direction: ``down`` or ``up``.
        clients: receivers of a broadcast, or the one sender; named as the framework names them.
        file: of its arrays, relative to the run; empty where it had none.
        sha256: of the arrays with their names, types and shapes; empty where it had none.
        sets: name of a set -> number of arrays.
        facts: numbers and texts that came with it.
        error: the answer was an error, with this text; empty otherwise.
    """

    round: int = Field(ge=0)
    phase: str
    direction: Literal["down", "up"]
    clients: tuple[str, ...]
    file: str = ""
    sha256: str = ""
    sets: dict[str, int] = Field(default_factory=dict)
    facts: dict[str, Scalar] = Field(default_factory=dict)
    error: str = ""


class Note(Record):
    """Something unusual that was seen, or that ended the recording: one line about a round and a client, if any.

    ``code`` is ``type``, ``not-finite``, ``unreadable``, ``twice``, ``error``, ``silent``, ``again``, ``told`` or
    ``stopped``.
    """

    code: str
    told: str
    round: int | None = None
    client: str = ""


@dataclass(frozen=True)
class RecordedRun:
    """A recorded run on disk.

    Attributes:
        path: its folder.
        framework: that made the federation, with its version.
        named_by_data: clients' names are those of their data (sites), so no truth file is needed to find it.
    """

    path: Path
    framework: str
    named_by_data: bool = False

    @classmethod
    def make(cls, path: Path, framework: str, *, named_by_data: bool) -> RecordedRun:
        """Write what a fresh recorded run begins with; the folder is marked and locked already."""
        write_json(path / "recorded.json", {"format": FORMAT, "framework": framework, "named_by_data": named_by_data})
        return cls(path, framework, named_by_data)

    @classmethod
    def open(cls, path: Path) -> RecordedRun:
        """Open a recorded run."""
        if not is_recorded(path):
            raise UserError(f"{path}: not a recorded run (recorded.json is missing)")
        position = path / "recorded.json"
        values = read_json(position)
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            format_ = values.get("format") if isinstance(values, dict) else values
            raise UserError(
                f"{position}: format {shown(format_)}, but this version reads format {FORMAT}; record the run again"
            )
        framework, named = values.get("framework"), values.get("named_by_data")
        if not isinstance(framework, str) or not isinstance(named, bool):
            raise UserError(f"{position}: expected the texts that a recorder wrote; record the run again")
        return cls(path, framework, named)

    def rounds(self) -> tuple[int, ...]:
        """Return the rounds of which anything was recorded, in order."""
        folder = self.path / "rounds"
        names = [entry.stem.removeprefix("round-") for entry in folder.iterdir()] if folder.is_dir() else []
        return tuple(sorted(int(name) for name in names if name.isdecimal()))

    def messages(self, round_: int) -> tuple[Seen, ...]:
        """Return the messages of a round, in the order in which they were seen."""
        return _lines(Seen, self._round_path(round_))

    def notes(self) -> tuple[Note, ...]:
        """Return everything unusual that was seen."""
        return _lines(Note, self.path / "notes.jsonl")

    def arrays(self, seen: Seen) -> dict[str, dict[str, Tensor]]:
        """Return the sets of arrays of a message; none where it had none."""
        if not seen.file:
            return {}
        path = self.path / seen.file
        if not path.is_file():
            raise UserError(f"{path}: missing, though {self._round_path(seen.round)} lists it")
        return read_sets(path)

    def store(self, seen: Seen, sets: Mapping[str, Mapping[str, Tensor]], number: int) -> Seen:
        """Write the arrays of a message, whose line is the ``number``-th of its round; return the line with their file."""
        if not any(sets.values()):
            return seen
        folder = "broadcasts" if seen.direction == "down" else "uploads"
        name = f"{folder}/round-{seen.round:04d}/{number:04d}.safetensors"
        write_sets(self.path / name, sets, {"round": seen.round, "phase": seen.phase, "direction": seen.direction})
        return seen.model_copy(update={"file": name})

    def add(self, line: Seen | Note) -> None:
        """Write the line of a message whose arrays, if it had any, are on disk; or a note."""
        path = self.path / "notes.jsonl" if isinstance(line, Note) else self._round_path(line.round)
        append_lines({path: [line.model_dump(mode="json")]})

    def _round_path(self, round_: int) -> Path:
        return self.path / "rounds" / f"round-{round_:04d}.jsonl"


def is_recorded(path: Path) -> bool:
    """True for a folder that a recorder made."""
    return (path / "recorded.json").is_file() and files.identity(path) is not None


def _lines(target: type[R], path: Path) -> tuple[R, ...]:
    records = []
    for number, row in enumerate(read_lines(path), start=1):
        try:
            records.append(target.model_validate(row))
        except ValidationError as error:
            raise UserError(f"{path}:{number}: {first_fault(error)}") from error
    return tuple(records)


# ---------------------------------------------------------------- files of sets


def write_sets(path: Path, sets: Mapping[str, Mapping[str, Tensor]], about: Mapping[str, str | int]) -> None:
    """Write sets of arrays as one file, whole or not at all."""
    header = {**about, "format": FORMAT, "sets": [[name, list(arrays)] for name, arrays in sets.items()]}
    numbered = enumerate(sets.values())
    blocks = {f"{position}/{key}": value for position, arrays in numbered for key, value in arrays.items()}
    write_bytes(path, save(blocks, metadata={HEADER: json.dumps(header, sort_keys=True)}))


def read_sets(path: Path) -> dict[str, dict[str, Tensor]]:
    """Read sets of arrays in the order in which they were sent."""
    try:
        with safe_open(checked_tensors(path), framework="pt") as file:
            header = json_value((file.metadata() or {}).get(HEADER, "{}"))
            blocks = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: not readable as safetensors ({error})") from error
    sets = header.get("sets") if isinstance(header, dict) and header.get("format") == FORMAT else None
    if not isinstance(sets, list) or not all(
        isinstance(item, list) and len(item) == 2 and isinstance(item[1], list) for item in sets
    ):
        raise UserError(f"{path}: not a message that a recorder wrote; expected format {FORMAT} in its header")
    check_names(str(path), [name for name, _ in sets])
    read = {}
    for index, (name, keys) in enumerate(sets):
        check_names(f"{path}: set {name!r}", keys)
        missing = [key for key in keys if f"{index}/{key}" not in blocks]
        if missing:
            raise UserError(f"{path}: array {missing[0]!r} of set {name!r} is missing")
        read[name] = {key: check_plain(f"{path}: {key}", blocks.pop(f"{index}/{key}")) for key in keys}
    if blocks:
        raise UserError(f"{path}: unexpected array {min(blocks)!r}; its header does not name it")
    return read
