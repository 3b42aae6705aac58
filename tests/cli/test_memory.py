"""Work that is too large for the machine: refused in one line before it starts, or ended in one."""

import pytest
from command_line import call, words
from federations import DIGITS
from looped import each

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
