"""The tutorial on a claimed epsilon: its commands say what its page says, and its app is recorded and audited."""

import importlib
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from flower_cases import LocalGrid, RecordDict
from flwr.app import Context

from fedpriv.cli.main import run as command
from fedpriv.scoring.storage import load_privacy_audit

pytestmark = pytest.mark.frameworks

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
HERE = TUTORIALS / "is-my-epsilon-true"


def commands():
    lines = (HERE / "README.md").read_text().splitlines()
    return [shlex.split(line.removeprefix("$ fedpriv ")) for line in lines if line.startswith("$ fedpriv")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "verdict"), [(0, "contradicted"), (1, "not contradicted"), (2, "untested"), (3, "not contradicted")]
)
def test_the_commands_say_what_the_page_says(tmp_path, monkeypatch, place, verdict):
    monkeypatch.chdir(tmp_path)
    line = commands()[place]
    assert command(line) == 0
    assert load_privacy_audit(Path(line[-1])).verdict == verdict


def test_the_app_is_recorded_and_audited(tmp_path, monkeypatch):
    shutil.copytree(TUTORIALS / "audit-my-flower-app", tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("audited_clients.py", "claim.toml"):
        shutil.copy(HERE / name, tmp_path / "app")
    monkeypatch.chdir(tmp_path / "app")
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    before = set(sys.modules)
    importlib.import_module("make_data").write(Path("data"), auxiliary=60)
    settings = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    settings |= {"num-server-rounds": 12, "fraction-evaluate": 0.0}
    grid = LocalGrid(importlib.import_module("audited_clients").app, {900 + k: k for k in range(5)})
    for own in grid.contexts.values():
        own.run_config.update(settings)
    server = importlib.import_module("my_app.server_app").app
    server(grid, Context(1, 0, {}, RecordDict(), dict(settings)))
    assert command(commands()[-1]) == 0
    record = load_privacy_audit(Path("results/epsilon"))
    assert record.verdict == "contradicted"
    assert record.canaries == 60
    assert len(record.bounds) == 4  # as the page says
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("my_app", "make_data", "audit", "audited_clients"):
            del sys.modules[name]
