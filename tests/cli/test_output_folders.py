"""What ``--out``, ``--force`` and ``--resume`` may do to a folder: refused in one line, and nothing in it changes."""

import json
import shutil
import subprocess
import sys
import time

import pytest
from command_line import call
from federations import DIGITS

from fedpriv.cli.main import run
from fedpriv.util import manifest

SMALL = [*DIGITS, "--per-class", "20", "--clients", "4", "--partition", "iid", "--rounds", "2"]
TRAIN = ["train", "--method", "fedgh", *SMALL]
ATTACK = ["attack", "--target", "prototype", "--attack", "pixels", "--targets", "2", "--iterations", "3"]
COMMANDS = {
    "train": TRAIN,
    "attack": ["attack", "--target", "entangled", *SMALL],
    "data": ["data", *DIGITS, "--per-class", "20", "--clients", "4"],
    "report": ["report", "run"],
    "audit": ["audit", "--methods", "fedproto", "--attacks", "pixels:iterations=3", *SMALL],
}


def contents(path):
    return {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("folders")
    assert run([*TRAIN, "--out", str(path / "run"), "--quiet"]) == 0
    return path


@pytest.fixture
def home(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("decoy", ["config.json", "report.html", "study.json"])
def test_force_never_removes_a_folder_that_only_looks_like_ours(command, decoy, home, capsys):
    (home / "p" / "src").mkdir(parents=True)
    (home / "p" / decoy).write_text('{"name": "x"}')
    (home / "p" / "src" / "thesis.tex").write_text("years of work")
    before = contents(home / "p")
    code, _, err = call(capsys, *COMMANDS[command], "--out", "p", "--force")
    assert (code, err.count("\n")) == (2, 1)
    assert "holds files that fedpriv did not make" in err
    assert contents(home / "p") == before


def test_force_replaces_a_run_but_not_a_stranger_s_file_in_it(home, capsys):
    code, _, _ = call(capsys, *TRAIN, "--seed", "1", "--out", "run", "--force", "--quiet")
    assert code == 0
    assert json.loads((home / "run" / "config.json").read_text())["seed"] == 1
    (home / "run" / "uploads" / "thesis.tex").write_text("years of work")
    before = contents(home / "run")
    code, _, err = call(capsys, *TRAIN, "--out", "run", "--force")
    assert (code, err.count("\n")) == (2, 1)
    assert "(uploads/thesis.tex)" in err
    assert contents(home / "run") == before


@pytest.mark.parametrize("out", ["run", "run/results", ".", "link"])
def test_an_attack_never_writes_over_in_or_around_the_run_that_it_attacks(out, home, capsys):
    (home / "link").symlink_to(home / "run")
    before = contents(home)
    code, _, err = call(capsys, *ATTACK, "--run", "run", "--out", out, "--force")
    assert (code, err.count("\n")) == (2, 1)
    assert f"--out {out}: overlaps --run run" in err
    assert contents(home) == before


def test_a_report_never_writes_over_what_it_reports_on(home, capsys):
    before = contents(home)
    for out in ("run", "run/report"):
        code, _, err = call(capsys, "report", "run", "--out", out, "--force")
        assert (code, err.count("\n")) == (2, 1)
        assert f"--out {out}: overlaps" in err
    assert contents(home) == before


@pytest.mark.slow
@pytest.mark.parametrize("way", ["--resume", "--force"])
def test_two_processes_never_write_into_one_run(way, home, capsys):
    command = [sys.executable, "-m", "fedpriv", *TRAIN, "--rounds", "500", "--out", "long", "--quiet"]
    first = subprocess.Popen(command, cwd=home)
    try:
        deadline = time.monotonic() + 120
        while not (home / "long" / "checkpoints" / "round-0002").exists():
            assert first.poll() is None, "the first training ended"
            assert time.monotonic() < deadline, "no second checkpoint within two minutes"
            time.sleep(0.05)
        arguments = ["train", "--out", "long", way] if way == "--resume" else [*TRAIN, "--out", "long", way]
        code, _, err = call(capsys, *arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert f"another fedpriv (process {first.pid}) is at work in this folder" in err
        assert first.poll() is None
    finally:
        first.kill()
        first.wait()


def test_a_run_that_died_before_it_was_one_is_in_nobody_s_way(home, capsys):
    manifest.mark(home / "early", "run")
    (home / "early" / f".config.json.17{manifest.PARTIAL}").write_text("{")
    code, _, _ = call(capsys, *TRAIN, "--out", "early", "--quiet")
    assert code == 0
