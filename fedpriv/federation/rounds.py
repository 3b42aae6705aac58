"""The round: sample clients, broadcast, local work, upload, server step, evaluate."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from fedpriv.federation.capture import capture, is_captured
from fedpriv.federation.defense import defense_facts
from fedpriv.federation.engine import Engine, RoundJobs
from fedpriv.federation.evaluate import accuracy, evaluate, is_evaluated, unsampled_facts
from fedpriv.federation.method import Uploads
from fedpriv.federation.prepared import Federation, init_rng, protection_plan
from fedpriv.federation.run_directory import Checkpoint, RunDirectory, dataset_title
from fedpriv.federation.state_store import StateStore, state_store
from fedpriv.federation.states import State, message_on, on_device
from fedpriv.federation.summary import (
    ClientFailure,
    Communication,
    Counts,
    ReachedAccuracy,
    RoundLine,
    RunSummary,
    Total,
    Traffic,
)
from fedpriv.federation.trace import Trace
from fedpriv.util.config import plain
from fedpriv.util.errors import WorkError
from fedpriv.util.seeds import generator
from fedpriv.wire.ledger import Count, count, entries
from fedpriv.wire.payloads import Message

Report: TypeAlias = Callable[[int, int, str], None]
"""Called with (client steps done, client steps planned, what was just finished)."""


@dataclass(frozen=True)
class _Standing:
    """A federation between two rounds, but for its clients' states."""

    done: int  # rounds that are done
    server: State  # the server's state
    broadcast: Message  # to the next round's clients
    evaluation: Counts  # every client's newest accuracy
    evaluated: int  # the round of that, or 0
    changed: frozenset[int]  # clients that trained after it
    untrained: tuple[int, ...]  # clients that no round has trained, ascending


def run(federation: Federation, directory: RunDirectory, engine: Engine, report: Report | None = None) -> RunSummary:
    """Run a federation from wherever its directory stands to the end; return the summary, which is also written there.

    UserError where training diverged; WorkError where too few clients of a round answered. What is done stays.
    """
    config = federation.config
    standing = _standing(federation, directory)
    with state_store(directory, config.clients, federation.initial_state, federation.server.device) as states:
        for round_ in range(standing.done + 1, config.rounds + 1):
            began = time.perf_counter()
            jobs = RoundJobs(round_, federation.participants(round_), states, standing.broadcast)
            uploads, traces, failures = _answers(federation, engine, jobs, states, report)
            trained = time.perf_counter()
            ended = _served(federation, standing, uploads, traces)
            served = time.perf_counter()
            if is_evaluated(config, round_):
                ended = _evaluated(federation, states, standing, ended)
            seconds = {"clients": trained - began, "server": served - trained, "evaluate": time.perf_counter() - served}
            _write(federation, directory, standing.broadcast, ended, uploads, traces, failures, seconds)
            if round_ % config.checkpoint_every == 0 or round_ == config.rounds or round_ in config.keep:
                checkpoint = Checkpoint(round_, ended.server, ended.broadcast, ended.evaluation)
                directory.save_checkpoint(checkpoint, states, states.files, config.keep)
                states.checkpointed(round_)
            standing = ended
    summary = _summary(federation, directory, standing.untrained)
    directory.finish(summary)
    return summary


def _answers(
    federation: Federation, engine: Engine, jobs: RoundJobs, states: StateStore, report: Report | None
) -> tuple[Uploads, dict[int, Trace], list[ClientFailure]]:
    """Have a round's jobs run, take the states that came of them, and return uploads, notes, and the clients that left."""
    config, round_ = federation.config, jobs.round
    uploads: list[tuple[int, Message]] = []
    traces: dict[int, Trace] = {}
    failures: list[ClientFailure] = []
    steps = len(federation.participants(1))
    for done, result in enumerate(engine(federation, jobs), start=1):
        text = f"round {round_}, client {result.client}"
        if isinstance(result, ClientFailure):
            failures.append(result)
            text += f" {result.why}"
        else:
            states.change(result.client, result.state)
            traces[result.client] = result.trace
            if result.upload:
                uploads.append((result.client, result.upload))
        if report is not None:
            report((round_ - 1) * steps + done, config.rounds * steps, text)
    least = min(config.engine.min_clients, len(jobs))
    if len(traces) < least:
        first = failures[0]
        raise WorkError(
            f"round {round_}: {len(traces)} of {len(jobs)} clients answered, and at least {least} should; "
            f"client {first.client} {first.why}: {first.told}"
        )
    return uploads, traces, failures


