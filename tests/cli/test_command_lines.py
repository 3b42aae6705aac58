"""Random command lines and study files, some of the campaign that ``benchmarks/faults/command_lines.py`` is."""

import pytest
from command_lines import ground, lines, studies
from line_world import make

pytestmark = pytest.mark.hostile


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
