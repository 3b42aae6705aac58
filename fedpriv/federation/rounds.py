"""The round: sample clients, broadcast, local work, upload, server step, evaluate."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from fedpriv.federation.capture import capture, is_captured
from fedpriv.federation.defense import Sender, defense_facts
from fedpriv.federation.method import Uploads
from fedpriv.federation.prepared import Federation, init_rng, protection_plan
from fedpriv.federation.run_directory import Checkpoint, RunConfig, RunDirectory, dataset_title
from fedpriv.federation.states import State, StateStore, Trace, message_on, on_device
from fedpriv.federation.summary import Counts, ReachedAccuracy, RoundAccuracy, RoundLine, RunSummary
from fedpriv.uploads.ledger import count, entries
from fedpriv.uploads.payload import all_finite
from fedpriv.uploads.payloads import Message
from fedpriv.util.config import plain
from fedpriv.util.errors import UserError
from fedpriv.util.files import PARTIAL
from fedpriv.util.seeds import generator


@dataclass(frozen=True)
class ClientJob:
    """One client's part in one round, to be run."""

    round: int  # from 1
    client: int  # its number
    state: State  # its private state before the round
    broadcast: Message  # the server's message


@dataclass(frozen=True)
class ClientResult:
    """A client's part in a round, done."""

    client: int  # its number
    state: State  # its private state after the round
    upload: Message  # its message behind its defenses; may be empty
    trace: Trace  # its notes, for scorers


Engine = Callable[[Federation, Sequence[ClientJob]], Iterator[ClientResult]]
"""Runs the jobs of a round and yields the result of :func:`client_part` of each, in their order; WorkError where one failed.
Each job is asked for once, since it loads a state."""

Report = Callable[[int, int, str], None]
"""Called with (steps done, steps planned, what goes on): a step is a client's part in a round, the server's, or a client's
evaluation."""


def client_part(federation: Federation, job: ClientJob) -> ClientResult:
    """Run a client's step and the defenses of its upload."""
    setup = replace(federation.clients[job.client], trace=Trace())
    rng = federation.client_rng(job.round, job.client)
    state, upload = federation.method.client_step(setup, job.state, job.broadcast, rng)
    wrong = [f"{payload.kind}.{name}" for payload in upload if (name := payload.non_finite()) is not None]
    if not upload:  # then nothing but the state shows it
        wrong = [name for name, value in state.items() if not all_finite(value)]
    if wrong:
        raise UserError(
            f"round {job.round}, client {job.client}: {wrong[0]} became NaN or infinite; "
            f"training diverged, try a smaller lr"
        )
    sender = Sender(
        round=job.round,
        client=job.client,
        n_classes=setup.n_classes,
        labels=setup.train.labels.cpu(),
        broadcast=job.broadcast,
        rounds=federation.config.rounds,
        trace=setup.trace,
    )
    sent = federation.pipeline.upload(upload, sender, federation.config.seed)
    return ClientResult(job.client, state, sent, setup.trace)


def run_clients(federation: Federation, jobs: Sequence[ClientJob]) -> Iterator[ClientResult]:
    """Run the jobs one after another in this process: the plainest engine."""
    for job in jobs:
        yield client_part(federation, job)


@dataclass(frozen=True)
class _Jobs(Sequence[ClientJob]):
    """The jobs of a round; each is made when it is asked for, with its client's state as it stands then."""

    round: int
    clients: tuple[int, ...]
    states: Sequence[State] = field(repr=False)
    broadcast: Message = field(repr=False)

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, number: int) -> ClientJob:  # type: ignore[override]
        client = self.clients[number]
        return ClientJob(self.round, client, self.states[client], self.broadcast)


