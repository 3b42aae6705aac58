"""Interrupts that come at awkward moments."""

import subprocess
import sys


def test_what_a_library_makes_of_an_interrupt_is_told_as_the_interrupt(tmp_path):
    """A reader of files that is interrupted may say that the file is damaged."""
    script = """
import os, signal, sys
from fedpriv.cli import main, train
from fedpriv.util.errors import UserError
def work(**named):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except KeyboardInterrupt:
        raise UserError("x.safetensors: damaged") from None
train.fedpriv.train = work
main.entry(["train", "--out", sys.argv[1]])
"""
    found = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "run"], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr.strip().splitlines()[-1]) == (130, "fedpriv: interrupted")


def test_an_interrupt_that_passed_through_an_exec_does_not_kill_in_the_end(tmp_path):
    """Python dies of SIGINT in the place of its exit code where it remembers one: of ``python -m`` programs."""
    (tmp_path / "awkward.py").write_text(
        """
from fedpriv.cli import main, train
def work(**named):
    exec("raise KeyboardInterrupt")
train.fedpriv.train = work
main.entry(["train", "--out", "run"])
"""
    )
    command = [sys.executable, "-m", "awkward"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr.strip()) == (130, "fedpriv: interrupted")