def _served(federation: Federation, before: _Standing, uploads: Uploads, trained: Collection[int]) -> _Standing:
    """Return the standing after the server's step, not evaluated; without uploads the server says what it said before."""
    server, broadcast = before.server, before.broadcast
    if uploads or not federation.pipeline.defenses:
        rng = generator(federation.config.seed, "server-step", before.done + 1)
        server, broadcast = federation.method.server_step(federation.server, server, uploads, rng)
    return replace(
        before,
        done=before.done + 1,
        server=server,
        broadcast=broadcast,
        changed=before.changed | {*trained},
        untrained=tuple(k for k in before.untrained if k not in trained),
    )


def _evaluated(federation: Federation, states: StateStore, before: _Standing, ended: _Standing) -> _Standing:
    """Return the standing at the end of a round with every client's accuracy, given that before the round."""
    of_server = {} if before.evaluated == before.done else {"after_broadcast_server_model"}
    evaluation = evaluate(
        federation.method,
        list(zip(federation.clients, federation.tests, strict=True)),
        states,
        ended.broadcast,
        {when: counts for when, counts in ended.evaluation.items() if when not in of_server},
        ended.changed,
        (federation.server, before.server, ended.server),
    )
    return replace(ended, evaluation=evaluation, evaluated=ended.done, changed=frozenset())


def _write(
    federation: Federation,
    directory: RunDirectory,
    broadcast: Message,
    ended: _Standing,
    uploads: Uploads,
    traces: Mapping[int, Trace],
    failures: Sequence[ClientFailure],
    seconds: Mapping[str, float],
) -> None:
    """Store the messages of a round where that is asked for, and note its lines."""
    config, round_ = federation.config, ended.done
    if is_captured(config, round_, uploads):
        capture(directory, round_, broadcast, uploads, traces)
    wire = [row for k in federation.participants(round_) for row in entries(broadcast, round_, k, "broadcast")]
    for k, upload in uploads:
        wire += federation.pipeline.wire_entries(entries(upload, round_, k, "upload"))
    evaluated = ended.evaluation if ended.evaluated == round_ else {}
    left_out = ended.untrained if config.unsampled == "left_out" else ()
    line = RoundLine(
        round=round_,
        participants=tuple(traces),
        accuracy={when: accuracy(counts, left_out) for when, counts in evaluated.items()},
        clients={when: tuple((right, n) for right, n in counts) for when, counts in evaluated.items()},
        communication=plain(count(wire)),
        left_out=left_out,
        failures=tuple(failures),
    )
    directory.append(
        {
            "metrics": [line.model_dump(mode="json")],
            "ledger": [plain(row) for row in wire],
            "timings": [{"round": round_, "seconds": seconds}],
        }
    )


def _summary(federation: Federation, directory: RunDirectory, untrained: tuple[int, ...]) -> RunSummary:
    """Return the summary of a finished run from its lines."""
    config, method, pipeline = federation.config, federation.method, federation.pipeline
    lines, totals = directory.rounds(), count(directory.ledger())
    evaluated = [line for line in lines if line.accuracy]
    return RunSummary(
        method=config.method,
        dataset=dataset_title(config),
        images=federation.data.dataset.brought,
        rounds=len(lines),
        accuracy={when: _over_rounds(evaluated, when) for when in lines[-1].accuracy},
        communication=Communication(**{kind: _traffic(total, len(lines)) for kind, total in totals.items()}),
        privacy=plain(pipeline.privacy(protection_plan(config, method, federation.clients))),
        defenses=tuple(defense_facts(defense) for defense in pipeline.defenses),
        unsampled=unsampled_facts(untrained, federation.clients, config.unsampled),
        seconds=sum(sum(line["seconds"].values()) for line in directory.lines("timings")),
        seed=config.seed,
        engine=config.engine.name,
        failures=sum(len(line.failures) for line in lines),
    )


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


def _standing(federation: Federation, directory: RunDirectory) -> _Standing:
    config, device = federation.config, federation.server.device
    newest = directory.newest_checkpoint()
    directory.cut_lines(newest or 0)
    untrained = tuple(range(config.clients))
    if newest is None:
        server, broadcast = federation.method.start(federation.server, init_rng(config))
        return _Standing(0, server, broadcast, {}, 0, frozenset(), untrained)
    checkpoint = directory.load_checkpoint(newest)
    directory.drop_checkpoints(config.keep)  # where a crash came first
    lines = directory.rounds()
    trained = {k for line in lines for k in line.participants}
    evaluated = max((line.round for line in lines if line.accuracy), default=0)
    return _Standing(
        done=newest,
        server=on_device(device, checkpoint.server),
        broadcast=message_on(device, checkpoint.broadcast),
        evaluation=checkpoint.evaluation,
        evaluated=evaluated,
        changed=frozenset(k for line in lines if line.round > evaluated for k in line.participants),
        untrained=tuple(k for k in untrained if k not in trained),
    )
