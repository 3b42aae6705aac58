"""``fedpriv audit --dry-run``: cells are listed, none is run."""

import json

import pytest
from command_line import call
from study_cases import STUDY


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_dry_run_lists_cells_and_runs_none(capsys, tmp_path, monkeypatch):
    for worked in ("fedpriv.federation.rounds.run", "fedpriv.experiment.suite.attack_in_pieces"):
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
