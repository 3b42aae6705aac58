"""A little of the campaign of ``benchmarks/faults/hostile.py``: random command lines and damaged files."""

import pytest
from hostile import campaign, world

pytestmark = pytest.mark.hostile


def test_random_command_lines_and_damaged_files_end_as_they_should():
    with world() as folder:
        lines, files = (campaign(kind, trials, 8, folder) for kind, trials in (("lines", 30), ("files", 20)))
    assert lines.failures + files.failures == []
    assert lines.codes[0] >= 1
    assert files.codes[0] >= 3
    assert lines.codes[2] > 8
    assert files.codes[2] > 5
