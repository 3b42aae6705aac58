"""A process keeps what it frees, unless its user decided otherwise."""

import subprocess
import sys

import pytest

CODE = """
import resource, torch
from fedpriv.util.kept_memory import keep_freed_memory
print(keep_freed_memory())
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        several = [torch.ones(2**20) for _ in range(4)]  # 16 MiB, freed together
        del several
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def outcome(**environment):
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env={"PATH": "", **environment}
    )
    says, faults = done.stdout.split()
    return says == "True", int(faults)


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of the C library of Linux")
def test_freed_memory_is_handed_out_again_without_the_system():
    kept, faults = outcome()
    if not kept:
        pytest.skip("this C library has no such setting")
    assert faults < 2000  # of 80,000 pages that are written to


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of the C library of Linux")
def test_whoever_says_how_memory_is_handed_out_is_obeyed():
    kept, faults = outcome(MALLOC_MMAP_THRESHOLD_="1000000", MALLOC_TRIM_THRESHOLD_="1000000")
    assert not kept
    assert faults > 2000
