"""Measurements of a run: ``summary.json`` of all of it, and a line of ``metrics.jsonl`` for every round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import JsonValue

from fedpriv.federation.answer import Answer
from fedpriv.util.config import Record

Counts = Mapping[str, Sequence[Sequence[int]]]
"""``[correct, total]`` test images of every client by moment: ``after_training``, ``after_broadcast``, and both with
``_NAME`` for every further way to predict."""


class DefenseFacts(Record):
    """A defense of a run as it was when the run was trained."""

    name: str  # registry name
    options: Mapping[str, JsonValue]  # all of them
    label: str  # the name with the options that are not the usual ones
    source: str  # as of :class:`fedpriv.federation.defense.Defense`
    guarantee: str
    answers: tuple[Answer, ...]
    unanswered: str
    server_view: Literal["each", "sum"]


class RoundAccuracy(Record):
    """Accuracy in one round, in [0, 1]: over all test images, and with every client counting the same."""

    pooled: float
    mean_over_clients: float


class ReachedAccuracy(Record):
    """Accuracy over the rounds of a run, in [0, 1]. A best round is chosen on the test images, so it flatters."""

    pooled: float  # over all test images, after the last round and at its best
    best: float
    best_round: int
    mean_over_clients: float  # after the last round
    best_mean_over_clients: float  # the mean over clients at its best
    best_mean_round: int
    clients: tuple[tuple[int, int], ...] = ()  # ``(correct, total)`` test images of each, after the last round


class Traffic(Record):
    """Traffic of all clients over a round or a run."""

    upload_scalars: int
    broadcast_scalars: int
    upload_bytes: int
    broadcast_bytes: int


class Communication(Record):
    """Traffic by the field's habit, without labels, ids and counts, and with everything counted."""

    paper: Traffic
    full: Traffic


class RoundLine(Record):
    """A line of ``metrics.jsonl``: a round, as a function of the configuration alone."""

    round: int  # from 1
    participants: tuple[int, ...]  # clients that trained
    accuracy: Mapping[str, RoundAccuracy]  # of all clients, by moment; empty in a round that was not evaluated
    clients: Mapping[str, tuple[tuple[int, int], ...]]  # ``(correct, total)`` of every client, likewise
    communication: Communication  # of the round


class RunSummary(Record):
    """``summary.json``: the results of a finished run."""

    format: Literal[4] = 4  # of the file
    method: str  # of the configuration
    dataset: str
    rounds: int
    accuracy: Mapping[str, ReachedAccuracy]  # by moment
    communication: Communication  # of all rounds
    privacy: tuple[Mapping[str, JsonValue], ...]  # guarantees over the whole run, one for each defense that has any
    defenses: tuple[DefenseFacts, ...]  # in the order in which they are applied
    unsampled: tuple[int, ...] = ()  # clients that no round sampled, scored with received or first weights
    seconds: float  # wall-clock time of all rounds
    seed: int
    engine: str = "local"  # what ran the clients
    images: str = ""  # in words, how images were brought to one shape; empty where all are as stored


def unsampled_words(clients: Sequence[int], total: int) -> str:
    """Return one sentence on clients that no round sampled, of so many.

    >>> unsampled_words([3], 10)
    '1 of 10 clients (3) were sampled in no round and count with received or first weights, never trained'
    """
    numbers = ", ".join(map(str, clients[:8])) + (", ..." if len(clients) > 8 else "")
    who = f"{len(clients)} of {total} clients ({numbers}) were sampled in no round"
    return f"{who} and count with received or first weights, never trained"
