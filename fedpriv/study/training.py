"""Train a federation into a run directory, or finish the one that is there, by processes or by nodes of Flower."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpriv.federation.prepared import Federation
from fedpriv.federation.rounds import ClientJob, ClientResult, Engine, run
from fedpriv.federation.run_directory import EngineChoice, RunConfig, RunDirectory
from fedpriv.federation.states import message_on, on_device
from fedpriv.federation.summary import RunSummary, unsampled_words
from fedpriv.sources.run import prepare
from fedpriv.util import folders
from fedpriv.util.compute import pick_device
from fedpriv.util.config import plain
from fedpriv.util.errors import UserError, shown
from fedpriv.util.parallel import SILENT, Listener, Pool, Relay, number_of_workers, patience_for

AHEAD = 2  # clients whose results wait for an earlier client's, a process


def train_run(
    out: Path,
    config: RunConfig,
    *,
    device: str = "auto",
    download: bool = False,
    resume: bool = False,
    force: bool = False,
    workers: int | str = 1,
    listener: Listener = SILENT,
) -> RunSummary:
    """Train a run in a directory, or with ``resume`` finish the one that is there; return its summary.

    The directory is held until the run is done, so that no other process writes into it. Results do not depend on the number
    of workers, which run the clients of a round.
    """
    chosen = pick_device(_checked_device(config.engine, device, workers))
    data_dir = None if config.data_dir is None else Path(config.data_dir)
    folders.refuse_overlap(out, {}, around={"data_dir": data_dir})
    if not resume:
        folders.check_free(out, force=force)
    federation = prepare(config, chosen, download=download)
    with folders.output(out, "run", force=force, resume=resume):
        directory = RunDirectory.open(out) if resume else RunDirectory.create(out, config)
        if resume and directory.complete:
            return directory.summary
        if federation.data.dataset.brought:
            listener.say(f"{federation.data.dataset.name}: {federation.data.dataset.brought}")
        if absent := federation.unsampled(config.rounds):
            listener.warn(unsampled_words(absent, config.clients))
        listener.resumable()
        with opened(federation, workers, listener) as clients, listener.progress(f"training {config.method}") as report:
            run(federation, directory, clients, report)
    return directory.summary


def _checked_device(choice: EngineChoice, device: str, workers: int | str) -> str:
    """Return where this process computes under an engine, of where it was told to."""
    number_of_workers(workers, "cpu")
    if choice.name == "local":
        return device
    from fedpriv.integrations.flower_engine import require_flower

    require_flower()
    if device not in ("auto", "cpu"):
        raise UserError(f"device={shown(device)}: simulated nodes compute on the CPU; use cpu, or the local engine")
    if str(workers) not in ("auto", "1"):
        raise UserError(f"workers={shown(workers)}: goes with the local engine; {choice.name} has its own nodes")
    return "cpu"


@contextmanager
def opened(federation: Federation, workers: int | str = 1, listener: Listener = SILENT) -> Iterator[Engine]:
    """Open the engine that a federation's configuration names."""
    choice, device = federation.config.engine, federation.server.device
    if choice.name == "local":
        clients = len(federation.participants(1))
        number = number_of_workers(workers, device.type, clients if device.type == "cpu" else 1)
        _PREPARED[_key(federation.config, str(device))] = federation
        try:
            jobs = clients * federation.config.rounds
            with Pool(number, patience_for(workers), jobs=jobs, joins=True, listener=listener) as pool:
                yield lambda current, jobs: pool.map(
                    _run_client, ((current.config, str(device), job) for job in jobs), AHEAD * number
                )
        finally:
            _PREPARED.clear()
    else:
        from fedpriv.integrations.flower_engine import simulated

        with simulated(len(federation.participants(1)), answer) as simulation:
            yield simulation


_PREPARED: dict[str, Federation] = {}  # the federation that this process prepared last, by its configuration and device


def _key(config: RunConfig, device: str) -> str:
    return f"{device} {json.dumps(plain(config), sort_keys=True)}"


def _run_client(part: tuple[RunConfig, str, ClientJob], _: Relay | None = None) -> ClientResult:
    from fedpriv.federation.rounds import client_part

    config, device, job = part
    key = _key(config, device)
    if key not in _PREPARED:
        _PREPARED.clear()
        _PREPARED[key] = prepare(config, pick_device(device))
    federation = _PREPARED[key]
    there = federation.server.device
    return client_part(
        federation, replace(job, state=on_device(there, job.state), broadcast=message_on(there, job.broadcast))
    )


def answer(message: Any, context: Any) -> Any:
    """Return the reply of a node of Flower's to a message that asks for a client's part of a round."""
    from flwr.app import Message

    from fedpriv.integrations.flower_engine import pack_refusal, pack_result, read_job

    try:
        content = pack_result(_run_client(read_job(message.content)))
    except UserError as error:  # the same anywhere: the run has to end, and its user to hear of it
        about = message.content.get("about") or {}
        content = pack_refusal(int(about.get("client", -1)), str(error) or "refused")
    return Message(content, reply_to=message)
