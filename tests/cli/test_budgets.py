"""Budgets on the command line, and what tables do on a narrow terminal."""

import csv
import json
import shutil

import pytest
from command_line import call, words
from federations import DIGITS
from looped import each

from fedpriv.cli import common
from fedpriv.cli.main import run

SMALL = [*DIGITS, "--per-class", "20", "--clients", "3", "--partition", "iid", "--rounds", "4"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("budgets") / "run"
    assert run(["train", "--method", "fedgh", *SMALL, "--keep", "1", "--out", str(path), "--quiet"]) == 0
    return path


@pytest.fixture(scope="module")
def budgets(trained):
    path = trained.parent / "budgets"
    arguments = [*words("attack --target prototype --run"), str(trained), *words("--attack pixels --attack membership")]
    assert run([*arguments, "--targets", "4", "--budget", "4,40", "--out", str(path), "--quiet"]) == 0
    return path


# ---------------------------------------------------------------- budgets


def test_every_budget_has_its_folder_and_says_so(budgets):
    assert (budgets / "membership" / "membership.json").is_file()  # no budget: it ran once
    assert not (budgets / "membership@4").exists()
    for budget in (4, 40):
        home = budgets / f"pixels@{budget}"
        record = json.loads((home / "metrics.json").read_text())
        assert record["budget"] == {"field": "iterations", "value": budget}
        assert record["cost"]["iterations"] <= budget
        assert json.loads((home / "about.json").read_text())["options"]["iterations"] == budget
        assert (home / "shuffled.safetensors").exists() == (budget == 40)


def test_the_table_shows_every_budget(budgets, capsys, tmp_path):
    code, _, _ = call(capsys, "report", budgets, "--out", "page")
    assert code == 0
    with open(tmp_path / "page" / "results.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["budget"] for row in rows} == {"4", "40"}
    advantages = [float(row["advantage_db"]) for row in rows]
    assert advantages == sorted(advantages, reverse=True)


def test_iterations_reach_every_stage_of_a_search_and_the_record_counts_them(tmp_path):
    """``learned`` finds the images of a mean together first: of an iteration of its own there are two of these."""
    words = ["attack", "--target", "prototype", "--method", "fedproto", *SMALL, "--auxiliary", "0.5", "--targets", "5"]
    words += ["--attack", "learned", "--iterations", "1", "--no-control", "--workers", "1", "--quiet"]
    assert run([*words, "--out", str(tmp_path / "r")]) == 0
    metrics = json.loads((tmp_path / "r" / "learned" / "metrics.json").read_text())
    assert metrics["cost"]["iterations"] == metrics["cost"]["evaluations"] == 3


def test_an_interrupted_suite_does_not_redo_finished_budgets(trained, capsys, monkeypatch, tmp_path):
    from fedpriv.attacks.inversion.vector import PixelInversion

    original = PixelInversion.run

    def interrupted(self, *args, **kwargs):
        if self.iterations == 6:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    arguments = ["attack", "--target", "prototype", "--run", trained, "--attack", "pixels", "--targets", "3"]
    arguments += ["--budget", "3,6", "--no-control", "--out", "r"]
    monkeypatch.setattr(PixelInversion, "run", interrupted)
    assert call(capsys, *arguments)[0] == 130
    done = (tmp_path / "r" / "pixels@3" / "metrics.json").stat().st_mtime_ns
    code, _, err = call(capsys, "report", "r", "--out", "early")
    assert code == 0
    assert "unfinished, pixels@6 missing" in err
    code, _, err = call(capsys, "report", "r", "--out", "strict", "--strict")
    assert (code, len(err.strip().splitlines())) == (2, 1)
    assert "strict: r: unfinished, pixels@6 missing" in err
    monkeypatch.setattr(PixelInversion, "run", original)
    code, _, err = call(capsys, *arguments, "--resume", "--attack-option", "learning_rate=0.2")
    assert (code, "attacks.pixels.learning_rate" in err) == (2, True)
    assert call(capsys, *arguments, "--resume", "--quiet")[0] == 0
    assert (tmp_path / "r" / "pixels@3" / "metrics.json").stat().st_mtime_ns == done
    assert (tmp_path / "r" / "pixels@6" / "metrics.json").is_file()


# ---------------------------------------------------------------- reports, scores, tables


def test_an_unfinished_run_is_named_and_left_out(trained, capsys, tmp_path):
    shutil.copytree(trained, tmp_path / "stopped")
    (tmp_path / "stopped" / "summary.json").unlink()
    code, out, err = call(capsys, "report", trained, "stopped", "--out", "page", "--json")
    assert code == 0
    assert json.loads(out)["runs"] == [str(trained)]
    assert "warning: stopped: unfinished run (4 of 4 rounds, no summary.json)" in err
    code, out, err = call(capsys, "report", trained, "stopped", "--out", "still", "--quiet")
    assert (code, out) == (0, "")
    assert err.startswith("warning: stopped: unfinished run (4 of 4 rounds, no summary.json)")
    for arguments in (["stopped"], [trained, "stopped", "--strict"]):
        code, _, err = call(capsys, "report", *arguments, "--out", "other")
        assert (code, len(err.strip().splitlines())) == (2, 1)
        assert "stopped: unfinished run" in err


def test_scoring_says_what_it_cannot_score_again(budgets, capsys):
    code, out, err = call(capsys, "score", budgets, "--json")
    assert code == 0
    assert len(json.loads(out)) == 2
    assert f"not scored again: {budgets / 'membership'}" in err
    code, _, err = call(capsys, "score", budgets / "membership")
    assert code == 2
    assert "attack again" in err


def test_scoring_again_makes_a_damaged_record_good(budgets, capsys, tmp_path):
    shutil.copytree(budgets, tmp_path / "copy")
    path = sorted((tmp_path / "copy").glob("pixels*/metrics.json"))[0]
    before = path.read_bytes()
    for damage in (None, "", '{"version": 1}'):
        path.unlink() if damage is None else path.write_text(damage)
        code, _, err = call(capsys, "score", path.parent, "--quiet")
        assert (code, err, path.read_bytes()) == (0, "", before), damage


def test_scoring_names_the_file_that_is_damaged(budgets, capsys, tmp_path):
    shutil.copytree(budgets, tmp_path / "copy")
    about = sorted((tmp_path / "copy").glob("pixels*/about.json"))[0]
    for damage in ("", "{", "[1]", None):
        about.unlink() if damage is None else about.write_text(damage)
        for folder in (about.parent, tmp_path / "copy"):
            code, _, err = call(capsys, "score", folder)
            assert (code, len(err.strip().splitlines()), str(about) in err) == (2, 1, True), (damage, err)


@each("width", [30, 60, 80, 160])
def test_tables_fit_the_terminal_and_break_no_word(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    names = [f"quantity-{number}" for number in range(9)]
    rows = [{name: f"{place}.{number}-value" for number, name in enumerate(names)} for place in range(2)]
    common.print_table("a table", rows)
    out = capsys.readouterr().out
    assert all(len(line.rstrip()) <= width for line in out.splitlines())
    for row in rows:
        assert all(value in out for value in row.values())
    assert all(name in out for name in names[1:])
