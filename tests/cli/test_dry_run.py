"""``fedpriv audit --dry-run``: cells are listed and rehearsed, none is run."""

import json

import pytest
from command_line import call
from study_cases import STUDY, TINY_FLAGS

from fedpriv.experiment.study.progress import seconds_left
from fedpriv.pages.study_files import Cell, CellAttack, Spent
from fedpriv.util.errors import UserError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_dry_run_lists_cells_and_runs_none(capsys, tmp_path, monkeypatch):
    from fedpriv.experiment.study import estimate

    rehearsals = []
    original = estimate.estimate

    def remembered(*arguments, **named):
        rehearsals[:] = rehearsals or original(*arguments, **named)
        return rehearsals

    monkeypatch.setattr(estimate, "estimate", remembered)
    (tmp_path / "study.toml").write_text(STUDY)
    code, out, _ = call(capsys, "audit", "study.toml", "--defenses", "none,quantise:bits=4", "--dry-run", "--json")
    assert code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["study.toml"]
    answer = json.loads(out)
    plain, quantised, *_, alone = answer["cells"]
    assert plain["cell"] == "fedproto--none--s3"
    assert (alone["cell"], alone["target"], alone["seconds_by_attack"]) == ("local--none--s3", None, {})
    assert alone["seconds"]["train"] > 0 == alone["seconds"]["attack"] == alone["upload_per_round"]["full_scalars"]
    assert plain["upload_per_round"]["paper_scalars"] > 0
    assert quantised["upload_per_round"]["full_bytes"] < plain["upload_per_round"]["full_bytes"] / 3
    assert answer["complete"]
    assert answer["seconds"] == pytest.approx(sum(sum(cell["seconds"].values()) for cell in answer["cells"]))
    code, out, _ = call(
        capsys, "audit", "study.toml", "--defenses", "none,quantise:bits=4", "--dry-run", "--workers", "2"
    )
    assert code == 0
    assert "5 cells" in out
    assert "with 2 workers" in out


@pytest.mark.slow
def test_a_dry_run_rehearses_what_needs_others_and_rare_uploads(capsys):
    """Every default attack on mixtures, one of which learns from other clients; and uploads of each third round only."""
    flags = [*TINY_FLAGS[:-1], "7", "--targets", "2", "--dry-run", "--json", "--quiet"]
    code, out, _ = call(capsys, "audit", "--methods", "fedre", "--defenses", "none,upload-interval:k=3", *flags)
    assert code == 0
    answer = json.loads(out)
    plain, rare, _ = answer["cells"]
    assert (answer["complete"], plain["not_estimated"], rare["not_estimated"]) == (True, [], [])
    assert "unmix-prior" in plain["seconds_by_attack"]
    assert all(cell["seconds"]["train"] > 0 and cell["seconds"]["attack"] > 0 for cell in (plain, rare))
    scalars = [cell["upload_per_round"]["full_scalars"] for cell in (plain, rare)]
    assert scalars[1] == pytest.approx(scalars[0] / 3)


def test_what_cannot_be_rehearsed_is_named_and_the_rest_is_summed(capsys, monkeypatch):
    from fedpriv.experiment.study import estimate

    original = estimate._attack

    def refusing(cell, plan, run, folder):
        if "pixels" in plan.attacks:
            raise UserError("no pixels today")
        return original(cell, plan, run, folder)

    monkeypatch.setattr(estimate, "_attack", refusing)
    flags = ["audit", "--methods", "fedproto", "--attacks", "pixels,membership", *TINY_FLAGS, "--no-local", "--dry-run"]
    code, out, _ = call(capsys, *flags, "--json")
    assert code == 0
    answer = json.loads(out)
    (cell,) = answer["cells"]
    assert not answer["complete"]
    assert cell["not_estimated"] == ["pixels on fedproto: no pixels today"]
    assert cell["seconds_by_attack"]["pixels"] is None
    assert answer["seconds"] == pytest.approx(cell["seconds"]["train"] + cell["seconds_by_attack"]["membership"])
    code, out, _ = call(capsys, *flags)
    assert code == 0
    assert "time: at least about" in out
    assert "not estimated: pixels on fedproto: no pixels today" in out


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
