"""A run that is trained once for all tests of commands that only read it, or a copy of it."""

import pytest
from federations import DIGITS

from fedpriv.cli.main import run


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Prototypes of four clients over two rounds."""
    path = tmp_path_factory.mktemp("trained") / "run"
    small = ["--per-class", "20", "--clients", "4", "--partition", "iid", "--rounds", "2"]
    assert run(["train", "--method", "fedgh", *DIGITS, *small, "--out", str(path), "--quiet"]) == 0
    return path
