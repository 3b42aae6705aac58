"""The examples in docstrings give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

import fedpriv

HOME = Path(fedpriv.__file__).parent


def modules():
    for path in sorted(HOME.rglob("*.py")):
        if ">>>" in path.read_text(encoding="utf-8"):
            parts = ("fedpriv", *path.relative_to(HOME).with_suffix("").parts)
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("name", list(modules()))
def test_examples(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried
    assert not failed
