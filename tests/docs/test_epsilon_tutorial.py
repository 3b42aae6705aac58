"""The tutorial on a claimed epsilon: its commands say what its page says."""

import shlex
from pathlib import Path

import pytest

from fedpriv.cli.main import run as command
from fedpriv.eval.storage import load_privacy_audit

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
HERE = TUTORIALS / "is-my-epsilon-true"


def commands():
    lines = (HERE / "README.md").read_text().splitlines()
    return [shlex.split(line.removeprefix("$ fedpriv ")) for line in lines if line.startswith("$ fedpriv")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "verdict"), [(0, "contradicted"), (1, "not contradicted"), (2, "untested"), (3, "not contradicted")]
)
def test_the_commands_say_what_the_page_says(tmp_path, monkeypatch, place, verdict):
    monkeypatch.chdir(tmp_path)
    line = commands()[place]
    assert command(line) == 0
    assert load_privacy_audit(Path(line[-1])).verdict == verdict
