"""States as files: safetensors, one a client or server."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedpriv.federation.method import State
from fedpriv.util.errors import UserError
from fedpriv.util.files import checked_tensors


def save_state(path: Path, state: State) -> None:
    """Write a state into a folder that is being made."""
    save_file({name: value.detach().cpu().contiguous() for name, value in state.items()}, path)


def load_state(path: Path) -> State:
    """Read a state back.

    Raises:
        UserError: where it is missing or damaged.
    """
    try:
        return dict(load_file(checked_tensors(path)))
    except FileNotFoundError as error:
        raise UserError(f"{path}: missing; the checkpoint is incomplete") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: damaged checkpoint ({error})") from error
