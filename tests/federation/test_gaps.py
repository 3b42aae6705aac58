"""A run whose list of files lost a line, or which lost a file of lines, is not gone on with."""

import pytest
from federations import small, train_small

from fedpriv.federation.run_directory import RunDirectory, refuse_gaps
from fedpriv.util.errors import UserError
from fedpriv.util.files import MARKER

CONFIG = small("fedproto", per_class=20, clients=3, rounds=2, capture="all")
LINES = ("metrics", "timings", "ledger", "captures", "truth/files")


@pytest.fixture
def run(tmp_path):
    return train_small(tmp_path / "run", CONFIG)[0]


def test_a_whole_run_has_no_gap_whatever_a_crash_left_behind_it(run):
    path = run.upload_path(3, 0)
    path.parent.mkdir()
    path.write_bytes(b"of a round that was not done")
    refuse_gaps(RunDirectory.open(run.path), 2)


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("lost", ["a line of the list", "the file"])
def test_lines_of_rounds_that_are_done_and_gone_are_missed(run, name, lost):
    if lost == "the file":
        (run.path / f"{name}.jsonl").unlink()
    else:
        marker = run.path / MARKER
        lines = marker.read_text().splitlines(keepends=True)
        last = max(n for n, line in enumerate(lines) if f'"{name}.jsonl", "sha256"' in line)
        marker.write_text("".join(lines[:last] + lines[last + 1 :]))
    with pytest.raises(UserError, match=rf"{name}\.jsonl: "):
        _go_on(RunDirectory.open(run.path))


def _go_on(run):
    run.cut_lines(2)
    refuse_gaps(run, 2)
