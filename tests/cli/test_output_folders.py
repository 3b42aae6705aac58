"""What ``--out``, ``--force`` and ``--resume`` may do to a folder: refused in one line, and nothing in it changes."""

import itertools
import json
import shutil

import pytest
from command_line import call
from federations import DIGITS

from fedpriv.util import files

SMALL = [*DIGITS, "--per-class", "20", "--clients", "4", "--partition", "iid", "--rounds", "2"]
TRAIN = ["train", "--method", "fedgh", *SMALL]
ATTACK = ["attack", "--target", "prototype", "--attack", "pixels", "--targets", "2", "--iterations", "3"]
COMMANDS = {
    "train": TRAIN,
    "attack": ["attack", "--target", "entangled", *SMALL],
    "report": ["report", "run"],
    "audit": ["audit", "--methods", "fedproto", "--attacks", "pixels:iterations=3", *SMALL],
}


def contents(path):
    return {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}


@pytest.fixture
def home(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path / "home" / "run")
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


def test_force_never_removes_a_folder_that_only_looks_like_ours(home, capsys):
    for decoy in ("config.json", "report.html", "study.json"):
        (home / decoy / "src").mkdir(parents=True)
        (home / decoy / decoy).write_text('{"name": "x"}')
        (home / decoy / "src" / "thesis.tex").write_text("years of work")
    before = contents(home)
    for command, decoy in itertools.product(COMMANDS.values(), ("config.json", "report.html", "study.json")):
        code, _, err = call(capsys, *command, "--out", decoy, "--force")
        assert (code, err.count("\n")) == (2, 1)
        assert "holds files that fedpriv did not make" in err
        assert contents(home) == before, (command, decoy)


def test_force_replaces_a_run(home, capsys):
    code, _, _ = call(capsys, *TRAIN, "--seed", "1", "--out", "run", "--force", "--quiet")
    assert code == 0
    assert json.loads((home / "run" / "config.json").read_text())["seed"] == 1


def test_an_attack_never_writes_over_in_or_around_the_run_that_it_attacks(home, capsys):
    (home / "link").symlink_to(home / "run")
    before = contents(home)
    for out in ("run", "run/results", ".", "link"):
        code, _, err = call(capsys, *ATTACK, "--run", "run", "--out", out, "--force")
        assert (code, err.count("\n")) == (2, 1)
        assert f"out {out}: overlaps run run" in err
        assert contents(home) == before


def test_a_report_never_writes_over_what_it_reports_on(home, capsys):
    before = contents(home)
    for out in ("run", "run/report"):
        code, _, err = call(capsys, "report", "run", "--out", out, "--force")
        assert (code, err.count("\n")) == (2, 1)
        assert f"out {out}: overlaps" in err
    assert contents(home) == before


def test_a_run_that_died_before_it_was_one_is_in_nobody_s_way(home, capsys):
    files.mark(home / "early", "run")
    (home / "early" / f".config.json.17{files.PARTIAL}").write_text("{")
    code, _, _ = call(capsys, *TRAIN, "--out", "early", "--quiet")
    assert code == 0
