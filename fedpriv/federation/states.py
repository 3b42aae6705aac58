"""States of clients and of the server, kept as files between rounds; and a client step's private notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from fedpriv.uploads.payload import Message
from fedpriv.util.errors import UserError
from fedpriv.util.files import naming, tensor_file

State = dict[str, Tensor]  # private tensors of a client or of the server, by name. Never uploaded as such
Outcome = tuple[State, Message]  # of a step: the state after it, and the message that it sends


def take(module: nn.Module, prefix: str) -> State:
    """Return copies of a module's parameters and buffers, named ``prefix.name``."""
    return {f"{prefix}.{name}": value.detach().clone() for name, value in module.state_dict().items()}


def put(module: nn.Module, state: Mapping[str, Tensor], prefix: str) -> None:
    """Load what :func:`take` returned. Every parameter and buffer must be there."""
    with torch.no_grad():
        for name, value in module.state_dict().items():
            value.copy_(state[f"{prefix}.{name}"])


def inner(state: Mapping[str, Tensor], prefix: str) -> State:
    """Return the entries under ``prefix.``, with the prefix removed."""
    start = prefix + "."
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}


def outer(state: Mapping[str, Tensor], prefix: str) -> State:
    """Return the entries with ``prefix.`` put before their names."""
    return {f"{prefix}.{name}": value for name, value in state.items()}


def parameters(module: nn.Module) -> State:
    """Return copies of a module's learnable parameters; buffers (batch-norm statistics) stay with the client."""
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def weighted_mean(states: Sequence[Mapping[str, Tensor]], weights: Iterable[float]) -> State:
    """Return sum_k w_k state_k / sum_k w_k, entry by entry, summed in float64."""
    shares = torch.tensor(list(weights), dtype=torch.float64)
    shares = shares / shares.sum()
    return {
        name: torch.stack([state[name].double() * share for state, share in zip(states, shares, strict=True)])
        .sum(0)
        .to(states[0][name].dtype)
        for name in states[0]
    }


def on_device(device: torch.device, state: State) -> State:
    """Return a state on a device."""
    return {name: value.to(device) for name, value in state.items()}


def message_on(device: torch.device, message: Message) -> Message:
    """Return a message on a device."""

    def move(value: Any) -> Any:
        if isinstance(value, Mapping):
            return on_device(device, dict(value))
        return value if value is None else value.to(device)

    return tuple(
        type(payload)(**{spec.name: move(getattr(payload, spec.name)) for spec in fields(payload)})
        for payload in message
    )


def save_state(path: Path, state: State) -> None:
    """Write a state into a folder that is being made."""
    with naming(path):
        path.write_bytes(save({name: value.detach().cpu().contiguous() for name, value in state.items()}))


def load_state(path: Path) -> State:
    """Read a state back."""
    if not path.is_file():
        raise UserError(f"{path}: missing; the checkpoint is incomplete")
    try:
        return dict(load(tensor_file(path).read_bytes()))  # the library takes no path that is not UTF-8
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: damaged checkpoint ({error})") from error


class StateStore(Sequence[State]):
    """The states of all clients, each in a file: in the newest checkpoint, or since a change in a folder of this run.

    First states are drawn on first use.
    """

    def __init__(
        self, files: Sequence[Path], clients: int, first: Callable[[int], State], device: torch.device, folder: Path
    ) -> None:
        self._first, self._device, self._folder, self._clients = first, device, folder, clients
        self._files = dict(enumerate(files))

    def __len__(self) -> int:
        return self._clients

    def __getitem__(self, client: int) -> State:  # type: ignore[override]
        return on_device(self._device, load_state(self.file(client)))

    def file(self, client: int) -> Path:
        """Return the file of a client's state."""
        if not 0 <= client < self._clients:
            raise IndexError(client)
        if client not in self._files:
            self.change(client, self._first(client))
        return self._files[client]

    def change(self, client: int, state: State) -> None:
        """Store a client's state."""
        path = self._folder / f"client-{client:03d}.safetensors"
        path.unlink(missing_ok=True)  # tensors that were read from it may still be mapped into memory
        save_state(path, state)
        self._files[client] = path

    def checkpointed(self, files: Sequence[Path]) -> None:
        """Take the states from a checkpoint that holds all of them as they are now."""
        self._files = dict(enumerate(files))
        for path in self._folder.iterdir():
            path.unlink()


@dataclass(eq=False)
class Trace:
    """A recorder for one client step and for the defenses of its upload: the truth that attacks are scored against.

    ``steps`` are the batches, in order, of the training that made what is uploaded. A random batch may be empty.
    """

    steps: tuple[Tensor, ...] | None = None  # int64 places in the client's training set; None where nothing was noted
    weights: Tensor | None = None  # ``(n,)`` float32, of the training images in an entangled upload; None for no such

    def local_steps(self, batches: Sequence[Tensor]) -> None:
        """Note the batches of local training, one tensor a step, in place of those of training before."""
        self.steps = tuple(batches)

    def mixture(self, weights: Tensor) -> None:
        """Note the weight ``(n,)`` of every training image in an entangled upload."""
        self.weights = weights
