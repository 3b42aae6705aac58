"""The round: sample clients, broadcast, local work, upload, server step, evaluate."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fedpriv.federation.capture import capture, is_captured
from fedpriv.federation.convergence import MeasuredStep, measure, overall
from fedpriv.federation.cost import client_operations
from fedpriv.federation.defense import defense_facts
from fedpriv.federation.engine import ClientJob, Engine, RoundJobs
from fedpriv.federation.evaluate import accuracy, evaluate, is_evaluated, unsampled_facts, validate
from fedpriv.federation.method import State
from fedpriv.federation.prepared import Federation, init_rng, protection_plan
from fedpriv.federation.run_directory import Checkpoint, RunDirectory, dataset_title, refuse_gaps
from fedpriv.federation.state_store import StateStore, state_store
from fedpriv.federation.states import message_on, on_device
from fedpriv.federation.summary import (
    ClientFailure,
    Communication,
    ConvergenceLine,
    Counts,
    ReachedAccuracy,
    RoundAccuracy,
    RoundLine,
    RunSummary,
    Total,
    Traffic,
    ValidationAccuracy,
)
from fedpriv.federation.trace import Trace
from fedpriv.util.config import plain
from fedpriv.util.errors import WorkError
from fedpriv.util.seeds import generator
from fedpriv.wire.ledger import Count, Entry, count, entries
from fedpriv.wire.payloads import Message

Report: TypeAlias = Callable[[int, int, str], None]
"""Called with (client steps done, client steps planned, what was just finished)."""


@dataclass(frozen=True)
class _Standing:
    """Where a federation stands between two rounds, but for its clients' states.

    Attributes:
        done: rounds that are done.
        server: the server's state.
        broadcast: what the next round's clients get.
        evaluation: every client's newest accuracy.
        evaluated: the round of that, or 0.
        changed: clients that trained after it.
        untrained: clients that no round has trained, ascending.
    """

    done: int
    server: State
    broadcast: Message
    evaluation: Counts
    evaluated: int
    changed: frozenset[int]
    untrained: tuple[int, ...]


@dataclass(frozen=True)
class _Answers:
    """Answers to the jobs of a round: uploads and notes by client, and the clients that left."""

    uploads: list[tuple[int, Message]] = field(default_factory=list)
    traces: dict[int, Trace] = field(default_factory=dict)
    failures: list[ClientFailure] = field(default_factory=list)

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients that answered, ascending."""
        return tuple(self.traces)


def run(federation: Federation, directory: RunDirectory, engine: Engine, report: Report | None = None) -> RunSummary:
    """Run a federation from wherever its directory stands to the end; return the summary, which is also written there.

    Raises:
        UserError: where training diverged.
        WorkError: where fewer clients of a round answered than the configuration asks for; what is done stays.
    """
    config = federation.config
    standing = _standing(federation, directory)
    with state_store(directory, config.clients, federation.initial_state, federation.server.device) as states:
        for _ in range(standing.done, config.rounds):
            standing = _round(federation, directory, engine, states, standing, report)
    summary = _summary(federation, directory, standing.untrained)
    directory.finish(summary)
    return summary


def _round(
    federation: Federation,
    directory: RunDirectory,
    engine: Engine,
    states: StateStore,
    standing: _Standing,
    report: Report | None,
) -> _Standing:
    """Run the next round, note and store what came of it, and return where the federation stands then."""
    config, method, broadcast, round_ = federation.config, federation.method, standing.broadcast, standing.done + 1
    began = time.perf_counter()
    chosen = federation.participants(round_)
    states.begin(chosen)
    jobs = RoundJobs(round_, chosen, states, broadcast)
    measured_from = list(jobs) if config.convergence and round_ % config.convergence == 0 else []
    answers = _answers(federation, engine, jobs, states, report)
    untrained = tuple(k for k in standing.untrained if k not in answers.clients)
    wire = _wire(federation, round_, broadcast, answers.uploads)
    if is_captured(config, round_, answers.uploads):
        capture(directory, round_, broadcast, answers.uploads, answers.traces)
    trained = time.perf_counter()
    server, next_broadcast = _server_step(federation, round_, standing, answers.uploads)
    served = time.perf_counter()
    ended = _Standing(
        round_,
        server,
        next_broadcast,
        standing.evaluation,
        standing.evaluated,
        standing.changed | {*answers.clients},
        untrained,
    )
    validation: Mapping[str, RoundAccuracy] = {}
    if is_evaluated(config, round_):
        ended = _evaluated(federation, states, standing, ended)
        validation = validate(method, federation.clients, federation.data.validation, states, next_broadcast)
    evaluated = ended.evaluation if ended.evaluated == round_ else {}
    left_out = untrained if config.unsampled == "left_out" else ()
    line = RoundLine(
        round=round_,
        participants=answers.clients,
        accuracy={when: accuracy(counts, left_out) for when, counts in evaluated.items()},
        clients={when: tuple((right, n) for right, n in counts) for when, counts in evaluated.items()},
        communication=plain(count(wire)),
        left_out=left_out,
        validation=validation,
        failures=tuple(answers.failures),
    )
    measured = _measured(federation, measured_from, answers, states, next_broadcast)
    seconds = {"clients": trained - began, "server": served - trained, "evaluate": time.perf_counter() - served}
    directory.append(
        {
            "metrics": [line.model_dump(mode="json")],
            **({} if measured is None else {"convergence": [measured.model_dump(mode="json")]}),
            "ledger": [plain(row) for row in wire],
            "timings": [{"round": round_, "seconds": seconds}],
        }
    )
    if round_ % config.checkpoint_every == 0 or round_ == config.rounds or round_ in config.keep:
        checkpoint = Checkpoint(round_, server, next_broadcast, ended.evaluation)
        directory.save_checkpoint(checkpoint, states, states.files, config.keep)
        states.checkpointed(round_)
    return ended


