"""Messages as files: safetensors with their structure in the header. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedpriv.uploads.kinds import payload_kind
from fedpriv.uploads.payload import Message, Payload
from fedpriv.util.errors import UserError
from fedpriv.util.files import tensor_file
from fedpriv.util.foreign import json_value

FORMAT = "fedpriv-message-1"
HEADER = "fedpriv"


def message_bytes(message: Message, about: Mapping[str, str | int]) -> bytes:
    """Return the file of a message, with ``about`` (round, client, direction, ...) in the header."""
    header = {**about, "format": FORMAT, "kinds": [payload.kind for payload in message]}
    # One entry, because the library writes several in no fixed order and equal messages should be equal files.
    return bytes(save(message_blocks(message), metadata={HEADER: json.dumps(header, sort_keys=True)}))


def message_blocks(message: Message) -> dict[str, Tensor]:
    """Return copies of a message's tensors on the CPU, by the payload's place, field and entry: ``0/state/head.bias``."""
    return {
        f"{position}/{name}": value.detach().cpu().contiguous().clone()
        for position, payload in enumerate(message)
        for name, value in payload.tensors().items()
    }


def message_of(where: str, kinds: Sequence[str], blocks: dict[str, Tensor]) -> Message:
    """Return the message of these kinds whose tensors these are, as :func:`message_blocks` has them; they are emptied."""
    message = tuple(_read_payload(where, position, kind, blocks) for position, kind in enumerate(kinds))
    if blocks:
        raise UserError(f"{where}: unexpected tensor {min(blocks)!r}; the header names only {', '.join(kinds)}")
    return message


def load_message(path: Path) -> tuple[Message, dict[str, Any]]:
    """Read a message and its header."""
    try:
        with safe_open(tensor_file(path), framework="pt") as file:
            text = (file.metadata() or {}).get(HEADER, "{}")
            blocks = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
        header = json_value(text)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: not readable as safetensors ({error})") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        result = header.get("format") if isinstance(header, dict) else header
        raise UserError(f"{path}: header says format {result!r}, expected {FORMAT!r}")
    kinds = header.get("kinds")
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise UserError(f"{path}: header field 'kinds' is missing or no list of names")
    return message_of(str(path), kinds, blocks), header


def _read_payload(where: str, position: int, kind: str, blocks: dict[str, Tensor]) -> Payload:
    values: dict[str, Any] = {}
    try:
        made = payload_kind(kind)
        for spec in fields(made):
            name = f"{position}/{spec.name}"
            if spec.metadata["shape"] == "*":
                entries = [block for block in blocks if block.startswith(name + "/")]
                values[spec.name] = {entry.removeprefix(name + "/"): blocks.pop(entry) for entry in sorted(entries)}
            elif name in blocks:
                values[spec.name] = blocks.pop(name)
            elif not spec.metadata["optional"]:
                raise UserError(f"tensor {name!r} of {kind} is missing")
        payload = made(**values)
        if (wrong := payload.non_finite()) is not None:
            raise UserError(f"{kind}.{wrong} holds NaN or infinity; expected finite numbers")
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    return payload
