"""Measurements of a run: ``summary.json`` of all of it, and a line of ``metrics.jsonl`` for every round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import JsonValue

from fedpriv.federation.answer import Answer
from fedpriv.util.record import Record

Counts = Mapping[str, Sequence[Sequence[int]]]
"""``[correct, total]`` test images of every client, by when they were counted: ``after_training``, ``after_broadcast``, and
both with ``_NAME`` for every further way to predict."""

Treatment = Literal["counted", "left_out", "own_statistics"]
"""What becomes of clients that no round has sampled yet: counted as they are, left out of every accuracy, or counted with
batch-norm statistics of their own training images (:mod:`fedpriv.federation.evaluate`)."""


class DefenseFacts(Record):
    """A defense of a run, as it was when the run was attacked.

    Attributes:
        name: registry name.
        options: all of them.
        label: the name with the options that are not the usual ones.
        source, guarantee: as the defense states them.
        answers: attacks that are adapted to it.
        unanswered: why there are none.
        server_view: what the server gets to see: ``each`` upload, or only their ``sum``.
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
    """Accuracy in one round, in [0, 1].

    Attributes:
        pooled: over all test images.
        mean_over_clients: every client counting the same.
    """

    pooled: float
    mean_over_clients: float


class ReachedAccuracy(Record):
    """Accuracy over the rounds of a run, in [0, 1], by two figures.

    *Pooled* counts every test image of every client once; the *mean over clients* counts every client once. A best round is
    chosen on the test images, so it flatters.

    Attributes:
        final, best, best_round: pooled, after the last round and at its best.
        pooled: the same as ``final``.
        mean_over_clients: after the last round.
        best_mean_over_clients, best_mean_round: the mean over clients at its best.
        clients: ``(correct, total)`` test images of every client that counts, after the last round; empty where not
            recorded.
    """

    final: float
    best: float
    best_round: int
    pooled: float
    mean_over_clients: float
    best_mean_over_clients: float
    best_mean_round: int
    clients: tuple[tuple[int, int], ...] = ()


class ValidationAccuracy(Record):
    """Accuracy on validation images over the rounds of a run, in [0, 1] (:mod:`fedpriv.federation.evaluate`).

    Attributes:
        pooled, mean_over_clients: after the last round, over all pairs of a client and an image of its classes, and every
            client counting the same.
        best, best_round: the mean over clients at its best, and when.
    """

    pooled: float
    mean_over_clients: float
    best: float
    best_round: int


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


class Work(Record):
    """Floating-point operations of clients in a settled round (:mod:`fedpriv.federation.cost`).

    Attributes:
        per_client_round: of all that the method's client step does, forward and backward, one number a client; empty
            where it was not counted.
        mean_per_client_round: their mean.
        local_training_per_client_round: of training the private model by cross-entropy alone, one number a client.
        mean_local_training_per_client_round: their mean.
        prediction_per_image: of classifying one image as the method does, one number a client: forward alone.
        not_counted: why the client step was not counted; empty where it was.
        multiply_add_counts: operations that a multiplication with its addition counts as; papers that count
            multiply-adds have half of every figure.
    """

    per_client_round: tuple[int, ...] = ()
    mean_per_client_round: float | None
    local_training_per_client_round: tuple[int, ...]
    mean_local_training_per_client_round: float
    prediction_per_image: tuple[int, ...] = ()
    not_counted: str = ""
    multiply_add_counts: Literal[2] = 2

    @property
    def ratio_to_local(self) -> float | None:
        """Operations of the method's client step over those of training alone; None where either is unknown."""
        mean, local = self.mean_per_client_round, self.mean_local_training_per_client_round
        return None if mean is None or not local else mean / local


class Unsampled(Record):
    """Clients that no round of a run sampled (:mod:`fedpriv.federation.evaluate`).

    Attributes:
        clients: their numbers.
        batch_norm: those whose models have batch normalisation.
        treatment: ``counted`` as they are, ``left_out`` of every accuracy, or counted with ``own_statistics``.
    """

    clients: tuple[int, ...]
    batch_norm: tuple[int, ...]
    treatment: Treatment