def run(federation: Federation, directory: RunDirectory, engine: Engine, report: Report | None = None) -> RunSummary:
    """Run a federation from wherever its directory stands to the end; return the summary, which is also written there.

    UserError where training diverged; WorkError where a client failed. What is done stays.
    """
    config, device = federation.config, federation.server.device
    standing = _standing(federation, directory)
    files = directory.state_paths(standing.round) if standing.round else ()
    tell = _teller(federation, standing.round, report)
    with tempfile.TemporaryDirectory(PARTIAL, ".states.", directory.path) as folder:
        states = StateStore(files, config.clients, federation.initial_state, device, Path(folder))
        for round_ in range(standing.round + 1, config.rounds + 1):
            began = time.perf_counter()
            jobs = _Jobs(round_, federation.participants(round_), states, standing.broadcast)
            uploads, traces = _answers(federation, engine, jobs, states, tell)
            trained = time.perf_counter()
            tell(0, f"round {round_}, server")
            ended = _served(federation, standing, uploads)
            served = time.perf_counter()
            tell(1, f"round {round_}, evaluation")
            counts = _counts(federation, states, standing, ended, tell) if _evaluated(config, round_) else {}
            seconds = {"clients": trained - began, "server": served - trained, "evaluate": time.perf_counter() - served}
            _write(federation, directory, standing.broadcast, ended, uploads, traces, counts, seconds)
            if round_ % config.checkpoint_every == 0 or round_ == config.rounds or round_ in config.keep:
                directory.save_checkpoint(ended, [states.file(k) for k in range(config.clients)], config.keep)
                states.checkpointed(directory.state_paths(round_))
            standing = ended
    summary = _summary(federation, directory)
    directory.finish(summary)
    return summary


def _evaluated(config: RunConfig, round_: int) -> bool:
    return round_ % config.evaluate_every == 0 or round_ == config.rounds


def _teller(federation: Federation, rounds: int, report: Report | None) -> Callable[[int, str], None]:
    """Return the function that takes (more steps done, what goes on), where so many rounds are done."""
    config, clients = federation.config, len(federation.participants(1))
    steps = [clients + 1 + _evaluated(config, number + 1) * config.clients for number in range(config.rounds)]
    done, planned = sum(steps[:rounds]), sum(steps)

    def tell(more: int, text: str) -> None:
        nonlocal done
        done += more
        if report is not None:
            report(done, planned, text)

    return tell


def _answers(
    federation: Federation, engine: Engine, jobs: _Jobs, states: StateStore, tell: Callable[[int, str], None]
) -> tuple[Uploads, dict[int, Trace]]:
    """Have a round's jobs run, take the states that came of them, and return uploads and notes."""
    uploads: list[tuple[int, Message]] = []
    traces: dict[int, Trace] = {}
    for result in engine(federation, jobs):
        states.change(result.client, result.state)
        traces[result.client] = result.trace
        if result.upload:
            uploads.append((result.client, result.upload))
        tell(1, f"round {jobs.round}, client {result.client}")
    return uploads, traces


def _served(federation: Federation, before: Checkpoint, uploads: Uploads) -> Checkpoint:
    """Return the standing after the server's step; without uploads the server says what it said before."""
    server, broadcast = before.server, before.broadcast
    if uploads or not federation.pipeline.defenses:
        rng = generator(federation.config.seed, "server-step", before.round + 1)
        server, broadcast = federation.method.server_step(federation.server, server, uploads, rng)
    return Checkpoint(before.round + 1, server, broadcast)


def _write(
    federation: Federation,
    directory: RunDirectory,
    broadcast: Message,
    ended: Checkpoint,
    uploads: Uploads,
    traces: Mapping[int, Trace],
    counts: Counts,
    seconds: Mapping[str, float],
) -> None:
    """Store the messages of a round where that is asked for, and note its lines."""
    config, round_ = federation.config, ended.round
    if is_captured(config, round_, broadcast, uploads):
        capture(directory, round_, broadcast, uploads, traces)
    wire = [row for k in federation.participants(round_) for row in entries(broadcast, round_, k, "broadcast")]
    for k, upload in uploads:
        wire += federation.pipeline.wire_entries(entries(upload, round_, k, "upload"))
    line = RoundLine(
        round=round_,
        participants=tuple(traces),
        accuracy={when: accuracy(pairs) for when, pairs in counts.items()},
        clients={when: tuple((right, n) for right, n in pairs) for when, pairs in counts.items()},
        communication=plain(count(wire)),
    )
    directory.append(
        {
            "metrics": [line.model_dump(mode="json")],
            "ledger": [plain(row) for row in wire],
            "timings": [{"round": round_, "seconds": seconds}],
        }
    )


