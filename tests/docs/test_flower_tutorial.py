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


def federated(app, **changed):
    """Run the app in this process, with some of its settings changed, and return what was recorded."""
    settings = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    server, client = (
        getattr(importlib.import_module(name), member)
        for name, _, member in (settings["components"][part].partition(":") for part in ("serverapp", "clientapp"))
    )
    config = settings["config"] | changed
    grid = LocalGrid(client, {900 + k: k for k in range(5)})
    for own in grid.contexts.values():
        own.run_config.update(config)
    server(grid, Context(1, 0, {}, RecordDict(), dict(config)))
    return RecordedRun.open(app / "runs" / "mine")


@pytest.mark.slow
def test_the_tutorials_app_is_recorded_and_attacked(app, capsys):
    run = federated(app)
    assert run.rounds() == (1, 2)
    assert run.notes() == ()
    assert command([*told_command(), "--targets", "2", "--no-control"]) == 0
    assert "image grid" not in capsys.readouterr().out  # pages of recorded runs are redacted: no picture is drawn
    about = json.loads((app / "results" / "mine" / "dlg" / "about.json").read_text())
    assert (about["method"], about["dataset"]) == ("my-app", "hospitals")
    metrics = json.loads((app / "results" / "mine" / "dlg" / "metrics.json").read_text())
    assert metrics["metrics"]["psnr_db"]["mean"] > 40  # the page promises that both images come back
    assert (app / "results" / "mine" / "report.html").is_file()


@pytest.mark.slow
def test_with_batch_norm_the_last_of_three_rounds_is_attacked(app, capsys):
    task = app / "my_app" / "task.py"
    plain = "nn.Conv2d(1, 8, 3, padding=1)"
    assert plain in task.read_text()
    task.write_text(task.read_text().replace(plain, f"nn.Sequential({plain}, nn.BatchNorm2d(8))"))
    assert federated(app, **{"num-server-rounds": 3}).rounds() == (1, 2, 3)
    how = (
        "--run runs/mine --target model --allow-code my_app.task --allow-code audit --iterations 20 --targets 5 --out r"
    )
    assert command(["attack", *how.split(), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["attacks"]
    for record in told["attacks"].values():
        assert {target["round"] for target in record["targets"]} == {3}
        assert record["premise"]["status"] == "agrees"
