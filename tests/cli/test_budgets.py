"""Budgets on the command line, and what tables do on a narrow terminal."""

import json

import pytest
from command_line import words
from federations import DIGITS

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


# ---------------------------------------------------------------- reports, scores, tables
