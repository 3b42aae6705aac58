"""The script that runs the suite as other machines would: its reading of bounds and reports, and its exit codes."""

import portability
import pytest


def test_bounds_are_pinned_once_with_their_extras():
    project = {
        "dependencies": ["torch>=2.6", "scipy >= 1.11.2"],
        "optional-dependencies": {
            "dp": ["opacus>=1.5"],
            "test": ["opacus>=1.5", "x[y]>=1"],
            "dev": ["me[test]", "selenium>=0.6"],
        },
    }
    assert portability.bounds(project) == ["torch==2.6", "scipy==1.11.2", "opacus==1.5", "x[y]==1", "selenium==0.6"]


def test_a_dependency_without_a_lower_bound_is_refused():
    with pytest.raises(ValueError, match="no lower bound to install in 'torch<3'"):
        portability.bounds({"dependencies": ["torch<3"], "optional-dependencies": {"dp": [], "test": []}})


def test_reports_are_counted_and_failures_named(tmp_path):
    cases = (
        '<testcase classname="tests.a.test_b" name="one"/>',
        '<testcase classname="tests.a.test_b" name="two"><failure/></testcase>',
        '<testcase classname="tests.a.test_b" name="two"><error/></testcase>',
        '<testcase classname="tests.a.test_b" name="three"><skipped/></testcase>',
    )
    path = tmp_path / "report.xml"
    path.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    found = portability.read_report(path, 1.0, 1)
    assert (found.passed, found.failed, found.skipped, found.names) == (1, 1, 1, ("a.test_b::two",))
    assert not found.fine
    assert not portability.read_report(tmp_path / "none.xml", 1.0, 0).fine


def test_every_sensitive_file_is_there():
    assert len(portability.sensitive()) == len(portability.SENSITIVE)


@pytest.mark.parametrize("name", ["warp", "lowest", "numpy"])
def test_a_variation_that_is_not_there_is_named(name, capsys):
    assert portability.main(["--only", name]) == 2
    assert f"no variation '{name}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "code", "line"), [("pass", 0, " 1      0       0"), ("assert 0", 1, " 0      1       0")]
)
def test_one_run_prints_one_line(tmp_path, capsys, body, code, line):
    (tmp_path / "test_it.py").write_text(
        f"import os\ndef test_it():\n    assert os.environ['OMP_NUM_THREADS'] == '2'\n    {body}\n"
    )
    arguments = ["--only", "threads", "--logs", str(tmp_path / "logs"), "--", str(tmp_path / "test_it.py")]
    assert portability.main(arguments) == code
    last = capsys.readouterr().out.splitlines()[-1]
    assert line in last
    assert ("test_it::test_it" in last) == bool(code)
    assert (tmp_path / "logs" / "threads.log").is_file()


def test_the_variations_are_listed(capsys):
    assert portability.main(["--list", "--lowest", "unused"]) == 0
    told = capsys.readouterr().out
    assert "sse41" in told
    assert "lowest" in told
