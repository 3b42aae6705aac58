"""Garbage collection in processes of our own: it does not look through what is imported, which stays anyway.

Python walks through all objects once in a while, most often while many are made. Importing torch and what stands on it
makes some hundred thousand, and in the smallest study the walks took 0.4 of 2.9 CPU seconds.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_own = False
"""Whether this process is ours to decide about."""


def spare_imports() -> None:
    """Leave what is there now, and what :func:`importing` brings, out of every later walk of this process.

    It is a setting of a whole process, so only processes of our own ask for it: the command and its workers.
    """
    global _own
    _own = True
    gc.freeze()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import within the block without a walk; in a process of somebody else's nothing is changed."""
    if not _own or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
