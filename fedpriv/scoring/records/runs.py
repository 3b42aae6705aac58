"""The part of a run that pages read: its summary, and a line a round. Runs hold more, which is no business of theirs."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ConfigDict, JsonValue

from fedpriv.scoring.records.base import Record
from fedpriv.scoring.records.made import DefenseFacts


class Part(Record):
    """Fields of a larger object."""

    model_config = ConfigDict(extra="ignore")


class Work(Part):
    """Floating-point operations of a client's local training in a round, mean over clients."""

    mean_per_client_round: float


class RunSummary(Part):
    """``summary.json``.

    Attributes:
        defenses: in the order in which they are applied.
        privacy: guarantees accounted over the whole run, as the defenses state them.
        flops: of local training.
        seconds: wall-clock time of all rounds.
    """

    defenses: tuple[DefenseFacts, ...]
    privacy: tuple[Mapping[str, JsonValue], ...]
    flops: Work
    seconds: float


class RoundTraffic(Part):
    """Traffic of all clients in a round."""

    upload_scalars: int
    broadcast_scalars: int
    upload_bytes: int
    broadcast_bytes: int


class RoundCommunication(Part):
    """Traffic by both ways of counting, as :class:`fedpriv.scoring.records.made.Communication` has them."""

    paper: RoundTraffic
    full: RoundTraffic


class RoundLine(Part):
    """A line of ``metrics.jsonl``.

    Attributes:
        round: from 1.
        clients: ``(correct, total)`` of every client, by when it was counted.
        communication: of the round.
    """

    round: int
    clients: Mapping[str, tuple[tuple[int, int], ...]]
    communication: RoundCommunication
