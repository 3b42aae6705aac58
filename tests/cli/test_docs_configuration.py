"""The configuration files that the documentation shows are those beside it, and commands take them."""

import json
import re
from pathlib import Path

import pytest
from command_line import words
from federations import DIGITS
from looped import each

from fedpriv.attacks.observation import ThreatModel
from fedpriv.cli.main import run
from fedpriv.experiment.federation_settings import FederationSettings
from fedpriv.experiment.verbs.attacking import AttackSettings

DOCS = Path(__file__).parents[2] / "docs"
QUICK = [*words("--targets 2"), *DIGITS, *words("--per-class 15 --clients 3 --rounds 2 --budget 2,4 --quiet")]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def text():
    if not (DOCS / "configuration.md").is_file():
        pytest.skip("docs/ is not beside the tests")
    return (DOCS / "configuration.md").read_text()


@each("settings", [FederationSettings, AttackSettings])
def test_the_page_names_every_setting(text, settings):
    assert {name for name in settings.__annotations__ if f"`{name.replace('_', '-')}`" not in text} == set()


@each("grant", sorted(ThreatModel.__annotations__.keys() - {"rounds_seen"}))
def test_the_page_names_every_grant(text, grant):
    assert f"| `{grant}` |" in text


@each("name", ["example-train.toml", "example-attack.toml"])
def test_the_page_shows_the_file(text, name):
    shown = re.search(rf"\[{name}\]\({name}\):\n\n```toml\n(.*?)```", text, re.DOTALL)
    comment, _, body = (DOCS / name).read_text().partition("\n")
    assert shown is not None
    assert shown[1] == body
    assert comment.startswith("# fedpriv ")


def test_a_run_is_trained_as_the_file_says(text, tmp_path):
    arguments = ["--config", str(DOCS / "example-train.toml"), *DIGITS, *words("--rounds 2 --clients 3 --per-class 15")]
    assert run(["train", *arguments, "--keep", "1", "--quiet"]) == 0
    config = json.loads((tmp_path / "runs" / "example" / "config.json").read_text())
    assert (config["method"], config["training"]["learning_rate"]) == ("fedre", 0.05)
    assert (config["rounds"], config["keep"], config["options"]) == (2, [1], {"mechanism": "VAP"})


def test_an_attack_is_made_as_the_file_says(text, tmp_path):
    assert run(["attack", "--config", str(DOCS / "example-attack.toml"), *QUICK, "--no-control", "--out", "r"]) == 0
    request = json.loads((tmp_path / "r" / "request.json").read_text())
    assert request["results"] == ["dip@2", "dip@4", "pixels@2", "pixels@4"]
    assert request["attacks"]["dip"]["learning_rate"] == 0.01
    assert request["attacks"]["pixels"]["learning_rate"] == 0.3  # the file says nothing of it
    assert {options["patience"] for options in request["attacks"].values()} == {200}
    assert request["config"]["partition"]["alpha"] == 0.5