def _evaluated(federation: Federation, states: StateStore, before: _Standing, ended: _Standing) -> _Standing:
    """Return the standing at the end of a round with every client's accuracy, given that before the round."""
    of_server = {} if before.evaluated == before.done else {"after_broadcast_server_model"}
    evaluation = evaluate(
        federation.method,
        list(zip(federation.clients, federation.tests, strict=True)),
        states,
        ended.broadcast,
        {when: counts for when, counts in ended.evaluation.items() if when not in of_server},
        {*ended.changed},
        (federation.server, before.server, ended.server),
        ended.untrained if federation.config.unsampled == "own_statistics" else (),
    )
    return replace(ended, evaluation=evaluation, evaluated=ended.done, changed=frozenset())


def _answers(
    federation: Federation, engine: Engine, jobs: RoundJobs, states: StateStore, report: Report | None
) -> _Answers:
    """Have a round's jobs run, and take the states that came of them.

    Raises:
        WorkError: where too few clients answered.
    """
    config, found, round_ = federation.config, _Answers(), jobs.round
    steps, done = len(federation.participants(1)), 0
    for done, result in enumerate(engine(federation, jobs), start=1):
        told = f"round {round_}, client {result.client}"
        if isinstance(result, ClientFailure):
            found.failures.append(result)
            told += f" {result.why}"
        else:
            states.change(result.client, result.state)
            found.traces[result.client] = result.trace
            if result.upload:
                found.uploads.append((result.client, result.upload))
        if report is not None:
            report((round_ - 1) * steps + done, config.rounds * steps, told)
    least = min(config.engine.min_clients, len(jobs))
    if len(found.clients) < least:
        first = found.failures[0]
        raise WorkError(
            f"round {round_}: {len(found.clients)} of {len(jobs)} clients answered, and at least {least} should; "
            f"client {first.client} {first.why}: {first.told}"
        )
    return found


def _measured(
    federation: Federation,
    jobs: Sequence[ClientJob],
    answers: _Answers,
    states: StateStore,
    next_broadcast: Message,
) -> ConvergenceLine | None:
    """Estimate the constants of a convergence proof from the jobs that were answered, as they were; None where none was."""
    answered = [job for job in jobs if job.client in answers.traces]
    if not answered:
        return None
    measured = [MeasuredStep(federation.clients[one.client], one.state, states[one.client]) for one in answered]
    own = {"seed": federation.config.seed, "round_": answered[0].round}
    return measure(federation.method, measured, answered[0].broadcast, next_broadcast, **own)


def _server_step(
    federation: Federation, round_: int, standing: _Standing, uploads: Sequence[tuple[int, Message]]
) -> tuple[State, Message]:
    """Return the server's state after its step, and the next broadcast."""
    if uploads or not federation.pipeline.defenses:
        rng = generator(federation.config.seed, "server-step", round_)
        return federation.method.server_step(federation.server, standing.server, uploads, rng)
    return standing.server, standing.broadcast  # it has nothing to learn from, and says what it said before


def _wire(
    federation: Federation, round_: int, broadcast: Message, uploads: Sequence[tuple[int, Message]]
) -> list[Entry]:
    """Return the ledger's entries of a round: the broadcast to each of its clients, and what these sent."""
    sent = [row for k in federation.participants(round_) for row in entries(broadcast, round_, k, "broadcast")]
    wire_entries = federation.pipeline.wire_entries
    return sent + [row for k, upload in uploads for row in wire_entries(entries(upload, round_, k, "upload"))]


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
        flops=client_operations(method, federation.clients, federation.server),
        unsampled=unsampled_facts(untrained, federation.clients, config.unsampled),
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


def _standing(federation: Federation, directory: RunDirectory) -> _Standing:
    config, device = federation.config, federation.server.device
    newest = directory.newest_checkpoint()
    directory.cut_lines(newest or 0)
    refuse_gaps(directory, newest or 0)
    untrained = tuple(range(config.clients))
    if newest is None:
        server, broadcast = federation.method.start(federation.server, init_rng(config))
        return _Standing(0, server, broadcast, {}, 0, frozenset(), untrained)
    found = directory.load_checkpoint(newest)
    directory.drop_checkpoints(config.keep)  # where a crash came first
    lines = directory.rounds()
    trained = {k for line in lines for k in line.participants}
    evaluated = max((line.round for line in lines if line.accuracy), default=0)
    return _Standing(
        done=newest,
        server=on_device(device, found.server),
        broadcast=message_on(device, found.broadcast),
        evaluation=found.evaluation,
        evaluated=evaluated,
        changed=frozenset(k for line in lines if line.round > evaluated for k in line.participants),
        untrained=tuple(k for k in untrained if k not in trained),
    )
