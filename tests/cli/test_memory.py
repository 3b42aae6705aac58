"""Work that is too large for the machine: refused in one line before it starts, or ended in one."""

import subprocess
import sys

import pytest
import torch
from command_line import call, words
from federations import DIGITS
from looped import each

from fedpriv.cli import train
from fedpriv.util import memory

GIB = 1 << 30
SMALL = [*DIGITS, "--per-class", "12", "--clients", "2", "--partition", "iid", "--rounds", "1", "--models", "small-mlp"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refused(capsys, *arguments):
    """Run a command that is refused; return its line."""
    code, _, err = call(capsys, *arguments)
    assert code == 2, err
    (line,) = err.splitlines()
    return line


KIB = 1 << 10


# Free memory is what tests say: so little that what is refused would be small, too.
@each(
    "free, flags, said",
    [
        (
            7 * GIB,
            ["--image-size", "4096"],
            "data set 'digits': 120 images of 1 x 4096 x 4096 would take 7.5 GiB of memory,",
        ),
        (
            200 * KIB,
            ["--image-size", "16"],
            "dividing data set 'digits', 120 images of 1 x 16 x 16, would take 240 KiB",
        ),
    ],
)
def test_training_beyond_memory_is_refused_and_leaves_nothing(capsys, monkeypatch, tmp_path, free, flags, said):
    monkeypatch.setattr(memory, "free_memory", lambda: free)
    line = refused(capsys, "train", "--out", "run", *SMALL, *flags, "--device", "cpu")
    assert said in line
    assert "would fit" in line
    assert not (tmp_path / "run").exists()


def test_counting_needs_no_pixels():
    code = """
import resource
from fedpriv.cli.main import run
assert run(["cost", "--dataset", "digits", "--image-size", "64", "--models", "small", "--quiet"]) == 0
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for line in (
    ["cost", "--dataset", "digits", "--image-size", "4096", "--models", "small", "--clients", "20", "--alpha", "1"],
    ["cost", "--classes", "10", "--image-size", "4096", "--models", "small", "--mapping", "fc", "--width", "65536"],
    ["cost", "--method", "all", "--classes", "10", "--models", "small", "--clients", "1000000000000"],
    ["data", "--dataset", "digits", "--image-size", "4096", "--alpha", "1", "--out", "held"],
):
    assert run([*line, "--quiet"]) == 0, line
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200_000  # kilobytes; the images would take 28 GB


def test_an_attack_whose_rows_do_not_fit_is_refused(capsys, monkeypatch):
    assert call(capsys, "train", "--method", "fedgh", *SMALL, "--out", "run", "--quiet")[0] == 0
    monkeypatch.setattr(memory, "free_memory", lambda: GIB // 4)
    attack = words("attack --run run --target prototype --attack dip --device cpu --out found")
    line = refused(capsys, *attack, "--quiet", "--restarts", "1000000")
    assert "6 targets with 1,000,000 restarts each would take" in line
    assert "; restarts=98112 would fit" in line
    monkeypatch.setattr(memory, "free_memory", lambda: 200_000_000)
    line = refused(capsys, *attack, "--quiet", "--force", "--restarts", "10", "--chunk-rows", "50")
    assert "50 rows of an attack (targets x restarts) at a time would take" in line
    assert "chunk_rows=11 would fit" in line


@each(
    "error",
    [
        RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4294967296 bytes. Error code 12"
        ),
        MemoryError("Unable to allocate 4.00 GiB for an array"),
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 4 GiB."),
    ],
)
def test_memory_that_runs_out_ends_in_one_line(capsys, monkeypatch, error):
    def fail(**named):
        raise error

    monkeypatch.setattr(train.fedpriv, "train", fail)
    code, _, err = call(capsys, "train", *SMALL, "--out", "run")
    assert code == 1
    (line,) = err.splitlines()
    assert line.startswith("fedpriv: out of memory: there is no room for another tensor of 4")
    assert "reduce chunk_rows, workers" in line
