"""Clients' states from round to round: in memory some of one round's, all others in files."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import overload

import torch

from fedpriv.federation.method import State
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.federation.states import load_state, on_device, save_state
from fedpriv.util.files import PARTIAL

BYTES_IN_MEMORY = 48 << 20
"""Bytes of states that memory holds: of a round of ten clients with four-layer networks all, of fifty some."""


class StateStore(Sequence[State]):
    """The states of all clients, of which memory holds those that a round changed last, as far as they are small.

    The others lie in the run's newest checkpoint, or, where they changed since, beside it in a folder that is gone with the
    process. First states are drawn when they are first asked for. Several threads may ask and change.
    """

    def __init__(
        self, directory: RunDirectory, clients: int, first: Callable[[int], State], device: torch.device, folder: Path
    ) -> None:
        self._directory, self._clients, self._first, self._device = directory, clients, first, device
        self._folder = folder
        self._lock = threading.RLock()
        self._files: dict[int, Path] = {}
        self._in_memory: dict[int, State] = {}
        self._bytes = 0
        self._unsaved: set[int] = set()
        newest = directory.newest_checkpoint()
        if newest is not None:
            self.checkpointed(newest)

    def __len__(self) -> int:
        return self._clients

    @overload
    def __getitem__(self, client: int) -> State: ...

    @overload
    def __getitem__(self, client: slice) -> Sequence[State]: ...

    def __getitem__(self, client: int | slice) -> State | Sequence[State]:
        """Return a client's state; what is held of it is the same object until it changes."""
        if isinstance(client, slice):
            return [self[k] for k in range(*client.indices(self._clients))]
        if not 0 <= client < self._clients:
            raise IndexError(client)
        with self._lock:
            if client in self._in_memory:
                return self._in_memory[client]
            if client not in self._files:
                state = self._first(client)
                self._files[client] = self._spill(client, state)
                return state
            return on_device(self._device, load_state(self._files[client]))

    @property
    def in_memory(self) -> frozenset[int]:
        """The clients whose states are in memory."""
        return frozenset(self._in_memory)

    @property
    def files(self) -> Mapping[int, Path]:
        """The files of all states that are in one."""
        return {client: path for client, path in self._files.items() if client not in self._unsaved}

    def begin(self, chosen: Collection[int]) -> None:
        """Begin a round: states of clients that are not in it leave memory."""
        for client in [k for k in self._in_memory if k not in chosen]:
            self._let_go(client)

    def change(self, client: int, state: State) -> None:
        """Take a client's state after its part in the round; those that came before leave memory where it holds too much."""
        with self._lock:
            if client in self._in_memory:
                self._bytes -= _size(self._in_memory.pop(client))
            self._in_memory[client] = state
            self._bytes += _size(state)
            self._unsaved.add(client)
            for older in [*self._in_memory]:
                if self._bytes <= BYTES_IN_MEMORY or older == client:
                    break
                self._let_go(older)

    def _let_go(self, client: int) -> None:
        state = self._in_memory.pop(client)
        self._bytes -= _size(state)
        if client in self._unsaved:
            self._files[client] = self._spill(client, state)
            self._unsaved.remove(client)

    def checkpointed(self, round_: int) -> None:
        """Note that a checkpoint holds all states as they are now."""
        self._unsaved.clear()
        self._files = {client: self._directory.state_path(round_, client) for client in range(self._clients)}
        for path in self._folder.iterdir():
            path.unlink()

    def _spill(self, client: int, state: State) -> Path:
        path = self._folder / self._directory.state_path(0, client).name
        path.unlink(missing_ok=True)  # another name of the same file may be a checkpoint's
        save_state(path, state)
        return path


def _size(state: State) -> int:
    return sum(value.nbytes for value in state.values())


@contextmanager
def state_store(
    directory: RunDirectory, clients: int, first: Callable[[int], State], device: torch.device
) -> Iterator[StateStore]:
    """Open the states of a run's clients, as its newest checkpoint has them.

    Args:
        directory: of the run.
        clients: number of clients K.
        first: client -> its state before the first round.
        device: where states are handed out.
    """
    with tempfile.TemporaryDirectory(PARTIAL, ".states.", directory.path) as folder:
        yield StateStore(directory, clients, first, device, Path(folder))
