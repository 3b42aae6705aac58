"""The number of processes that are worth having on this machine, and when."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.util.arguments import argument
from fedpriv.util.device import pick_device
from fedpriv.util.errors import UserError
from fedpriv.util.memory import free_memory

if TYPE_CHECKING:
    import torch

PATIENCE = 10.0
"""Seconds that work must have taken before another process is worth its price, some three seconds of a core."""

MEMORY = 2 << 30
"""Bytes that a process may come to need; the suite on mixtures was measured at 1.2 GiB."""

SHARING, CARD_MEMORY = 8, 4 << 30
"""Most processes that share a GPU, and bytes of its memory for each. At the default sizes a search keeps a core busy with
asking and a large card mostly idle: among fifteen other processes on one, the first page's command took 98 s."""


def number_of_workers(asked: int | str, device: str, most: int | None = None) -> int:
    """Return the number of processes, this one included.

    Args:
        asked: a number, or ``auto``: as many as there are cores and memory for, of a GPU too, which eight share at most.
        device: a name of ``--device``.
        most: more than these would have nothing to do; None where that is not known.

    Raises:
        UserError: for anything else.
    """
    if str(asked) == "auto":
        place = pick_device(device)
        number = min(_cores(), _fitting(), *([_sharing(place)] if place.type == "cuda" else []))
    else:
        try:
            number = int(asked)
        except ValueError:
            number = 0
        if number < 1 or isinstance(asked, bool):
            raise UserError(f"{argument('workers', asked)}: expected auto or a whole number of at least 1")
    return max(1, number if most is None else min(number, most))


def patience_for(asked: int | str, suites: int = 1) -> float:
    """Return the seconds that one process works alone before others are started: none where a number was asked for.

    Of several suites that are carried out together it is known beforehand that they take longer.
    """
    return PATIENCE / suites if str(asked) == "auto" else 0.0


def _sharing(card: torch.device) -> int:
    """Return the number of processes that a GPU has room for."""
    import torch

    return max(1, min(SHARING, torch.cuda.mem_get_info(card)[0] // CARD_MEMORY))


def _cores() -> int:
    """Return the number of cores that this process may use: of the machine, less where it is bound or rationed."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return min(bound, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or no ration ("max")
        return bound


def _fitting() -> int:
    """Return the number of processes that the free memory is enough for, this one not counted in."""
    free = free_memory()
    return os.cpu_count() or 1 if free is None else 1 + free // MEMORY
