"""A run handed to a SuperLink: ``flwr run`` submits an app without code, and the SuperLink writes the directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedpriv import __version__
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.federation.summary import RunSummary
from fedpriv.integrations.flower_engine import OFF
from fedpriv.util.config import parse, plain
from fedpriv.util.errors import UserError, WorkError, short_line
from fedpriv.util.files import read_json, write_json
from fedpriv.util.listener import Listener

OUTCOME: Final = "flower.json"
"""File of a run directory: how the SuperLink's side of it ended."""

_FLWR: Final = "from flwr.cli.app import app; app()"
"""The command ``flwr`` of this very Python, whatever is on the path."""

_APP: Final = """\
[build-system]
requires = []

[project]
name = "fedpriv-engine"
version = "{version}"
dependencies = []

[tool.flwr.app]
publisher = "fedpriv"

[tool.flwr.app.components]
serverapp = "fedpriv.experiment.flower_nodes:server_app"
clientapp = "fedpriv.experiment.flower_nodes:client_app"

[tool.flwr.app.config]
run = {run}
device = {device}
"""


@dataclass(frozen=True)
class Outcome:
    """The end of the SuperLink's side of a run.

    Attributes:
        code: as the command line exits: 0, 1 for work that failed, 2 for what the user can mend; -1 before the end.
        told: one line of why.
    """

    code: int
    told: str


def write_outcome(path: Path, outcome: Outcome) -> None:
    """Leave word in a run directory."""
    write_json(path / OUTCOME, plain(outcome))


def write_app(folder: Path, run: Path, device: str) -> None:
    """Write the app for a run: a Flower app without code, since both sides import fedpriv's own.

    Args:
        folder: to write into.
        run: the run directory, as the SuperLink's machine names it.
        device: where the server and, unless they know better, nodes compute.
    """
    text = _APP.format(version=__version__, run=json.dumps(str(run)), device=json.dumps(device))
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")


def submit(directory: RunDirectory, device: str, listener: Listener) -> RunSummary:
    """Have a SuperLink run what a directory describes, or the rest of it, and wait for the end.

    Raises:
        UserError: where Flower refuses the submission, or the run something that its user can mend.
        WorkError: where the run failed; what is done is kept.
    """
    config = directory.config
    write_outcome(directory.path, Outcome(-1, "the SuperLink did not begin with the run"))
    with tempfile.TemporaryDirectory(prefix="fedpriv-app-") as name:
        folder = Path(name)
        write_app(folder, directory.path.resolve(), device)
        command = [sys.executable, "-c", _FLWR, "run", ".", str(config.engine.superlink), "--stream"]
        with (folder / "said.txt").open("w+", encoding="utf-8", errors="replace") as said:
            streams = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(command, cwd=folder, env=os.environ | OFF, **streams)  # type: ignore[call-overload]
            try:
                with listener.progress(f"training {config.method} on SuperLink {config.engine.superlink}") as report:
                    while process.poll() is None:
                        done = directory.newest_checkpoint() or 0
                        report(done, config.rounds, f"round {done}")
                        time.sleep(0.5)
            finally:
                process.terminate()
                process.wait()
            said.seek(0)
            words = said.read()
    outcome = parse(Outcome, read_json(directory.path / OUTCOME), str(directory.path / OUTCOME))
    if outcome.code == 0:
        return directory.summary
    if outcome.code == 1:
        raise WorkError(outcome.told)
    if outcome.code == 2:
        raise UserError(outcome.told)
    raise UserError(
        short_line(f"SuperLink {config.engine.superlink!r}: {outcome.told}; flwr run said: {words.strip()}")
    )
