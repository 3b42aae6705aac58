"""``fedpriv compare``: results by name, settings that differ, and what is not compared."""

import json

import pytest
from command_line import call
from eval_cases import firsts, reconstruction, stored_attack, truths

import fedpriv
from fedpriv.attacks.observation import ThreatModel

SECRETS = truths([1] * 6)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("compared")
    seen = firsts(SECRETS)
    shuffled = reconstruction(seen.flip(0), per_client=1)
    sharp, blurred = 0.9 * seen + 0.05, 0.3 * seen + 0.35
    stored_attack(home / "a" / "dip", sharp, SECRETS, shuffled=shuffled)
    stored_attack(home / "a" / "pixels", sharp, SECRETS)
    stored_attack(home / "b" / "dip", blurred, SECRETS, options={"iterations": 7})
    stored_attack(home / "b" / "decoder", blurred, SECRETS)
    stored_attack(home / "c" / "dip", sharp, SECRETS, knowledge=ThreatModel(extractor="query"))
    return home


def test_results_of_one_name_are_compared_and_others_named(home):
    found = fedpriv.compare(home / "a", home / "b")
    (row,) = found.table()
    before, after = (json.loads((home / one / "dip" / "metrics.json").read_text()) for one in "ab")
    means = [own["metrics"]["psnr_db"]["mean"] for own in (before, after)]
    assert (row["name"], row["quantity"]) == ("dip", "PSNR")
    assert [row["before"], row["after"]] == pytest.approx(means)
    assert row["difference"] == pytest.approx(means[1] - means[0])
    assert row["low"] < row["difference"] < row["high"] < 0
    assert row["verdict"] == "leaks less"
    assert (found.only_before, found.only_after) == (("pixels",), ("decoder",))
    assert "options.iterations: not set -> 7" in found.settings
    assert str(found).endswith("of 1 differences 1 is told from noise (95 %, tested together): dip leaks less")


def test_a_result_and_itself_differ_in_nothing(home):
    found = fedpriv.compare(home / "a", home / "a")
    assert {row["verdict"] for row in found.rows} == {"not told from noise"}
    assert found.settings == ()
    assert str(found) == "both are the same: 2 results, with equal figures"
    assert not fedpriv.compare(home / "a", home / "b").same


def test_other_knowledge_is_not_compared(home):
    found = fedpriv.compare(home / "a", home / "c")
    (row,) = found.rows
    assert row["verdict"] == "not compared: under different threat models"
    assert row["difference"] is None
    assert found.settings == ("knowledge.extractor: white_box -> query",)


def test_the_command_prints_a_table_json_and_the_last_line(home, capsys):
    code, out, _ = call(capsys, "compare", str(home / "a"), str(home / "b"))
    assert code == 0
    assert "only in the first: pixels" in out
    assert "leaks less" in out
    code, quiet, _ = call(capsys, "compare", str(home / "a"), str(home / "b"), "--quiet")
    assert quiet == out.splitlines()[-1] + "\n"
    code, told, _ = call(capsys, "compare", str(home / "a"), str(home / "b"), "--json")
    assert json.loads(told)["rows"][0]["verdict"] == "leaks less"