class ClientFailure(Record):
    """A client that was asked in a round and gave no answer that counts: it left the round, its state as it was before.

    Attributes:
        client: its number.
        why: ``failed``, or ``timed out``.
        told: what was said of it, in a line.
    """

    client: int
    why: Literal["failed", "timed out"]
    told: str


class RoundLine(Record):
    """A line of ``metrics.jsonl``: a round, as a function of the configuration alone, unless clients failed.

    Attributes:
        round: from 1.
        participants: clients that trained.
        accuracy: of all clients, by when it was taken; empty in a round that was not evaluated.
        clients: ``(correct, total)`` of every client, likewise.
        communication: of the round.
        validation: on validation images, by when it was taken; empty without any.
        left_out: clients that count in no accuracy, because no round has sampled them yet and the run leaves these out.
        failures: clients that were sampled and left the round.
    """

    round: int
    participants: tuple[int, ...]
    accuracy: Mapping[str, RoundAccuracy]
    clients: Mapping[str, tuple[tuple[int, int], ...]]
    communication: RoundCommunication
    validation: Mapping[str, RoundAccuracy] = {}
    left_out: tuple[int, ...] = ()
    failures: tuple[ClientFailure, ...] = ()


class ClientConvergence(Record):
    """One client's estimates in a measured round, as :mod:`fedpriv.federation.convergence` defines them.

    Attributes:
        client: its number.
        smoothness: a lower bound of L_1; None where local training moved nothing.
        variance: of mini-batch gradients where the round begins, a plug-in for sigma^2.
        gradient: squared norm of the full gradient there.
        trained_divergence, aggregated_divergence: squared distances of the trained classifier to the broadcast one and to
            the server's next one, lower bounds of epsilon^2 and delta^2; None where no classifier is broadcast.
        rate_bound: theorem 1's bound of the learning rate, by these estimates.
    """

    client: int
    smoothness: float | None
    variance: float
    gradient: float
    trained_divergence: float | None
    aggregated_divergence: float | None
    rate_bound: float | None


class ConvergenceLine(Record):
    """A line of ``convergence.jsonl``: the estimates of a round, client by client."""

    round: int
    clients: tuple[ClientConvergence, ...]


class Convergence(Record):
    """The estimates of a run: over its measured rounds and their clients the largest of each, lower bounds of constants.

    Attributes:
        rounds: measured ones.
        gradient: mean of the squared norms of full gradients.
        rate_bound: the smallest.
        smoothness, variance, trained_divergence, aggregated_divergence: the largest.
    """

    rounds: tuple[int, ...]
    smoothness: float | None
    variance: float | None
    gradient: float
    trained_divergence: float | None
    aggregated_divergence: float | None
    rate_bound: float | None


class RunSummary(Record):
    """``summary.json``: what a finished run came to.

    Attributes:
        format: of the file.
        method, dataset, rounds, seed: of the configuration.
        accuracy: by when it was taken: ``after_training``, ``after_broadcast``, and with the name of other predictors.
        communication: of all clients.
        privacy: guarantees accounted over the whole run, one for each defense that has any, as it states them.
        defenses: in the order in which they are applied.
        flops: of clients in a round.
        unsampled: clients that no round sampled; None where there are none.
        convergence: estimates of the constants of a convergence proof; None where no round was measured.
        seconds: wall-clock time of all rounds.
        validation: on validation images, by when it was taken; empty without any.
        engine: what ran the clients.
        failures: how often a sampled client left its round.
        images: in words, what was done to how many images so that all have one shape; empty where all are as stored.
    """

    format: Literal[2] = 2
    method: str
    dataset: str
    rounds: int
    accuracy: Mapping[str, ReachedAccuracy]
    communication: Communication
    privacy: tuple[Mapping[str, JsonValue], ...]
    defenses: tuple[DefenseFacts, ...]
    flops: Work
    unsampled: Unsampled | None = None
    convergence: Convergence | None = None
    seconds: float
    seed: int
    validation: Mapping[str, ValidationAccuracy] = {}
    engine: str = "local"
    failures: int = 0
    images: str = ""
