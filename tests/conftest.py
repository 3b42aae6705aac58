"""Shared by all tests: threads of sums, where draws begin, small hypothesis budgets, failures in few lines."""

import gc
import os
import shutil
import tempfile
from pathlib import Path

import federations
import pytest
import torch
from hypothesis import settings

from fedpriv.util import parallel

# One thread unless OMP_NUM_THREADS names another count.
THREADS = torch.get_num_threads() if os.environ.get("OMP_NUM_THREADS") else 1

settings.register_profile("quick", max_examples=25, deadline=None)
settings.load_profile("quick")
torch.set_printoptions(threshold=4, edgeitems=1)


def pytest_configure(config):
    cache = getattr(config, "cache", None)  # none with -p no:cacheprovider
    home = Path(cache.mkdir("federations") if cache else tempfile.mkdtemp())
    federations.LIBRARY = home / federations.sources()
    if not federations.LIBRARY.is_dir():
        for old in {*home.iterdir()} - {federations.LIBRARY}:
            shutil.rmtree(old, ignore_errors=True)
        federations.LIBRARY.mkdir(exist_ok=True)


def pytest_collection_modifyitems(items):
    for item in items:
        if "driver" in item.fixturenames:
            item.add_marker(pytest.mark.browser)


def pytest_collection_finish():
    gc.freeze()  # thousands of tests and what they import stay to the end, and need not be looked through for garbage


def pytest_runtest_setup():
    torch.set_num_threads(THREADS)  # before every test, since commands under test set it for their process
    torch.default_generator.manual_seed(0x5EED)  # what a test draws without a generator hangs on no other test


# Attacks and studies of tests are short, and tests run side by side: no workers unless a test asks for some.
parallel.PATIENCE = 1e6

torch.set_num_threads(THREADS)  # for what modules compute when they are collected
