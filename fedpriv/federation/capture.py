"""Rounds whose messages a run stores, and apart from them what its clients did: ``truth/round-0007/client-003.safetensors``.

No attack reads the latter; :mod:`fedpriv.sources.run` does, for scorers and for what a threat model grants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedpriv.federation.run_directory import AUTO_CAPTURE_BYTES, RunConfig, RunDirectory
from fedpriv.federation.states import Trace
from fedpriv.uploads.kinds import NETWORKS
from fedpriv.uploads.ledger import entries
from fedpriv.uploads.messages import message_bytes
from fedpriv.uploads.payloads import Message
from fedpriv.util.errors import UserError
from fedpriv.util.files import tensor_file, write_all


def is_captured(config: RunConfig, round_: int, broadcast: Message, uploads: Sequence[tuple[int, Message]]) -> bool:
    """True if a round's messages are stored, by the ``capture`` of its run.

    ``auto`` stores rounds whose uploads are together at most 1 MiB, and the last; the last two where clients go on from
    weights of their own that they upload. ``last`` and ``auto`` store those of ``keep`` too.
    """
    if config.capture in ("all", "none"):
        return config.capture == "all"
    if round_ == config.rounds or round_ in config.keep:
        return True
    # Where no weights are broadcast, what a client trained from is what it uploaded before.
    own = NETWORKS.first(broadcast) is None and any(NETWORKS.first(upload) is not None for _, upload in uploads)
    if config.capture == "auto" and own and round_ == config.rounds - 1:
        return True
    sizes = [row.bytes for k, upload in uploads for row in entries(upload, round_, k, "upload")]
    return config.capture == "auto" and sum(sizes) <= AUTO_CAPTURE_BYTES


def capture(
    directory: RunDirectory,
    round_: int,
    broadcast: Message,
    uploads: Sequence[tuple[int, Message]],
    traces: Mapping[int, Trace],
) -> None:
    """Store a round's broadcast, the uploads that answered it, and apart from these what its clients did."""
    stored = {trace_path(directory, round_, k): bytes(save(trace_blocks(trace))) for k, trace in traces.items()}
    stored[directory.broadcast_path(round_)] = message_bytes(broadcast, {"round": round_, "direction": "broadcast"})
    for client, upload in uploads:
        about: dict[str, str | int] = {"round": round_, "client": client, "direction": "upload"}
        stored[directory.upload_path(round_, client)] = message_bytes(upload, about)
    write_all(stored)


def trace_path(run: RunDirectory, round_: int, client: int) -> Path:
    """Return the file of a client's trace of a round."""
    return run.path / "truth" / f"round-{round_:04d}" / f"client-{client:03d}.safetensors"


def trace_blocks(trace: Trace) -> dict[str, Tensor]:
    """Return a trace as tensors on the CPU: ``images`` and ``sizes`` of the steps, ``mixture``."""
    blocks: dict[str, Tensor] = {} if trace.weights is None else {"mixture": trace.weights.detach().cpu().contiguous()}
    if trace.steps is not None:
        images = torch.cat([torch.empty(0, dtype=torch.int64), *(index.cpu() for index in trace.steps)])
        blocks["images"] = images.to(torch.int32)
        blocks["sizes"] = torch.tensor([len(index) for index in trace.steps], dtype=torch.int32)
    return blocks


def trace_of(blocks: Mapping[str, Tensor]) -> Trace:
    """Return the trace of some tensors; KeyError where one is missing, RuntimeError where sizes do not add up."""
    sizes = blocks["sizes"].tolist() if "sizes" in blocks else None
    steps = None if sizes is None else tuple(blocks["images"].long().split(sizes)) if sizes else ()
    return Trace(steps, blocks.get("mixture"))


def load_trace(run: RunDirectory, round_: int, client: int) -> Trace:
    """Read back what a client did in a round."""
    path = trace_path(run, round_, client)
    if not path.is_file():
        raise UserError(f"{path}: missing; it says what the client trained on in that round: train the run again")
    try:
        return trace_of(load_file(tensor_file(path)))
    except (SafetensorError, KeyError, RuntimeError) as error:
        raise UserError(f"{path}: damaged ({error}); train the run again") from error
