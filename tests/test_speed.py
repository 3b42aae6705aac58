"""``benchmarks/speed.py`` runs both sides in turns and prints their ratio."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "speed.py"


def run(*arguments):
    return subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_case_stands_beside_another_checkout_and_beside_ordinary_code():
    for arguments in (("dlg lenet-sigmoid, 1", "--base", str(PROGRAM.parents[1])), ("dip cnn4, 1", "--peer")):
        done = run(*arguments, "--pairs", "2")
        assert done.returncode == 0, done.stderr
        low, middle, high = map(float, done.stdout.splitlines()[-1].strip("| ").split(" | ")[-1].split("-"))
        assert 0.2 < low <= middle <= high < 5


def test_wrong_use_says_what_there_is():
    done = run("no-such-case")
    assert done.returncode == 1
    assert "dip cnn4, 8 targets" in done.stderr
