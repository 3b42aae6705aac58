"""The folder ``truth`` of a run directory: what clients did in the rounds whose messages are stored.

::

    truth/files.jsonl                            every file
    truth/round-0007/client-003.safetensors      phase-0.images, phase-0.sizes, ..., mixture

Nothing that attacks reads it; :mod:`fedpriv.evidence.traces` does, for scorers and for what a knowledge card grants.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedpriv.federation.run_directory import RunDirectory
from fedpriv.federation.trace import LocalTrace
from fedpriv.util.errors import UserError
from fedpriv.util.files import checked_tensors

LINES = "truth/files"
"""The list of the files, which a resumed run cuts back with its other lines."""


def trace_path(run: RunDirectory, round_: int, client: int) -> Path:
    """Return the file of a client's trace of a round."""
    return run.path / "truth" / f"round-{round_:04d}" / f"client-{client:03d}.safetensors"


def trace_blocks(trace: LocalTrace) -> dict[str, Tensor]:
    """Return a trace as tensors on the CPU: ``phase-0.images`` and ``phase-0.sizes``, ..., ``mixture``."""
    held: dict[str, Tensor] = {} if trace.mixture is None else {"mixture": trace.mixture.detach().cpu().contiguous()}
    for number, steps in enumerate(trace.phases):
        images = torch.cat([torch.empty(0, dtype=torch.int64), *(index.cpu() for index in steps)])
        held[f"phase-{number}.images"] = images.to(torch.int32)
        held[f"phase-{number}.sizes"] = torch.tensor([len(index) for index in steps], dtype=torch.int32)
    return held


def trace_of(held: Mapping[str, Tensor]) -> LocalTrace:
    """Return the trace whose tensors these are.

    Raises:
        KeyError: where a phase lacks one.
        RuntimeError: where its sizes do not add up.
    """
    phases = [_steps(held, number) for number in range(sum(name.endswith(".sizes") for name in held))]
    return LocalTrace(tuple(phases), held.get("mixture"))


def trace_bytes(trace: LocalTrace) -> bytes:
    """Return the file of what a client did in a round."""
    return bytes(save(trace_blocks(trace)))


def load_trace(run: RunDirectory, round_: int, client: int) -> LocalTrace:
    """Read back what a client did in a round."""
    path = trace_path(run, round_, client)
    if not path.is_file():
        raise UserError(f"{path}: missing; it says what the client trained on in that round: train the run again")
    try:
        return trace_of(load_file(checked_tensors(path)))
    except (SafetensorError, KeyError, RuntimeError) as error:
        raise UserError(f"{path}: damaged ({error}); train the run again") from error


def _steps(held: Mapping[str, Tensor], number: int) -> tuple[Tensor, ...]:
    images, sizes = held[f"phase-{number}.images"].long(), held[f"phase-{number}.sizes"].tolist()
    return images.split(sizes) if sizes else ()
