"""Memory that is freed stays with the process, for what it asks for next.

The C library of Linux gives the end of its heap, and every larger block, back to the system at once. A search that makes
and drops the same tensors thousands of times then spends up to a third of its time on the system's handing out the same
empty pages again and again (measured on L-BFGS searches for the gradients of the 4-layer CNN).
"""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Parameters of mallopt(3)."""

_KEPT, _AHEAD, _LARGEST = 2**31 - 1, 64 * 2**20, 32 * 2**20
"""Bytes at the end of the heap up to which none is given back, asked for beyond what is needed, and the largest blocks that
come from the heap; larger ones go back to the system as before (glibc takes no more than this)."""


def keep_freed_memory() -> bool:
    """Have this process keep what it frees, unless its environment says how memory is handed out; return whether it does.

    It is a setting of a whole process, so only processes of our own ask for it: the command and its workers.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    settings = ((_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, _AHEAD))
    try:
        adjust = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all(adjust(name, value) == 1 for name, value in settings)
