"""``fedpriv audit --dry-run``: cells are listed, none is run."""

import json

import pytest
from command_line import call
from study_cases import STUDY

from fedpriv.experiment.study.progress import seconds_left
from fedpriv.pages.study_files import Cell, CellAttack, Spent


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_dry_run_lists_cells_and_runs_none(capsys, tmp_path, monkeypatch):
    for worked in ("fedpriv.federation.rounds.run", "fedpriv.pipeline.execute.search"):
        monkeypatch.setattr(worked, lambda *_, **__: pytest.fail("something ran"))
    (tmp_path / "study.toml").write_text(STUDY)
    asked = ["audit", "study.toml", "--defenses", "none,quantise:bits=4", "--dry-run"]
    code, out, _ = call(capsys, *asked, "--json")
    assert code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["study.toml"]
    plain, *others, alone = json.loads(out)["cells"]
    assert plain == {"cell": "fedproto--none--s3", "method": "fedproto", "defense": "none", "seed": 3} | {
        "target": "prototype",
        "attacks": ["pixels", "membership"],
    }
    assert len(others) == 3
    assert (alone["cell"], alone["target"], alone["attacks"]) == ("local--none--s3", None, [])
    code, out, _ = call(capsys, *asked)
    assert code == 0
    assert "5 cells" in out


def test_time_left_is_what_like_steps_took():
    def row(cell, status, train, attack, method="a"):
        entry = CellAttack(attack="dip", path=f"attacks/{cell}/dip", status=status, seconds=attack)
        told = {"cell": cell, "run": f"runs/{cell}", "method": method, "method_label": method, "status": status}
        return Cell(**told, target="prototype", seed=0, attacks=(entry,), seconds=Spent(train=train, attack=attack))

    assert seconds_left([row("x", "pending", None, None)], 1) is None
    begun = [row("x", "done", 2.0, 10.0), row("y", "pending", None, None), row("z", "pending", None, None, "b")]
    assert seconds_left(begun, 1) == pytest.approx(24)
    assert seconds_left(begun, 2) == pytest.approx(12)
    assert seconds_left([begun[0], row("y", "failed", None, None)], 1) == 0
