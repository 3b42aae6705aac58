"""``fedpriv report`` on studies, and on folders that hold no result."""

import json

import pytest
from command_line import call, refused
from eval_cases import ABOUT, but, defended, finished, firsts, reconstruction, truths

from fedpriv.datasets.partition import PartitionOptions
from fedpriv.eval.score import score
from fedpriv.eval.storage import save_attack
from fedpriv.federation.answer import Answer
from fedpriv.federation.run_directory import RunConfig, RunDirectory
from fedpriv.reports.study_report import write_study_report


@pytest.fixture
def study(tmp_path):
    """A study of two cells: one attacked, one failed."""
    home, secrets = tmp_path / "study", truths([1] * 4)
    found = reconstruction(firsts(secrets))
    stated = {"source": "derived here", "guarantee": "none (stated)"}
    answers = (Answer(("dip",), ("representation",), note="looks closely"),)
    run = RunConfig(
        dataset="digits", auxiliary=0, method="fedallrep", clients=10, rounds=2, partition=PartitionOptions(name="iid")
    )
    about = but(ABOUT, run=run, defenses=(but(defended(scale=0.3), **stated, answers=answers),))
    record = score(found, secrets, None, seed=0, about=about)
    save_attack(home / "attacks/one/dip", reconstruction=found, truths=secrets, about=about, metrics=record)
    privacy = {"defense": "noise", "epsilon": 3.5, "delta": 1e-5, "releases": 2, "sampling": "batches", "given": "luck"}
    RunDirectory.create(home / "runs/one", run).finish(finished(run, privacy=[privacy]))
    (home / "study.json").write_text(json.dumps({"format": 4, "command": "fedpriv audit s.toml", "written": {}}))
    common = {"method": "fedallrep", "target": "representation", "defense_label": "noise scale=0.3", "seed": 0}
    stages = (("one", "done", "done", None), ("two", "failed", "pending", "training stopped: not finite"))
    cells = [
        common
        | {"cell": cell, "run": f"runs/{cell}", "status": status, "error": error}
        | {"attacks": [{"attack": "dip", "path": f"attacks/{cell}/dip", "status": attack, "error": None}]}
        for cell, status, attack, error in stages
    ]
    (home / "cells.jsonl").write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    return home


def test_a_study_and_the_command_give_the_same_page(study, capsys, tmp_path):
    write_study_report(study)
    code, _, err = call(capsys, "report", study, "--out", tmp_path / "page")
    assert code == 0
    assert "cell two failed: training stopped: not finite" in err
    for name in ("report.html", "report.md", "results.csv"):
        assert (study / name).read_bytes() == (tmp_path / "page" / name).read_bytes()
    page = (study / "report.html").read_text()
    for text in (
        "1 of 2 cells done",
        "training stopped: not finite",
        "none (stated)",
        "the adapted attack was run",
        "epsilon 3.5, delta 1e-05 over 2 releases</strong>",
        "sampling: batches. given: luck.",
        "fedpriv audit s.toml",
        "noise scale=0.3",
    ):
        assert text in page, text
    line = "epsilon 3.5, delta 1e-05 over 2 releases**: sampling: batches. given: luck."
    assert line in (study / "report.md").read_text()


def test_strict_refuses_an_unfinished_study(study, capsys, tmp_path):
    err = refused(capsys, "report", study, "--strict", "--out", tmp_path / "page")
    assert "strict" in err
    assert "cell two failed" in err
    assert not (tmp_path / "page").exists()


def test_the_study_itself_is_never_replaced(study, capsys):
    for out in (study, study.parent):
        err = refused(capsys, "report", study, "--out", out, "--force")
        assert "overlaps results" in err
    assert (study / "cells.jsonl").is_file()
