"""Capture: the rounds whose messages a run stores, so that they can be attacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedpriv.federation.run_directory import AUTO_CAPTURE_BYTES, RunConfig, RunDirectory
from fedpriv.federation.trace import Trace
from fedpriv.federation.truth_files import LINES, trace_bytes, trace_path
from fedpriv.wire.ledger import entries
from fedpriv.wire.message_files import message_bytes
from fedpriv.wire.payloads import Message


def is_captured(config: RunConfig, round_: int, uploads: Sequence[tuple[int, Message]]) -> bool:
    """True if a round's messages are stored; see ``capture`` of :class:`fedpriv.federation.run_directory.RunConfig`."""
    if config.capture == "auto":
        sizes = [row.bytes for k, upload in uploads for row in entries(upload, round_, k, "upload")]
        return sum(sizes) <= AUTO_CAPTURE_BYTES or round_ == config.rounds or round_ in config.keep
    if config.capture == "last":
        return round_ == config.rounds or round_ in config.keep
    return config.capture == "all"


def capture(
    directory: RunDirectory,
    round_: int,
    broadcast: Message,
    uploads: Sequence[tuple[int, Message]],
    traces: Mapping[int, Trace],
) -> None:
    """Store a round's broadcast and every upload that it was answered with; and apart, what its clients did."""
    messages = {directory.broadcast_path(round_): message_bytes(broadcast, {"round": round_, "direction": "broadcast"})}
    for client, upload in uploads:
        about: dict[str, str | int] = {"round": round_, "client": client, "direction": "upload"}
        messages[directory.upload_path(round_, client)] = message_bytes(upload, about)
    truth = {trace_path(directory, round_, k): trace_bytes(trace.result()) for k, trace in traces.items()}
    directory.store(round_, {"captures": messages, LINES: truth})
