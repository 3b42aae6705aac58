"""The run directory: what a federation was, did, measured and sent, and where it can go on.

::

    config.json      the run's configuration
    metrics.jsonl    accuracy and communication, one line per round: a function of the configuration alone
    timings.jsonl    seconds, one line per round
    ledger.jsonl     every tensor on the wire
    uploads/round-0007/client-003.safetensors
    broadcasts/round-0007.safetensors        what the clients of that round answered
    truth/           for scorers: the images that clients trained on in those rounds (fedpriv.federation.capture)
    checkpoints/round-0007/                  client-003.safetensors, broadcast.safetensors, server.safetensors
    summary.json     written last: the run is complete

A round appends its lines first and is checkpointed last, so after a kill the lines beyond the newest checkpoint are cut
off and the rounds done again, to the same result.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ValidationError

from fedpriv.datasets.partition import PartitionOptions
from fedpriv.federation.summary import RoundLine, RunSummary
from fedpriv.util import files
from fedpriv.util.config import Record, first_fault, parse, plain
from fedpriv.util.errors import UserError
from fedpriv.util.escape import command_line
from fedpriv.util.folders import telling_name
from fedpriv.util.registry import code_flags

if TYPE_CHECKING:
    from fedpriv.federation.states import State
    from fedpriv.uploads.ledger import Entry
    from fedpriv.uploads.payload import Message

FORMAT = 7
SERVER = "server.safetensors"  # of a checkpoint, written last: it is whole
AUTO_CAPTURE_BYTES = 1 << 20

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class DefenseChoice:
    """A defense by its name in ``fedpriv.defenses.DEFENSES``, with its hyperparameters."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineChoice:
    """The engine that runs the clients of a run. Results do not depend on it."""

    name: Literal["local", "flower"] = "local"  # ``local``, one after another in this process, or ``flower``
    client_timeout: Annotated[float, Gt(0)] = 600.0  # seconds in which a client of a round must answer


@dataclass(frozen=True)
class LocalTraining:
    """A client's local training: plain SGD, as the reference libraries do."""

    learning_rate: Annotated[float, Gt(0)] = 0.01
    batch_size: Annotated[int, Ge(1)] = 10
    epochs: Annotated[int, Ge(1)] = 1  # passes over the local data in a round
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    weight_decay: Annotated[float, Ge(0)] = 0.0  # L2 penalty
    drop_last: bool = False  # leave out the tail batch, as the reference libraries do
    shuffle: bool = True  # draw a new order every epoch; HtFLlib keeps the stored order
    max_steps: Annotated[int, Ge(1)] | None = None  # stop a round after this many steps; None for no limit


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines a run."""

    method: str = "fedre"  # a name of ``fedpriv.methods.METHODS``
    options: Mapping[str, Any] = field(default_factory=dict)  # the method's own options
    dataset: str = "fashion"  # a name of ``fedpriv.datasets.DATASETS``
    data_dir: str | None = None  # where the data set lies, or None for the default place
    per_class: Annotated[int, Ge(1)] | None = None  # keep only the first so many images of each class
    image_size: Annotated[int, Ge(4), Le(4096)] | None = None  # resize images to this side
    partition: PartitionOptions = field(default_factory=PartitionOptions)  # who holds what
    clients: Annotated[int, Ge(1)] = 10  # number of clients K
    participation: Annotated[float, Gt(0), Le(1)] = 1.0  # share of clients in a round, in (0, 1]
    rounds: Annotated[int, Ge(1)] = 20  # number of rounds
    models: str = "small"  # a family or a comma-separated list of models; client k gets entry k mod length
    width: Annotated[int, Ge(1), Le(65_536)] | None = None  # representation width d; None for the family's default
    mapping: Literal["ap", "mp", "fc", "none"] = "ap"  # representation mapping to that width; none: each model's own
    training: LocalTraining = field(default_factory=LocalTraining)  # local training
    public: Annotated[int, Ge(0)] = 0  # images set aside as public data before the rest is divided
    auxiliary: Annotated[float, Ge(0), Lt(1)] = 0.5  # share of every class that no client holds; half is the attacker's
    seed: Annotated[int, Ge(0)] = 0  # of every random draw
    division_seed: Annotated[int, Ge(0)] | None = None  # of who holds which images; None for ``seed``
    capture: Literal["all", "last", "none", "auto"] = (
        "auto"  # rounds whose messages are stored, as ``is_captured`` has it
    )
    checkpoint_every: Annotated[int, Ge(1)] = 1  # rounds between checkpoints
    evaluate_every: Annotated[int, Ge(1)] = 1  # rounds between evaluations; the last is evaluated too
    keep: tuple[int, ...] = ()  # rounds whose checkpoints stay for good, beside the newest
    defenses: tuple[DefenseChoice, ...] = ()  # of uploads, in the order in which clients apply them
    engine: EngineChoice = field(default_factory=EngineChoice)  # what runs the clients


def dataset_title(config: RunConfig) -> str:
    """Return the name of a run's data set; a folder of images goes by its own name."""
    if config.dataset != "folder" or config.data_dir is None:
        return config.dataset
    return "/".join(telling_name(Path(config.data_dir))) or config.dataset


