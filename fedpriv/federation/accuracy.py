"""Accuracy of every client each round, and the summary over rounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from fedpriv.datasets.types import Samples
from fedpriv.federation.convergence import overall
from fedpriv.federation.method import ClientSetup, Method, ServerSetup, State
from fedpriv.federation.run_directory import RunConfig, RunDirectory, dataset_title
from fedpriv.federation.seen import Seen
from fedpriv.federation.summary import (
    ClientFailure,
    Communication,
    Counts,
    DefenseFacts,
    ReachedAccuracy,
    RoundAccuracy,
    RoundLine,
    RunSummary,
    Total,
    Traffic,
    Unsampled,
    ValidationAccuracy,
    Work,
)
from fedpriv.federation.unsampled import with_own_statistics
from fedpriv.util.config import plain
from fedpriv.wire.ledger import Count, Entry, count
from fedpriv.wire.payloads import Message

_Pairs = dict[str, Sequence[int]]
"""``[correct, total]`` of one client by the way to predict: the end of a key of ``Counts``."""


def accuracy(clients: Sequence[Sequence[int]], left_out: Collection[int] = ()) -> RoundAccuracy:
    """Return the pooled accuracy and the mean over clients of ``[correct, total]`` pairs, some clients left out."""
    counts = [pair for client, pair in enumerate(clients) if client not in left_out]
    return RoundAccuracy(
        pooled=sum(right for right, _ in counts) / sum(total for _, total in counts),
        mean_over_clients=sum(right / total for right, total in counts) / len(counts),
    )


def is_evaluated(config: RunConfig, round_: int) -> bool:
    """True for a round in which every client's accuracy is taken; in others nobody's is."""
    return round_ % config.evaluate_every == 0 or round_ == config.rounds or round_ in config.keep


def evaluate(
    method: Method,
    clients: Sequence[tuple[ClientSetup, Samples]],
    states: Sequence[State],
    broadcast: Message,
    known: Counts,
    changed: set[int],
    server: tuple[ServerSetup, State, State] | None = None,
    adapted: Collection[int] = (),
) -> Counts:
    """Return ``[correct, total]`` of every client by when it was counted: after training, and after the next broadcast.

    A client whose state did not change keeps its count after training; one for which the broadcast changes nothing
    is not evaluated twice, and images are represented once while its extractor stands. Of the ``server``, given by its
    setup and its states before and after its step, the model is counted on every client's test images, where the method
    says that it has one. The clients in ``adapted`` are scored with batch-norm statistics of their own training images.
    """
    predictors = {"": method.predict} | {
        f"_{name}": predict
        for name, predict in {**method.extra_predictors, **method.further_predictors(clients[0][0].options)}.items()
    }
    of_model = {f"_{name}" for name in method.extra_predictors}
    found: dict[str, list[Sequence[int]]] = {
        f"{when}{suffix}": [] for suffix in predictors for when in ("after_training", "after_broadcast")
    }
    for (own, test), state in zip(clients, states, strict=True):
        setup, k = replace(own, seen=Seen()), own.client

        def counted(state: State, ways: Collection[str], setup: ClientSetup = setup, test: Samples = test) -> _Pairs:
            scored = with_own_statistics(setup, state) if ways and setup.client in adapted else state
            return {way: _correct(predictors[way](setup, scored, test.images), test.labels) for way in ways}

        kept: _Pairs = {way: known[f"after_training{way}"][k] for way in predictors if k not in changed and known}
        before = kept | counted(state, [way for way in predictors if way not in kept])
        updated = method.apply_broadcast(setup, state, broadcast)
        model_stands = all(updated[name] is state[name] for name in updated if name.startswith("model."))
        stands = predictors if updated is state else of_model if model_stands else ()
        after = before | counted(updated, [way for way in predictors if way not in stands])
        for way in predictors:
            found[f"after_training{way}"].append(before[way])
            found[f"after_broadcast{way}"].append(after[way])
    return found if server is None else found | _of_server(method, server, [test for _, test in clients], known)


def _of_server(
    method: Method, server: tuple[ServerSetup, State, State], tests: Sequence[Samples], known: Counts
) -> dict[str, list[Sequence[int]]]:
    """Return the server's own counts on every client's test images; ``known`` are those of before its step, if any."""
    (setup, *states), predict = server, method.server_predict
    if predict is None:
        return {}
    trained, received = "after_training_server_model", "after_broadcast_server_model"

    def counts(state: State) -> list[Sequence[int]]:
        return [_correct(predict(setup, state, test.images), test.labels) for test in tests]

    return {trained: list(known[received]) if received in known else counts(states[0]), received: counts(states[1])}


def _correct(scores: Tensor, labels: Tensor) -> list[int]:
    return [int((scores.argmax(1) == labels).sum()), len(labels)]


def round_line(
    round_: int,
    participants: tuple[int, ...],
    evaluation: Counts,
    wire: Sequence[Entry],
    *,
    left_out: tuple[int, ...],
    validation: Mapping[str, RoundAccuracy],
    failures: tuple[ClientFailure, ...],
) -> RoundLine:
    """Return the line of a round.

    Args:
        round_: from 1.
        participants: clients that trained.
        evaluation: counts of every client, by when they were taken; none of a round that is not evaluated.
        wire: entries of the ledger.
        left_out: clients that count in no accuracy.
        validation: accuracy on validation images, by when it was taken.
        failures: clients that left the round.
    """
    return RoundLine(
        round=round_,
        participants=participants,
        accuracy={when: accuracy(counts, left_out) for when, counts in evaluation.items()},
        clients={when: tuple((right, n) for right, n in counts) for when, counts in evaluation.items()},
        communication=plain(count(wire)),
        left_out=left_out,
        validation=validation,
        failures=failures,
    )


def summarise(
    directory: RunDirectory,
    config: RunConfig,
    work: Work,
    *,
    unsampled: Unsampled | None,
    defenses: tuple[DefenseFacts, ...],
    privacy: Sequence[Mapping[str, Any]],
    images: str = "",
) -> RunSummary:
    """Return the summary of a finished run from its lines.

    Args:
        directory: of the run.
        config: its configuration.
        work: operations of its clients.
        unsampled: its clients that no round sampled.
        defenses: in the order in which they were applied.
        privacy: the guarantees that they account for.
        images: what was done to the data set's images.
    """
    lines, totals = directory.rounds(), count(directory.ledger())
    evaluated = [line for line in lines if line.accuracy]
    return RunSummary(
        method=config.method,
        dataset=dataset_title(config),
        images=images,
        rounds=len(lines),
        accuracy={when: _over_rounds(evaluated, when) for when in lines[-1].accuracy},
        communication=Communication(**{kind: _traffic(total, len(lines)) for kind, total in totals.items()}),
        privacy=plain(privacy),
        defenses=defenses,
        flops=work,
        unsampled=unsampled,
        convergence=overall(directory.convergence()),
        seconds=sum(sum(line["seconds"].values()) for line in directory.lines("timings")),
        seed=config.seed,
        validation=_validated(evaluated),
        engine=config.engine.name,
        failures=sum(len(line.failures) for line in lines),
    )


def _validated(lines: Sequence[RoundLine]) -> dict[str, ValidationAccuracy]:
    """Return the accuracy on validation images over a run's evaluated rounds; nothing where there were none."""
    found = {}
    for when, last in lines[-1].validation.items():
        best = max(lines, key=lambda line: line.validation[when].mean_over_clients)
        found[when] = ValidationAccuracy(
            pooled=last.pooled,
            mean_over_clients=last.mean_over_clients,
            best=best.validation[when].mean_over_clients,
            best_round=best.round,
        )
    return found


def _over_rounds(lines: Sequence[RoundLine], when: str) -> ReachedAccuracy:
    best = max(lines, key=lambda line: line.accuracy[when].pooled)
    best_mean = max(lines, key=lambda line: line.accuracy[when].mean_over_clients)
    last = lines[-1].accuracy[when]
    return ReachedAccuracy(
        final=last.pooled,
        best=best.accuracy[when].pooled,
        best_round=best.round,
        pooled=last.pooled,
        mean_over_clients=last.mean_over_clients,
        best_mean_over_clients=best_mean.accuracy[when].mean_over_clients,
        best_mean_round=best_mean.round,
        clients=tuple(pair for k, pair in enumerate(lines[-1].clients[when]) if k not in lines[-1].left_out),
    )


def _traffic(total: Count, rounds: int) -> Traffic:
    of_a_round = {f"{name}_per_round": value / rounds for name, value in plain(total).items()}
    return Traffic(**of_a_round, total=Total(**plain(total)))
