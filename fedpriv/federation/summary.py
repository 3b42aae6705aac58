"""Measurements of a run: ``summary.json`` of all of it, and a line of ``metrics.jsonl`` for every round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import JsonValue

from fedpriv.federation.answer import Answer
from fedpriv.util.record import Record

Counts = Mapping[str, Sequence[Sequence[int]]]
"""``[correct, total]`` test images of every client by moment: ``after_training``, ``after_broadcast``, and both with
``_NAME`` for every further way to predict."""

Treatment = Literal["counted", "left_out"]
"""Clients that no round has sampled yet: counted in every accuracy as they are, or left out of it."""


class DefenseFacts(Record):
    """A defense of a run as it was when the run was trained.

    Attributes:
        name: registry name.
        options: all of them.
        label: the name with the options that are not the usual ones.
        source, guarantee, answers, unanswered, server_view: as of :class:`fedpriv.federation.defense.Defense`.
    """

    name: str
    options: Mapping[str, JsonValue]
    label: str
    source: str
    guarantee: str
    answers: tuple[Answer, ...]
    unanswered: str
    server_view: Literal["each", "sum"]


class RoundAccuracy(Record):
    """Accuracy in one round, in [0, 1]: over all test images, and with every client counting the same."""

    pooled: float
    mean_over_clients: float


class ReachedAccuracy(Record):
    """Accuracy over the rounds of a run, in [0, 1]. A best round is chosen on the test images, so it flatters.

    Attributes:
        final, best, best_round: over all test images, after the last round and at its best.
        pooled: the same as ``final``.
        mean_over_clients: after the last round.
        best_mean_over_clients, best_mean_round: the mean over clients at its best.
        clients: ``(correct, total)`` test images of every client that counts, after the last round.
    """

    final: float
    best: float
    best_round: int
    pooled: float
    mean_over_clients: float
    best_mean_over_clients: float
    best_mean_round: int
    clients: tuple[tuple[int, int], ...] = ()


class Total(Record):
    """Traffic of all clients over a round or a run."""

    upload_scalars: int
    broadcast_scalars: int
    upload_bytes: int
    broadcast_bytes: int


class Traffic(Record):
    """Traffic of all clients in a round, mean over rounds, and over the run."""

    upload_scalars_per_round: float
    broadcast_scalars_per_round: float
    upload_bytes_per_round: float
    broadcast_bytes_per_round: float
    total: Total


class RoundCommunication(Record):
    """Traffic of a round by both ways of counting, as :class:`Communication` has them."""

    paper: Total
    full: Total


class Communication(Record):
    """Traffic by the field's habit, without labels, ids and counts, and with everything counted."""

    paper: Traffic
    full: Traffic


class Unsampled(Record):
    """Clients that no round of a run sampled: their numbers, those with batch normalisation, and their treatment."""

    clients: tuple[int, ...]
    batch_norm: tuple[int, ...]
    treatment: Treatment


class ClientFailure(Record):
    """A client that left a round without an answer, its state as before.

    Attributes:
        client: its number.
        why: ``failed``, or ``timed out``.
        told: the reason, in a line.
    """

    client: int
    why: Literal["failed", "timed out"]
    told: str


class RoundLine(Record):
    """A line of ``metrics.jsonl``: a round, as a function of the configuration alone, unless clients failed.

    Attributes:
        round: from 1.
        participants: clients that trained.
        accuracy: of all clients, by moment; empty in a round that was not evaluated.
        clients: ``(correct, total)`` of every client, likewise.
        communication: of the round.
        left_out: clients that count in no accuracy.
        failures: clients that were sampled and left the round.
    """

    round: int
    participants: tuple[int, ...]
    accuracy: Mapping[str, RoundAccuracy]
    clients: Mapping[str, tuple[tuple[int, int], ...]]
    communication: RoundCommunication
    left_out: tuple[int, ...] = ()
    failures: tuple[ClientFailure, ...] = ()


class RunSummary(Record):
    """``summary.json``: the results of a finished run.

    Attributes:
        format: of the file.
        method, dataset, rounds, seed: of the configuration.
        accuracy: by moment.
        communication: of all clients.
        privacy: guarantees over the whole run, one for each defense that has any.
        defenses: in the order in which they are applied.
        unsampled: clients that no round sampled; None where there are none.
        seconds: wall-clock time of all rounds.
        engine: what ran the clients.
        failures: how often a sampled client left its round.
        images: in words, how images were brought to one shape; empty where all are as stored.
    """

    format: Literal[4] = 4
    method: str
    dataset: str
    rounds: int
    accuracy: Mapping[str, ReachedAccuracy]
    communication: Communication
    privacy: tuple[Mapping[str, JsonValue], ...]
    defenses: tuple[DefenseFacts, ...]
    unsampled: Unsampled | None = None
    seconds: float
    seed: int
    engine: str = "local"
    failures: int = 0
    images: str = ""
