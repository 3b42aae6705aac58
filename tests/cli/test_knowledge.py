"""Knowledge on the command line: what is not granted is left out in one line, unless it was asked for by name."""

import json

import pytest
from command_line import call
from federations import DIGITS

SMALL = [*DIGITS, "--per-class", "20", "--clients", "4", "--partition", "iid", "--rounds", "2"]
QUICK = [*SMALL, "--targets", "3", "--iterations", "5", "--no-control"]
OWN = ["--public", "40", "--knowledge", "attacker_data=same_domain"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_by_default_the_attacker_owns_some_of_the_auxiliary(capsys):
    few = [*DIGITS, "--auxiliary", "0.5", "--per-class", "20", "--clients", "3", "--partition", "iid", "--rounds", "1"]
    command = ["attack", "--target", "prototype", "--attack", "pixels", *few, "--iterations", "2", "--json"]
    cards = []
    for more in ([], ["--knowledge", "attacker_data=none"], ["--auxiliary", "0"]):
        code, out, _ = call(capsys, *command, *more, "--out", f"r{len(cards)}")
        assert code == 0
        cards.append(json.loads(out)["attacks"]["pixels"]["knowledge"]["attacker_data"])
    assert cards == ["same_domain", "none", "none"]


def test_attacks_that_the_card_does_not_grant_are_left_out_in_one_line(capsys):
    code, out, err = call(capsys, "attack", "--target", "representation", *QUICK, "--json", "--out", "r")
    assert code == 0
    assert "decoder" not in json.loads(out)["attacks"]
    assert "dip" in json.loads(out)["attacks"]
    assert len([line for line in err.splitlines() if line.startswith("left out: attack 'decoder' needs")]) == 1


def test_inversions_run_through_a_shadow_extractor(capsys):
    arguments = ["attack", "--target", "prototype", *QUICK, *OWN, "--knowledge", "extractor=shadow"]
    code, out, _ = call(capsys, *arguments, "--attack", "pixels", "--attack", "decoder", "--json", "--out", "r")
    assert code == 0
    records = json.loads(out)["attacks"]
    assert set(records) == {"pixels", "decoder"}
    assert all(record["knowledge"]["extractor"] == "shadow" for record in records.values())
