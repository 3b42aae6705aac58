"""The tutorial on a Flower app: its files run as they stand, but for the processes, and its command attacks the run."""

import importlib
import json
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from flower_cases import LocalGrid, RecordDict
from flwr.app import Context

from fedpriv.cli.main import run as command
from fedpriv.integrations.run import RecordedRun

pytestmark = pytest.mark.frameworks

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "audit-my-flower-app"


@pytest.fixture
def app(tmp_path, monkeypatch):
    """A copy of the tutorial as the working directory, with its data written."""
    shutil.copytree(TUTORIAL, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path / "app")
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    importlib.import_module("make_data").write(Path("data"), auxiliary=60)
    yield tmp_path / "app"
    for name in [name for name in sys.modules if name.partition(".")[0] in ("my_app", "make_data", "audit")]:
        del sys.modules[name]


def told_command():
    """The command that the page shows."""
    lines = (TUTORIAL / "README.md").read_text().splitlines()
    return next(
        line.strip().removeprefix("$ fedpriv ").split() for line in lines if line.startswith("$ fedpriv attack")
    )


@pytest.mark.slow
def test_the_tutorials_app_is_recorded_and_attacked(app, capsys):
    settings = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    server, client = (
        getattr(importlib.import_module(name), member)
        for name, _, member in (settings["components"][part].partition(":") for part in ("serverapp", "clientapp"))
    )
    grid = LocalGrid(client, {900 + k: k for k in range(5)})
    for own in grid.contexts.values():
        own.run_config.update(settings["config"])
    server(grid, Context(1, 0, {}, RecordDict(), dict(settings["config"])))
    run = RecordedRun.open(app / "runs" / "mine")
    assert run.rounds() == (1, 2)
    assert run.notes() == ()
    assert command([*told_command(), "--targets", "2", "--no-control"]) == 0
    assert "image grid" not in capsys.readouterr().out  # pages of recorded runs are redacted: no picture is drawn
    about = json.loads((app / "results" / "mine" / "dlg" / "about.json").read_text())
    assert (about["method"], about["dataset"]) == ("my-app", "hospitals")
    metrics = json.loads((app / "results" / "mine" / "dlg" / "metrics.json").read_text())
    assert metrics["metrics"]["psnr_db"]["mean"] > 40  # the page promises that both images come back
    assert (app / "results" / "mine" / "report.html").is_file()
