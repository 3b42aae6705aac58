"""Clients' states between rounds, each in a file."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from fedpriv.federation.run_directory import RunDirectory
from fedpriv.federation.states import State, load_state, on_device, save_state
from fedpriv.util.files import PARTIAL


class StateStore(Sequence[State]):
    """The states of all clients; may be used from several threads.

    Files lie in the newest checkpoint, or since a change in a folder that is gone with the process. First states are drawn
    on first use. ``files`` maps clients to the files of their states.
    """

    def __init__(
        self, directory: RunDirectory, clients: int, first: Callable[[int], State], device: torch.device, folder: Path
    ) -> None:
        self.files: Mapping[int, Path] = {}
        self._directory, self._clients, self._first, self._device = directory, clients, first, device
        self._folder, self._lock = folder, threading.RLock()
        newest = directory.newest_checkpoint()
        if newest is not None:
            self.checkpointed(newest)

    def __len__(self) -> int:
        return self._clients

    def __getitem__(self, client: int) -> State:  # type: ignore[override]
        if not 0 <= client < self._clients:
            raise IndexError(client)
        with self._lock:
            if client not in self.files:
                self.change(client, self._first(client))
            return on_device(self._device, load_state(self.files[client]))

    def change(self, client: int, state: State) -> None:
        """Store a client's state."""
        path = self._folder / self._directory.state_path(0, client).name
        with self._lock:
            path.unlink(missing_ok=True)  # tensors that were read from it may still be mapped into memory
            save_state(path, state)
            self.files = {**self.files, client: path}

    def checkpointed(self, round_: int) -> None:
        """Take the states from a checkpoint that holds all of them as they are now."""
        self.files = {client: self._directory.state_path(round_, client) for client in range(self._clients)}
        for path in self._folder.iterdir():
            path.unlink()


@contextmanager
def state_store(
    directory: RunDirectory, clients: int, first: Callable[[int], State], device: torch.device
) -> Iterator[StateStore]:
    """Open the states of a run's clients as its newest checkpoint has them; ``first`` gives those before the first round."""
    with tempfile.TemporaryDirectory(PARTIAL, ".states.", directory.path) as folder:
        yield StateStore(directory, clients, first, device, Path(folder))
