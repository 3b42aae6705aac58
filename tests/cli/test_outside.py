"""Another package trains, attacks, defends and reports through the command line; nothing of this one is touched."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from outside_cases import OUTSIDE

ROOT = Path(__file__).parents[2]
SMALL = ["--width", "8", "--clients", "3", "--rounds", "2", "--quiet"]


def run(folder, *arguments, path=OUTSIDE):
    """Run the command line in a folder, with another package on its path."""
    where = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(path)))}
    command = [sys.executable, "-m", "fedpriv", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=where, capture_output=True, text=True, check=False)


def ran(folder, *arguments, path=OUTSIDE):
    done = run(folder, *arguments, path=path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_members_of_an_installed_package_train_attack_defend_and_report(tmp_path):
    data = ("--dataset", "stripes", "--models", "one-layer")
    ran(tmp_path, "train", "--method", "fed-direction", *data, "--defense", "jitter:spread=0.2", *SMALL, "--out", "run")
    attacks = ("--attack", "random-search", "--attack", "dip", "--iterations", "4", "--targets", "4", "--no-control")
    shared = ("--workers", "2", "--out", "result")
    assert "a worker failed" not in ran(tmp_path, "attack", "--run", "run", "--target", "direction", *attacks, *shared)
    for name in ("random-search", "dip"):
        assert (tmp_path / "result" / name / "grid.png").is_file()
    ran(tmp_path, "report", "run", "result", "--out", "page", "--quiet")
    page = "".join(path.read_text() for path in (tmp_path / "page").rglob("*.html"))
    for name in ("fed-direction", "jitter spread=0.2", "random-search", "direction", "stripes", "brightness_gap"):
        assert name in page, name
    scored = json.loads((tmp_path / "result" / "dip" / "metrics.json").read_text())
    gap = scored["metrics"]["others"]["brightness_gap"]
    assert 0 < gap["mean"] < 1
    assert len(gap["per_target"]) == 4
    assert set(scored["floor_details"]["noise"]["others"]) == {"brightness_gap"}


@pytest.mark.slow
def test_references_stand_wherever_a_name_does(tmp_path):
    shutil.copy(OUTSIDE / "outsider.py", tmp_path)  # a module, and no installed distribution
    (tmp_path / "attack.toml").write_text(
        'target = "outsider:Directions"\nattack = ["outsider:RandomSearch"]\ntargets = 4\niterations = 3\n'
        'method = "outsider:FED_DIRECTION"\ndataset = "outsider:load_stripes"\nmodels = "outsider:one_layer"\n'
        'defense = ["outsider:Jitter:spread=0.3"]\n'
    )
    ran(tmp_path, "attack", "--config", "attack.toml", *SMALL, "--no-control", "--out", "result", path=tmp_path)
    assert (tmp_path / "result" / "random-search" / "grid.png").is_file()
    about = json.loads((tmp_path / "result" / "random-search" / "about.json").read_text())
    assert (about["attack"], about["target"]) == ("random-search", "direction")
    ran(tmp_path, "report", "result", "--out", "page", "--quiet", path=tmp_path / "elsewhere")  # where nobody knows it
    assert "random-search" in "".join(path.read_text() for path in (tmp_path / "page").rglob("*.html"))

    ran(tmp_path, "score", "result", "--metric", "outsider:BRIGHTNESS", "--quiet", path=tmp_path)
    again = json.loads((tmp_path / "result" / "random-search" / "metrics.json").read_text())
    assert 0 < again["metrics"]["others"]["brightness_gap"]["mean"] < 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("train", "--method", "outsider:Nothing"), "method 'outsider:Nothing': module 'outsider' has no 'Nothing'"),
        (("train", "--method", "outsider:Jitter"), "expected a fedpriv.federation.method.Method, got type"),
        (("train", "--dataset", "nowhere:load"), "data set 'nowhere:load': module 'nowhere' cannot be imported"),
        (
            ("train", "--defense", "outsider:RandomSearch:tries=3"),
            "defense 'outsider:RandomSearch': expected a dataclass",
        ),
        (("train", "--models", "outsider:two_layers"), "model 'outsider:two_layers': module 'outsider' has no"),
        (("attack", "--target", "outsider:FED_DIRECTION"), "expected a subclass of fedpriv.wire.payload.Payload"),
        (
            ("attack", "--target", "direction", "--attack", "outsider:Jitter"),
            "expected a dataclass that inherits",
        ),
    ],
)
def test_a_wrong_reference_is_one_line(arguments, complaint, tmp_path):
    done = run(tmp_path, *arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_lists_mark_whose_a_member_is(tmp_path):
    rows = {row["name"]: row["from"] for row in json.loads(ran(tmp_path, "list", "datasets", "--json"))}
    assert rows["stripes"] == "outsider 1.2"
    assert rows["digits"] == "fedpriv"
    assert "direction" in ran(tmp_path, "list", "payloads", "--quiet").split()
    assert "brightness_gap" in ran(tmp_path, "list", "metrics", "--quiet").split()
    assert "direction" in ran(tmp_path, "list", "targets", "--quiet").split()
