"""``fedpriv audit``: cells are run, resumed and rehearsed, and failures kept apart."""

import json
import tomllib
from pathlib import Path

import pytest
from command_line import call, done, refused
from study_cases import STUDY, TINY, load_study

from fedpriv.cli.main import run
from fedpriv.study.cells import Execution, lay_out
from fedpriv.study.folder import claim, save_rows, standing
from fedpriv.study.run import perform
from fedpriv.util import files
from fedpriv.util.folders import held
from fedpriv.util.parallel import SILENT, Relay


def work_on(folder, cell, tell):
    perform((folder, folder, (cell,), Execution()), Relay(SILENT, tell))


def rows(folder):
    return [json.loads(line) for line in (Path(folder) / "cells.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One study that came to its end: the last attacked cell in a process of its own, the others in this one."""
    home = tmp_path_factory.mktemp("audit")
    (home / "study.toml").write_text(STUDY)
    study = load_study(home / "study.toml")
    cells, _ = lay_out(study, Execution())
    claim(home / "out", study, command="", force=False)
    lines = standing(home / "out", cells)
    save_rows(home / "out", lines)
    for place in (0, 1, 2, 4):
        work_on(home / "out", cells[place], lambda row, doing, place=place: lines.__setitem__(place, row))
    save_rows(home / "out", lines)
    assert run(["audit", str(home / "study.toml"), "--out", str(home / "out"), "--quiet"]) == 0
    return home


# ---------------------------------------------------------------- running


def test_a_study_leaves_every_run_attack_and_the_report(finished):
    out = finished / "out"
    found = rows(out)
    assert [row["cell"] for row in found] == [
        *("fedproto--none--s3", "fedproto--noise-scale=0.5--s3", "gh--none--s3", "gh--noise-scale=0.5--s3"),
        "local--none--s3",
    ]
    *found, alone = found
    assert (alone["status"], alone["method"], alone["target"], alone["attacks"]) == ("done", "local", None, [])
    assert alone["seconds"]["train"] > 0
    assert alone["seconds"]["attack"] is None
    for row in found:
        assert (row["status"], row["error"], row["seed"], row["target"]) == ("done", None, 3, "prototype")
        assert (out / row["run"] / "summary.json").is_file()
        assert [entry["attack"] for entry in row["attacks"]] == ["pixels", "membership"]
        assert all(entry["status"] == "done" and (out / entry["path"]).is_dir() for entry in row["attacks"])
        assert row["seconds"]["train"] > 0
        assert row["seconds"]["attack"] > 0
    assert found[1]["defenses"][0]["options"]["scale"] == 0.5
    assert (out / "report.html").stat().st_size > 0
    study = json.loads((out / "study.json").read_text())
    assert study["written"]["defenses"][1]["scale"] == [0.5]


def test_methods_of_one_seed_are_attacked_at_the_same_targets(finished):
    seen = []
    for row in rows(finished / "out")[:-1]:
        record = json.loads((finished / "out" / row["attack_folder"] / "pixels" / "metrics.json").read_text())
        seen.append([(target["client"], target["label"]) for target in record["targets"]])
    assert len(seen) == 4
    assert seen.count(seen[0]) == 4


def test_nothing_is_done_twice_and_another_study_is_refused(finished, capsys):
    before = {path: path.stat().st_mtime_ns for path in finished.glob("out/*/*/**/*.*")}
    out = done(capsys, "audit", "--resume", "--out", finished / "out", "--json")
    assert [row["status"] for row in json.loads(out)["cells"]] == ["done"] * 5
    assert {path: path.stat().st_mtime_ns for path in finished.glob("out/*/*/**/*.*")} == before
    err = refused(capsys, "audit", finished / "study.toml", "--seeds", "4", "--out", finished / "out")
    assert "holds another study (seeds differs); choose another out, or force" in err
    err = refused(capsys, "audit", finished / "study.toml", "--no-local", "--out", finished / "out")
    assert "holds another study (local differs)" in err
    with held(finished / "out"):
        for extra in ([], ["--force"]):
            err = refused(capsys, "audit", finished / "study.toml", "--out", finished / "out", *extra)
            assert "is at work in this folder" in err
    assert len(rows(finished / "out")) == 5


@pytest.mark.slow
def test_a_cell_that_fails_fails_alone(capsys, tmp_path):
    (tmp_path / "study.toml").write_text(
        """methods = [{ name = "fedproto", label = "wild", lr = 1e30 }, "fedproto"]
attacks = [{ name = "pixels", iterations = 2 }]
targets = 2
control = false
"""
        + TINY
    )
    code, out, err = call(capsys, "audit", "study.toml", "--out", "out", "--json")
    assert code == 1
    wild, tame, wild_alone, alone = json.loads(out)["cells"]
    assert [row["status"] for row in (wild, tame, wild_alone, alone)] == ["failed", "done", "failed", "done"]
    assert wild_alone["cell"] == "local-lr=1e+30--none--s0"
    assert "training diverged" in wild_alone["error"]
    assert "training diverged, try a smaller lr" in wild["error"]
    assert wild["attacks"][0]["status"] == "pending"
    assert "wild--none--s0: failed: " in err
    assert (tmp_path / "out" / "report.html").is_file()


def test_a_cell_goes_on_by_itself_and_variants_of_an_attack_have_folders_of_their_own(tmp_path):
    from fedpriv.reports.study_report import write_study_report

    attacks = [{"name": "pixels", "iterations": [1, 2]}]
    values = {"methods": ["fedproto"], "attacks": attacks, "targets": 2, "control": False, "axes": {"width": [8]}}
    study = load_study(values | tomllib.loads(TINY))
    cells, _ = lay_out(study, Execution())
    out, told = tmp_path / "out", []
    claim(out, study, command="", force=False)
    save_rows(out, standing(out, cells))

    def work():
        told.clear()
        work_on(out, cells[0], lambda row, doing: told.append((doing, row.model_dump(mode="json"))))
        return told[-1][1]

    files.mark(out / "runs" / cells[0].run, "run")
    with held(out / "runs" / cells[0].run):
        refused = work()
    assert refused["status"] == "failed"
    assert "is at work in this folder" in refused["error"]
    done = work()
    assert (done["status"], done["varied"]) == ("done", {"width": 8})
    assert [entry["path"].removeprefix(f"{done['attack_folder']}/") for entry in done["attacks"]] == [
        *("iterations=1/pixels", "iterations=2/pixels")
    ]
    assert [doing for doing, _ in told] == [
        *("training", "attacking iterations=1/pixels", "attacking iterations=2/pixels", None)
    ]
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*/**/*.*") if path.name != files.LOCK}
    assert work()["status"] == "done"
    assert [doing for doing, _ in told] == ["training", None]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    rows_now = standing(out, cells)
    assert rows_now[0].status == "done"
    save_rows(out, rows_now)
    write_study_report(out)
    page = (out / "report.md").read_text()
    for line in ("| pixels, iterations=1 |", "| pixels, iterations=2 |"):
        assert line in page
