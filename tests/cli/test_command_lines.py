"""Random command lines and study files, some of the campaign that ``benchmarks/faults/command_lines.py`` is."""

import pytest
from command_lines import ground, lines, studies
from line_trials import Outcome
from line_world import make


@pytest.fixture(scope="module")
def place():
    with ground() as home:
        yield home, make(home / "world")


def test_random_command_lines_end_as_they_should(place):
    tally = lines(60, 8, *place)
    assert tally.faults == []
    assert tally.ones == []
    assert tally.codes["0"] >= 2
    assert tally.codes["2"] > 20


def test_random_study_files_end_as_they_should(place):
    tally = studies(30, 8, *place, real=0.02)
    assert tally.faults == []
    assert tally.ones == []
    assert tally.codes["0"] >= 1
    assert tally.codes["2"] > 10


@pytest.mark.parametrize(
    ("outcome", "fault"),
    [
        (Outcome(3, "", "fedpriv: x\n", 1), "exit code 3"),
        (Outcome(0, "", "fedpriv: x\n", 1), "exit code 0 with 'fedpriv: x'"),
        (Outcome(2, "", "", 1), "0 lines of its own, the last: ''"),
        (Outcome(2, "", "fedpriv: x\nfedpriv: y\n", 1), "2 lines of its own, the last: 'fedpriv: y'"),
        (Outcome(2, "", "fedpriv: x\nand more\n", 1), "1 lines of its own, the last: 'and more'"),
        (Outcome(0, "", "lib.py:1: UserWarning: odd\n", 1), "a line of a library: 'lib.py:1: UserWarning: '"),
        (Outcome(1, "Traceback (most recent call last)\n", "fedpriv: x\n", 1), "a line of a library: 'Traceback"),
        (Outcome(130, "", "fedpriv: interrupted\n", 70, hung=True), "said nothing for 60 s"),
        (Outcome(None, "", "", 1, escaped="SystemExit: 2"), "an exception came out: SystemExit: 2"),
        (Outcome(0, "", "", 9, interrupted=True), "exit code 0 after an interrupt"),
    ],
)
def test_every_wrong_end_is_seen(outcome, fault):
    found = outcome.faults("train")
    assert len(found) == 1
    assert found[0].startswith(fault)


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("train", Outcome(0, "done\n", "training: done in 1 s\n", 1)),
        ("train", Outcome(2, "", "training\nfedpriv: x\n", 1)),
        ("audit", Outcome(1, "", "fedpriv: a cell failed\nfedpriv: another\nreport: x\n", 1)),
        ("train", Outcome(130, "", "fedpriv: interrupted\n", 9, interrupted=True)),
    ],
)
def test_right_ends_are_left_alone(command, outcome):
    assert outcome.faults(command) == []
