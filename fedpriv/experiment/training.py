"""Train a federation into a run directory, or finish the one that is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.util import folders
from fedpriv.util.arguments import argument
from fedpriv.util.device import pick_device
from fedpriv.util.listener import SILENT, Listener

if TYPE_CHECKING:
    from fedpriv.federation.run_directory import RunConfig
    from fedpriv.federation.summary import RunSummary


def train_run(
    out: Path,
    config: RunConfig,
    *,
    device: str = "auto",
    download: bool = False,
    resume: bool = False,
    force: bool = False,
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
        listener: hears of the progress.

    Raises:
        UserError: for bad configurations and occupied directories, before anything is written or removed.
    """
    from fedpriv.experiment.federation import prepare
    from fedpriv.federation.engines.local import run_clients
    from fedpriv.federation.footprint import refuse_training
    from fedpriv.federation.rounds import run
    from fedpriv.federation.run_directory import RunDirectory
    from fedpriv.federation.unsampled import unsampled_facts, warning

    chosen = pick_device(device)
    data_dir = None if config.data_dir is None else Path(config.data_dir)
    folders.refuse_overlap(out, {}, around={argument("data_dir"): data_dir})
    if not resume:
        folders.check_free(out, force=force)
    federation = prepare(config, chosen, download=download)
    refuse_training(federation.clients, federation.tests, federation.server.device)
    with folders.output(out, "run", force=force, resume=resume, listener=listener):
        directory = RunDirectory.open(out) if resume else RunDirectory.create(out, config)
        if resume and directory.complete:
            return directory.summary
        absent = unsampled_facts(federation.unsampled(config.rounds), federation.clients, config.unsampled)
        if absent is not None and config.unsampled != "left_out":
            listener.warn(warning(absent, config.clients))
        listener.resumable()
        with listener.progress(f"training {config.method}") as report:
            return run(federation, directory, run_clients, report)
