"""The gate: exit codes and JUnit XML by answers, from the shell, from Python, as a fixture and as the action's steps."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from eval_cases import FOUND, asked, but, compared

import fedpriv
from fedpriv.cli.main import run as command
from fedpriv.eval.answers import page_answers
from fedpriv.eval.endpoints import ENDPOINTS
from fedpriv.eval.gate import gate
from fedpriv.eval.records import Premise
from fedpriv.eval.storage import write_record
from fedpriv.util import files

LEAK = compared("membership", mean=0.2, p_value=1e-6, least=0.05, ci95=(0.15, 0.25))
NONE = compared("membership", mean=0.0, p_value=0.9, least=0.05, ci95=(-0.01, 0.01))
OPEN = compared("membership", mean=0.0, p_value=0.5, least=0.05, ci95=(-0.2, 0.2))
CASES = {"leak": (LEAK, 3), "pass": (NONE, 0), "inconclusive": (OPEN, 4)}


def membership(comparison):
    """A record of membership with this comparison, by an attack that is able."""
    return asked(n_clients=10, comparisons=(comparison,), planted=but(FOUND, least=0.05), control=0.5)


def stored(home, comparison):
    """A folder with such a record."""
    home.mkdir(parents=True)
    files.mark(home, "scores")
    write_record(home, membership(comparison))
    return home


@pytest.mark.parametrize("status", CASES)
def test_exit_codes_and_junit_follow_from_the_answers(tmp_path, capsys, status):
    comparison, code = CASES[status]
    home = stored(tmp_path / "membership", comparison)
    report = tmp_path / "junit.xml"
    arguments = ["check", str(home), "--fail-on", "leak:membership", "--junit", str(report)]
    assert command(arguments) == code
    assert f"check: {status}" in capsys.readouterr().out
    suite = ElementTree.parse(report).getroot()
    # Under the protocol alone nothing was asked, which is no answer.
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == (
        *("1", str(int(status == "leak"))),
        str(int(status == "inconclusive")),
    )
    outcome = fedpriv.check(home, fail_on="leak:membership")
    assert (outcome.status, outcome.exit_code) == (status, code)


def test_an_endpoint_that_no_attack_was_run_on_is_not_passed(tmp_path):
    home = stored(tmp_path / "membership", NONE)
    outcome = fedpriv.check(home)
    assert outcome.status == "inconclusive"
    assert len(outcome.missing) == len(ENDPOINTS) - 1


def test_a_leak_elsewhere_does_not_count(tmp_path):
    answers = page_answers({"membership": membership(LEAK)})
    assert gate(answers, ["membership"]).status == "leak"
    assert gate(answers, ["property"]).status == "inconclusive"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fail-on", "leek"], "expected leak"),
        (["--fail-on", "leak:members"], "membership"),
        (["--junit", "membership.json/file.xml"], "membership.json"),
    ],
)
def test_wrong_use_is_one_line(tmp_path, capsys, arguments, said, monkeypatch):
    home = stored(tmp_path / "membership", NONE)
    monkeypatch.chdir(home)
    assert command(["check", str(home), *arguments]) == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1


def test_uploads_that_were_handed_in_are_judged_apart(tmp_path):
    agrees = Premise(status="agrees")
    for name, comparison in {"mine": LEAK, "other": OPEN}.items():
        home = tmp_path / name / "membership"
        home.mkdir(parents=True)
        files.mark(home, "scores")
        write_record(home, but(membership(comparison), premise=agrees))
    outcome = fedpriv.check([tmp_path / "mine", tmp_path / "other"], fail_on="leak:membership")
    assert outcome.status == "leak"
    assert [answer.verdict for answer in outcome.answers] == ["leak", "inconclusive"]


def test_what_cannot_be_read_does_not_pass(tmp_path):
    home = stored(tmp_path / "results" / "membership", NONE)
    (home / "membership.json").write_text("{")
    assert command(["check", str(tmp_path / "results")]) == 2
    assert command(["check", str(tmp_path / "nothing")]) == 2


TEST = """
import fedpriv

def test_it(assert_no_leak):
    assert_no_leak({folder!r}, "leak:membership")
"""


@pytest.mark.parametrize(
    ("status", "options", "outcome"),
    [
        ("leak", [], "1 failed"),
        ("pass", [], "1 passed"),
        ("inconclusive", [], "1 skipped"),
        ("inconclusive", ["--fedpriv-inconclusive=fail"], "1 failed"),
    ],
)
def test_the_fixture_has_three_outcomes(tmp_path, status, options, outcome):
    home = stored(tmp_path / "membership", CASES[status][0])
    file = tmp_path / "test_gate.py"
    file.write_text(TEST.format(folder=str(home)))
    arguments = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(file), "-c", "/dev/null", *options]
    if "fedpriv" not in {e.name for e in _plugins()}:
        arguments += ["-p", "fedpriv.integrations.pytest_plugin"]
    assert outcome in subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=tmp_path).stdout


def test_the_fixture_takes_what_a_guard_found(request):
    if "fedpriv" not in {point.name for point in _plugins()}:
        pytest.skip("fedpriv is not installed, and its fixture not there")
    assert_no_leak = request.getfixturevalue("assert_no_leak")

    def found(status):
        return fedpriv.GuardResult(status, (), (), n_images=1, came_back=0, iterations=0, seconds=0.1)

    assert_no_leak(found("pass"))
    with pytest.raises(pytest.fail.Exception, match="guard: leak"):
        assert_no_leak(found("leak"))
    with pytest.raises(pytest.skip.Exception, match="guard: inconclusive"):
        assert_no_leak(found("inconclusive"))
    with pytest.raises(fedpriv.UserError, match="fail_on="):
        assert_no_leak(found("pass"), "leak:membership")
    with pytest.raises(fedpriv.UserError, match="read its status"):
        fedpriv.check(found("pass"))


def _plugins():
    from importlib.metadata import entry_points

    return entry_points(group="pytest11")


@pytest.mark.parametrize("status", CASES)
def test_the_steps_of_the_action_run_as_a_script(tmp_path, status):
    file = Path(__file__).parents[2] / "docs" / "action.yml"
    if not file.is_file():
        pytest.skip("docs/action.yml is not beside these tests")
    steps = yaml.safe_load(file.read_text())["runs"]["steps"]
    comparison, code = CASES[status]
    home = stored(tmp_path / "membership", comparison)
    inputs = {"SCRIPT": "true", "RESULTS": str(home), "FAIL_ON": "leak:membership"}
    assert {name for step in steps for name in step.get("env", {})} == set(inputs)
    script = "\n".join(step["run"] for step in steps[1:])  # without the installation
    import os

    environment = {**os.environ, **inputs, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-e", "-c", script], env=environment, cwd=tmp_path, check=False)
    assert done.returncode == code
    assert (tmp_path / "fedpriv.xml").is_file()