def _standing(federation: Federation, directory: RunDirectory) -> Checkpoint:
    """Return the standing at the newest checkpoint, with everything beyond it cut off; at first the server's start."""
    config, device = federation.config, federation.server.device
    newest = directory.newest_checkpoint()
    directory.cut(newest or 0)
    if newest is None:
        return Checkpoint(0, *federation.method.start(federation.server, init_rng(config)))
    checkpoint = directory.load_checkpoint(newest)
    directory.drop_checkpoints(config.keep)  # where a crash came first
    return Checkpoint(newest, on_device(device, checkpoint.server), message_on(device, checkpoint.broadcast))


def accuracy(counts: Sequence[Sequence[int]]) -> RoundAccuracy:
    """Return the pooled accuracy and the mean over clients of ``[correct, total]`` pairs."""
    return RoundAccuracy(
        pooled=sum(right for right, _ in counts) / sum(total for _, total in counts),
        mean_over_clients=sum(right / total for right, total in counts) / len(counts),
    )


def _counts(
    federation: Federation,
    states: StateStore,
    before: Checkpoint,
    ended: Checkpoint,
    tell: Callable[[int, str], None],
) -> Counts:
    """Return ``[correct, total]`` of every client after training, and after the next broadcast.

    Nothing is evaluated twice where the broadcast changes nothing.
    """
    method, clients = federation.method, list(zip(federation.clients, federation.tests, strict=True))
    predictors = {"": method.predict} | {f"_{name}": predict for name, predict in method.extra_predictors.items()}
    counts: dict[str, list[Sequence[int]]] = {
        f"{when}{way}": [] for way in predictors for when in ("after_training", "after_broadcast")
    }
    for (setup, test), state in zip(clients, states, strict=True):
        updated = method.apply_broadcast(setup, state, ended.broadcast)
        model_unchanged = all(updated[name] is state[name] for name in updated if name.startswith("model."))
        for way, predict in predictors.items():
            trained = _correct(predict(setup, state, test.images), test.labels)
            same = updated is state or (way and model_unchanged)
            received = trained if same else _correct(predict(setup, updated, test.images), test.labels)
            counts[f"after_training{way}"].append(trained)
            counts[f"after_broadcast{way}"].append(received)
        tell(1, f"round {ended.round}, client {setup.client} evaluated")
    if method.server_predict is not None:
        for when, state in (("after_training", before.server), ("after_broadcast", ended.server)):
            scores = [method.server_predict(federation.server, state, test.images) for _, test in clients]
            pairs = [_correct(score, test.labels) for score, (_, test) in zip(scores, clients, strict=True)]
            counts[f"{when}_server_model"] = list(pairs)
    return counts


def _correct(scores: Tensor, labels: Tensor) -> list[int]:
    return [int((scores.argmax(1) == labels).sum()), len(labels)]


def _summary(federation: Federation, directory: RunDirectory) -> RunSummary:
    """Return the summary of a finished run from its lines."""
    config, method, pipeline = federation.config, federation.method, federation.pipeline
    lines = directory.rounds()
    evaluated = [line for line in lines if line.accuracy]
    return RunSummary(
        method=config.method,
        dataset=dataset_title(config),
        images=federation.data.dataset.brought,
        rounds=len(lines),
        accuracy={when: _over_rounds(evaluated, when) for when in lines[-1].accuracy},
        communication=plain(count(directory.ledger())),
        privacy=plain(pipeline.privacy(protection_plan(config, method, federation.clients))),
        defenses=tuple(defense_facts(defense) for defense in pipeline.defenses),
        unsampled=federation.unsampled(config.rounds),
        seconds=sum(sum(line["seconds"].values()) for line in directory.lines("timings")),
        seed=config.seed,
        engine=config.engine.name,
    )


def _over_rounds(lines: Sequence[RoundLine], when: str) -> ReachedAccuracy:
    best = max(lines, key=lambda line: line.accuracy[when].pooled)
    best_mean = max(lines, key=lambda line: line.accuracy[when].mean_over_clients)
    last = lines[-1].accuracy[when]
    return ReachedAccuracy(
        pooled=last.pooled,
        best=best.accuracy[when].pooled,
        best_round=best.round,
        mean_over_clients=last.mean_over_clients,
        best_mean_over_clients=best_mean.accuracy[when].mean_over_clients,
        best_mean_round=best_mean.round,
        clients=lines[-1].clients[when],
    )
