"""Shards of a study: every cell once, in one folder, whoever is killed, refused or started again."""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import call
from hypothesis import given
from hypothesis import strategies as st
from study_cases import TINY, load_study

import fedpriv
from fedpriv.reports import study_files
from fedpriv.reports.study_files import read_cells
from fedpriv.study import folder as shards
from fedpriv.study.cells import Execution, lay_out
from fedpriv.study.folder import Shard
from fedpriv.study.run import run_study
from fedpriv.util import folders
from fedpriv.util.errors import UserError
from fedpriv.util.files import PARTIAL

HERE = Execution()
VALUES = {"methods": ["fedproto"], "attacks": "none", "seeds": [3, 4], **tomllib.loads(TINY)}
VALUES["federation"] = {**VALUES["federation"], "rounds": 1, "per_class": 12, "models": "small-mlp"}
FLAGS = ("--methods", "fedproto", "--attacks", "none", "--dataset", "digits")


@dataclass
class Stub:
    """A cell by its run."""

    name: int
    run: str


@given(st.lists(st.integers(0, 12), max_size=30), st.integers(1, 9))
def test_every_run_is_of_one_shard_with_all_its_cells(runs, n):
    cells = [Stub(number, f"r{run}") for number, run in enumerate(runs)]
    parts = [Shard(number, n).own(cells) for number in range(1, n + 1)]
    assert sorted(cell.name for part in parts for cell in part) == list(range(len(runs)))
    held = [{cell.run for cell in part} for part in parts]
    assert sum(map(len, held)) == len(set(runs))
    assert max(map(len, held)) - min(map(len, held)) <= 1


def essence(folder):
    """Lists and training of a study, without times and identities."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.name == "cells.jsonl":
            lines = [json.loads(line) | {"seconds": None} for line in path.read_text().splitlines()]
            found[name] = lines
        elif path.suffix == ".safetensors":
            found[name] = path.read_bytes()
        elif not path.name.startswith(".fedpriv"):
            found[name] = None
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "out"
    assert not run_study(load_study(VALUES), out, HERE).failed
    return out


def test_shards_one_after_the_other_make_what_one_command_makes(alone, tmp_path):
    study, out = load_study(VALUES), tmp_path / "out"
    first = run_study(study, out, HERE, shard=Shard(1, 2))
    assert (len(first.rows), first.pending, first.report, first.shard) == (2, 2, None, "1/2")
    assert [row.status for row in read_cells(out)].count("done") == 2
    assert [row.status for row in study_files.read_list(out)] == ["pending"] * 4  # nobody writes the study's own list
    told = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/summary.json")}
    again = fedpriv.audit(VALUES, out=out, shard="1/2")  # nothing is left to do
    assert [row.cell for row in again.rows] == [row.cell for row in first.rows]
    second = run_study(study, out, HERE, shard=Shard(2, 2))
    assert (len(second.rows), second.pending) == (2, 0)
    assert {path: path.stat().st_mtime_ns for path in told} == told
    assert second.report is not None
    assert not {row.cell for row in first.rows} & {row.cell for row in second.rows}
    assert essence(out) == essence(alone)
    assert [path for path in out.rglob("*") if path.name.endswith((PARTIAL, ".partial", ".tmp"))] == []


@pytest.fixture
def made(tmp_path):
    """A study that is made, with nothing done, and its cells."""
    study = load_study(VALUES)
    cells, _ = lay_out(study, HERE)
    shards.join(tmp_path / "out", study, cells, command="")
    return study, cells, tmp_path / "out"


def test_who_may_be_at_work_beside_whom(made, monkeypatch):
    study, _, out = made
    monkeypatch.setattr(shards, "PATIENCE", 0.0)
    with shards.at_work(out, Shard(1, 2), []):
        with shards.at_work(out, Shard(2, 2), []):
            assert not folders.busy(out)  # held together, not alone
        with pytest.raises(UserError, match="1-of-2: another fedpriv is at work"):
            run_study(study, out, HERE, shard=Shard(1, 2))
        with pytest.raises(UserError, match=r"shard 1/2 is at work, of another division than shard='1/3'"):
            run_study(study, out, HERE, shard=Shard(1, 3))
        for force in (False, True):
            with pytest.raises(UserError, match="is at work in this folder"):
                run_study(study, out, HERE, force=force)
    with folders.held(out), pytest.raises(UserError, match="is at work in this folder"):
        run_study(study, out, HERE, shard=Shard(1, 2))
    assert not list(out.glob("runs/*"))


def test_another_division_and_one_command_go_on_with_what_is_there(made, alone):
    study, _, out = made
    run_study(study, out, HERE, shard=Shard(1, 2))
    three = run_study(study, out, HERE, shard=Shard(2, 3))
    assert three.pending == 1  # runs 1 and 3 are done, and 2 is of this shard
    told = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/summary.json")}
    assert len(told) == 3
    assert not run_study(study, out, HERE).failed
    assert {path: path.stat().st_mtime_ns for path in told} == told
    assert essence(out) == essence(alone)


def test_flags_of_shards_that_do_not_fit_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for flags, complaint in (
        (("--shard", "3/2"), "shard='3/2': expected I/N"),
        (("--shard", "1/2", "--force"), "shard and force exclude each other"),
        (("--shard", "1/2", "--dry-run"), "dry-run does not go with"),
    ):
        code, _, err = call(capsys, "audit", *FLAGS, "--out", "out", *flags)
        assert (code, len(err.splitlines())) == (2, 1), err
        assert complaint in err.replace("--shard=", "shard="), err
        assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="shard needs out, the folder that all shards share"):
        fedpriv.audit(VALUES, shard="1/2")