@dataclass(frozen=True)
class Checkpoint:
    """A federation between two rounds, but for its clients' states."""

    round: int  # the last that is done; 0 before the first
    server: State  # the server's state
    broadcast: Message  # to the next round's clients


class RunDirectory:
    """A run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> RunDirectory:
        """Make a new run directory in a folder that is free."""
        files.mark(path, "run")
        files.write_json(path / "config.json", {"format": FORMAT, **plain(config)})
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Open an existing run directory."""
        run = cls(path)
        if not path.is_dir():
            raise UserError(f"{path}: no such run directory; make one with: {command_line('train', '--out', path)}")
        if not (path / "config.json").is_file():
            raise UserError(f"{path}: not a run directory (config.json is missing)")
        files.check_present(path)
        _ = run.config
        return run

    @property
    def config(self) -> RunConfig:
        """The run's configuration."""
        path = self.path / "config.json"
        values = files.read_json(path)
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            result = values.get("format") if isinstance(values, dict) else values
            raise UserError(
                f"{path}: run format {result!r}, but this version reads format {FORMAT}; "
                "use the fedpriv that made it (0.1.0 reads 5), or train the run again"
            )
        return parse(RunConfig, {name: value for name, value in values.items() if name != "format"}, str(path))

    @property
    def complete(self) -> bool:
        """True if every round is done."""
        return (self.path / "summary.json").is_file()

    def require_complete(self) -> None:
        """Check that every round is done."""
        if not self.complete:
            done, rounds = self.newest_checkpoint() or 0, self.config.rounds
            raise UserError(
                f"{self.path}: unfinished run ({done} of {rounds} rounds, no summary.json); "
                f"finish it with: {command_line('train', '--resume', '--out', self.path, *code_flags())}"
            )

    def append(self, lines: Mapping[str, list[dict[str, Any]]]) -> None:
        """Append lines to ``name.jsonl``, by name."""
        files.append_lines({self.path / f"{name}.jsonl": rows for name, rows in lines.items()})

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of ``name.jsonl``."""
        path = self.path / f"{name}.jsonl"
        if self.complete and not path.is_file():
            raise UserError(f"{path}: missing, though the run is complete; train the run again")
        return files.read_lines(path)

    def cut(self, last_round: int) -> None:
        """Remove every line and stored message beyond a round."""
        for name in ("metrics", "timings", "ledger"):
            path = self.path / f"{name}.jsonl"
            if path.is_file():
                kept = [row for row in self.lines(name) if row["round"] <= last_round]
                files.write_text(path, "".join(json.dumps(row) + "\n" for row in kept))
        for folder in ("uploads", "broadcasts", "truth"):
            for path in (self.path / folder).glob("round-*"):
                if int(path.stem.removeprefix("round-")) > last_round:
                    files.remove(path)

    def ledger(self) -> list[Entry]:
        """Return every entry of the ledger."""
        from fedpriv.uploads.ledger import Entry

        try:
            return [Entry(**(row | {"shape": tuple(row["shape"])})) for row in self.lines("ledger")]
        except (TypeError, KeyError) as error:
            raise UserError(f"{self.path / 'ledger.jsonl'}: a line is no ledger entry ({error})") from error

    def rounds(self) -> tuple[RoundLine, ...]:
        """Return accuracy and traffic of every round that is done."""
        path = self.path / "metrics.jsonl"
        return tuple(_checked(RoundLine, line, f"{path}:{n}") for n, line in enumerate(self.lines("metrics"), start=1))

    @property
    def summary(self) -> RunSummary:
        """The run's summary."""
        path = self.path / "summary.json"
        return _checked(RunSummary, files.read_json(path), str(path))

    def finish(self, summary: RunSummary) -> None:
        """Write the summary, which marks the run complete."""
        files.write_json(self.path / "summary.json", summary.model_dump(mode="json"))

    def upload_path(self, round_: int, client: int) -> Path:
        """Return the file of an upload."""
        return self.path / "uploads" / f"round-{round_:04d}" / f"client-{client:03d}.safetensors"

    def broadcast_path(self, round_: int) -> Path:
        """Return the file of a round's broadcast."""
        return self.path / "broadcasts" / f"round-{round_:04d}.safetensors"

    def message(self, path: Path) -> Message:
        """Read a stored message back."""
        from fedpriv.uploads.messages import load_message

        if not path.is_file():
            raise UserError(f"{path}: the run stored no such message; see capture of training")
        return load_message(path)[0]

    def captured_rounds(self) -> dict[int, tuple[int, ...]]:
        """Return round -> clients whose uploads are stored, in order."""
        numbers: dict[int, list[int]] = {}
        for path in sorted((self.path / "uploads").glob("round-*/client-*.safetensors")):
            round_ = int(path.parent.name.removeprefix("round-"))
            numbers.setdefault(round_, []).append(int(path.stem.removeprefix("client-")))
        return {round_: tuple(sorted(clients)) for round_, clients in sorted(numbers.items())}

    def checkpoint_path(self, round_: int) -> Path:
        """Return the folder of a round's checkpoint."""
        return self.path / "checkpoints" / f"round-{round_:04d}"

    def newest_checkpoint(self) -> int | None:
        """Return the last checkpointed round, or None."""
        return max(self.checkpointed_rounds(), default=None)

    def checkpointed_rounds(self) -> tuple[int, ...]:
        """Return the rounds that have a checkpoint."""
        result = (self.path / "checkpoints").glob(f"round-*/{SERVER}")
        return tuple(sorted(int(path.parent.name.removeprefix("round-")) for path in result))

    def state_path(self, round_: int, client: int) -> Path:
        """Return the file of a client's state after a round."""
        return self.checkpoint_path(round_) / f"client-{client:03d}.safetensors"

    def state_paths(self, round_: int) -> list[Path]:
        """Return the files of all clients' states after a round."""
        return [self.state_path(round_, client) for client in range(self.config.clients)]

    def save_checkpoint(self, checkpoint: Checkpoint, states: Sequence[Path], keep: tuple[int, ...]) -> None:
        """Write a checkpoint with copies of the files of all clients' states, then drop older ones but those to keep."""
        from fedpriv.federation.states import save_state
        from fedpriv.uploads.messages import message_bytes

        folder = self.checkpoint_path(checkpoint.round)
        broadcast, server = folder / "broadcast.safetensors", folder / SERVER
        clients = self.state_paths(checkpoint.round)
        files.remove(folder)
        with files.placing([broadcast, *clients, server]) as temporary:
            temporary[broadcast].write_bytes(message_bytes(checkpoint.broadcast, {"round": checkpoint.round + 1}))
            for state, path in zip(states, clients, strict=True):
                shutil.copyfile(files.checked(state), temporary[path])
            save_state(temporary[server], checkpoint.server)
        self.drop_checkpoints(keep)

    def drop_checkpoints(self, keep: tuple[int, ...]) -> None:
        """Remove every checkpoint but the newest and those to keep, whole or what a crash left of it."""
        whole = self.checkpointed_rounds()
        kept = {self.checkpoint_path(round_) for round_ in whole if round_ == whole[-1] or round_ in keep}
        for folder in set((self.path / "checkpoints").glob("round-*")) - kept:
            files.remove(folder / SERVER)
            files.remove(folder)

    def load_checkpoint(self, round_: int) -> Checkpoint:
        """Read a checkpoint back."""
        from fedpriv.federation.states import load_state
        from fedpriv.uploads.messages import load_message

        folder = self.checkpoint_path(round_)
        return Checkpoint(round_, load_state(folder / SERVER), load_message(folder / "broadcast.safetensors")[0])

    def client_state(self, round_: int, client: int) -> State:
        """Read one client's state after a round."""
        from fedpriv.federation.states import load_state

        return load_state(self.state_path(round_, client))


def _checked(kind: type[R], value: object, where: str) -> R:
    try:
        return kind.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise UserError(f"{where}: {first_fault(error)}; train the run again") from error
