"""Train a federation into a run directory, or finish the one that is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.util import folders
from fedpriv.util.compute import pick_device
from fedpriv.util.parallel import SILENT, Listener

if TYPE_CHECKING:
    from fedpriv.federation.prepared import Federation
    from fedpriv.federation.rounds import Engine
    from fedpriv.federation.run_directory import RunConfig, RunDirectory
    from fedpriv.federation.summary import RunSummary


def train_run(
    out: Path,
    config: RunConfig,
    *,
    device: str = "auto",
    download: bool = False,
    resume: bool = False,
    force: bool = False,
    clients_by: Engine | int | str = 1,
    listener: Listener = SILENT,
) -> RunSummary:
    """Train a run in a directory, or finish the one that is there; return its summary.

    The directory is held until the run is done, so that no other process writes into it.

    Args:
        out: the run directory.
        config: of the run; of the one that is there where it is resumed.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        download: fetch the data set where it is missing.
        resume: finish the run that is there.
        force: replace the run that is there.
        clients_by: processes that run the clients of a round, a number or ``auto``; or an engine in place of that which the
            configuration names. Results do not depend on it.
        listener: hears of the progress.
    """
    from fedpriv.experiment.engines import check_engine, opened, refuse_workers
    from fedpriv.federation.run_directory import RunDirectory
    from fedpriv.sources.run import prepare

    if not callable(clients_by):
        device = check_engine(config.engine, device)
        refuse_workers(clients_by, config.engine)
    chosen = pick_device(device)
    data_dir = None if config.data_dir is None else Path(config.data_dir)
    folders.refuse_overlap(out, {}, around={"data_dir": data_dir})
    if not resume:
        folders.check_free(out, force=force)
    federation = prepare(config, chosen, download=download)
    with folders.output(out, "run", force=force, resume=resume):
        directory = RunDirectory.open(out) if resume else RunDirectory.create(out, config)
        if resume and directory.complete:
            return directory.summary
        _tell_facts(federation, listener)
        listener.resumable()
        with opened(federation, clients_by, listener) as clients:
            _run(federation, directory, clients, listener)
    summary = directory.summary
    if summary.failures:
        times = "a client" if summary.failures == 1 else f"{summary.failures} times a client"
        listener.warn(f"{times} left its round (see failures in metrics.jsonl)")
    return summary


def _run(federation: Federation, directory: RunDirectory, clients: Engine, listener: Listener) -> None:
    from fedpriv.federation.rounds import run

    with listener.progress(f"training {federation.config.method}") as report:
        run(federation, directory, clients, report)


def _tell_facts(federation: Federation, listener: Listener) -> None:
    """Tell what was done to the images, and which clients no round samples."""
    from fedpriv.federation.rounds import unsampled_facts

    if federation.data.dataset.brought:
        listener.say(f"{federation.data.dataset.name}: {federation.data.dataset.brought}")
    config = federation.config
    absent = unsampled_facts(federation.unsampled(config.rounds), federation.clients, config.unsampled)
    if absent is not None and config.unsampled != "left_out":
        listener.warn(f"{absent.words(config.clients)}; see unsampled='left_out'")
