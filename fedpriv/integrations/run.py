"""The recorded run: a folder of messages that crossed another framework's federation; and whose data is whose.

``recorded.json`` names format and framework; ``rounds/round-0001.jsonl`` has one line a message, in the order in which they
were seen, and names its arrays in ``broadcasts/`` and ``uploads/``, files numbered by that line (equal broadcasts are one);
``notes.jsonl`` has what was unusual. Arrays keep their names, shapes and types. Which part of the data a client holds is
written where the client runs, by audits only, and never sent: ``fedpriv-truth/node-4711/partition.json``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedpriv.uploads.payload import check_names, check_plain
from fedpriv.util import files
from fedpriv.util.config import Record, first_fault
from fedpriv.util.errors import UserError, shown
from fedpriv.util.files import append_lines, mark, read_json, read_lines, tensor_file, write_bytes, write_json
from fedpriv.util.foreign import entries, inside, json_value

KIND: Final = "recorded"
FORMAT: Final = 2
HEADER: Final = "fedpriv-recorded"
TRAIN: Final = "train"  # the phase whose answers are uploads, unless the user says otherwise

Scalar = bool | int | float | str
Partition = int | str
Tensors = Mapping[str, Mapping[str, Tensor]]  # name of a set -> name of an array -> the array

R = TypeVar("R", bound=Record)


class Seen(Record):
    """One message as it was seen: a broadcast to some clients, or the answer of one."""

    round: int = Field(ge=0)  # of the federation, as the framework counts it
    phase: str  # that was asked for: ``train``, ``evaluate``, ...
    direction: Literal["down", "up"]
    clients: tuple[str, ...]  # receivers of a broadcast, or the one sender, as the framework names them
    file: Annotated[str, AfterValidator(inside)] = ""  # of its arrays, relative to the run; empty where it had none
    sets: dict[str, int] = Field(default_factory=dict)  # name of a set -> number of arrays
    facts: dict[str, Scalar] = Field(default_factory=dict)  # numbers and texts that came with it
    error: str = ""  # text of an answer that is an error


class Note(Record):
    """Something unusual that was seen, or that ended the recording: one line about a round and a client, if any."""

    code: Literal["unreadable", "twice", "error", "silent", "told", "stopped"]
    told: str
    round: int | None = None
    client: str = ""


@dataclass(frozen=True)
class RecordedRun:
    """A recorded run on disk."""

    path: Path
    framework: str  # that made the federation, with its version
    named_by_data: bool = False  # clients' names are those of their data (sites): no truth is needed to find it

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
        files.check_present(path)
        values: Any = read_json(path / "recorded.json")
        values = values if isinstance(values, dict) else {}
        framework, named = values.get("framework"), values.get("named_by_data")
        if values.get("format") != FORMAT or not isinstance(framework, str) or not isinstance(named, bool):
            raise UserError(
                f"{path / 'recorded.json'}: format {shown(values.get('format'))}, but this version reads format {FORMAT}, "
                "as a recorder writes it; record the run again"
            )
        return cls(path, framework, named)

    def rounds(self) -> tuple[int, ...]:
        """Return the rounds of which anything was recorded, in order."""
        names = [path.stem.removeprefix("round-") for path in (self.path / "rounds").glob("round-*.jsonl")]
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
        return _read_sets(path)

    def store(self, seen: Seen, content: bytes, number: int) -> Seen:
        """Write the arrays of a message, whose line is the ``number``-th of its round; return the line with their file."""
        folder = "broadcasts" if seen.direction == "down" else "uploads"
        name = f"{folder}/round-{seen.round:04d}/{number:04d}.safetensors"
        write_bytes(self.path / name, content)
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


def sets_bytes(sets: Tensors) -> bytes:
    """Return the file of sets of arrays; equal sets give equal bytes."""
    header = {"format": FORMAT, "sets": [[name, list(arrays)] for name, arrays in sets.items()]}
    numbered = enumerate(sets.values())
    blocks = {f"{position}/{key}": value for position, arrays in numbered for key, value in arrays.items()}
    return bytes(save(blocks, metadata={HEADER: json.dumps(header, sort_keys=True)}))


def _read_sets(path: Path) -> dict[str, dict[str, Tensor]]:
    """Read sets of arrays in the order in which they were sent."""
    try:
        with safe_open(tensor_file(path), framework="pt") as file:
            header: Any = json_value((file.metadata() or {}).get(HEADER, "{}"))
            if header["format"] != FORMAT:
                raise ValueError(f"format {shown(header['format'])}")
            blocks = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
        numbered = enumerate(header["sets"])
        named = {name: {key: blocks.pop(f"{index}/{key}") for key in keys} for index, (name, keys) in numbered}
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: not a message that a recorder wrote, in format {FORMAT} ({error})") from error
    if blocks:
        raise UserError(f"{path}: unexpected array {min(blocks)!r}; its header does not name it")
    for name, arrays in named.items():
        check_names(f"{path}: set {shown(name)}", [name, *arrays])
        for key, value in arrays.items():
            check_plain(f"{path}: {key}", value)
    return named


def default_folder() -> Path:
    """Return the folder that clients write into, and that an attack looks in where no other is named."""
    return Path(os.environ.get("FEDPRIV_TRUTH") or "fedpriv-truth").absolute()


def write_partition(folder: Path, client: str, partition: Partition) -> None:
    """Write down which part of the data a client holds, unless that stands there already."""
    path = folder / f"node-{client}"
    file = path / "partition.json"
    if not file.is_file():
        mark(path, "truth")
        write_json(file, {"format": 1, "client": client, "partition": partition})
    elif (before := _read(file)[1]) != partition:
        raise UserError(
            f"{file}: says partition {shown(before)}, but this run of client {client} has {shown(partition)}"
        )


def read_partitions(folder: Path) -> dict[str, Partition]:
    """Return client -> part of the data, of every client that wrote into a folder; nothing where there is no folder."""
    if not folder.exists():
        return {}
    paths = [position / "partition.json" for position in entries(folder) if position.name.startswith("node-")]
    return dict(_read(path) for path in paths if path.is_file())


def _read(file: Path) -> tuple[str, Partition]:
    values: Any = read_json(file)
    client, partition = (values.get("client"), values.get("partition")) if isinstance(values, dict) else (None, None)
    if not isinstance(client, str) or not isinstance(partition, (int, str)) or values.get("format") != 1:
        raise UserError(f"{file}: not what a client of fedpriv writes: expected its client and partition")
    return client, partition
