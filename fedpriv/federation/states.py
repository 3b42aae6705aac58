"""Flat states of clients and of the server: from modules and to them, on devices, and as files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor, nn

from fedpriv.util.errors import UserError
from fedpriv.util.files import checked_tensors
from fedpriv.wire.payload import Message

State = dict[str, Tensor]
"""Private tensors of a client or of the server, by name. Never uploaded as such."""


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
    """Return copies of a module's learnable parameters: what the reference libraries exchange.

    Buffers (batch-norm statistics) stay with the client.
    """
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def weighted_mean(states: Sequence[Mapping[str, Tensor]], weights: Iterable[float]) -> State:
    """Return sum_k w_k state_k / sum_k w_k, entry by entry.

    Summed in float64, so that the result does not depend on the order of the clients beyond the last float32 digit.
    """
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
            return {name: entry.to(device) for name, entry in value.items()}
        return value if value is None else value.to(device)

    return tuple(
        type(payload)(**{spec.name: move(getattr(payload, spec.name)) for spec in fields(payload)})
        for payload in message
    )


def save_state(path: Path, state: State) -> None:
    """Write a state into a folder that is being made."""
    save_file({name: value.detach().cpu().contiguous() for name, value in state.items()}, path)


def load_state(path: Path) -> State:
    """Read a state back."""
    try:
        return dict(load(checked_tensors(path).read_bytes()))  # the library takes no path that is not UTF-8
    except FileNotFoundError as error:
        raise UserError(f"{path}: missing; the checkpoint is incomplete") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: damaged checkpoint ({error})") from error
