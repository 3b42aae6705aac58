"""Memory: how much a process may still take, and the refusal of work that needs more, before anything is allocated."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from fedpriv.util.errors import UserError


def free_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process may still take, or None where the system does not say.

    The least of what the machine has available and what the control groups (version 2) leave; ``proc`` and ``sys`` lie
    under ``root``.
    """
    left = [_number(root / "proc/meminfo", "MemAvailable:", 1024), *_left_in_groups(root)]
    return min((max(0, number) for number in left if number is not None), default=None)


def require(needed: int, what: str, fits: Callable[[int], str], *keys: str | int) -> None:
    """Refuse work that takes at least so many bytes where fewer are free; ``fits`` says what would fit in the free ones.

    ``what`` begins the sentence; ``keys`` are the setting that is to blame, where one is.
    """
    free = free_memory()
    if free is not None and needed > free:
        message = f"{what} would take {in_words(needed)} of memory, and {in_words(free)} are free; {fits(free)}"
        raise UserError(message, keys=keys)


def in_words(number: int) -> str:
    """Return a number of bytes as a person reads it.

    >>> in_words(1536), in_words(33_554_432_000), in_words(10**30)
    ('1.5 KiB', '31.2 GiB', '8.27e+05 YiB')
    """
    size, units = float(number), ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.3g} {units[0]}"


def ran_out(error: BaseException) -> bool:
    """True for an error that says that memory ran out, on whatever device."""
    torch = sys.modules.get("torch")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and (
            "can't allocate memory" in str(error)
            or (torch is not None and isinstance(error, torch.cuda.OutOfMemoryError))
        )
    )


def _number(path: Path, name: str = "", unit: int = 1) -> int | None:
    """Return the first number of a file, or the one behind a name at the beginning of a line; None without."""
    with contextlib.suppress(OSError):
        result = re.search(rf"^{name}\s*(\d+)", path.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
        return int(result[1]) * unit if result else None
    return None


def _left_in_groups(root: Path) -> Iterator[int]:
    """Yield what the control groups around this process leave; files that the system could drop do not count as used."""
    top = root / "sys/fs/cgroup"
    inside = ""
    with contextlib.suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
        inside = next((line[3:].lstrip("/") for line in lines if line.startswith("0::")), "")
    # In a container the path is that of the host, and the group itself lies at the top.
    for folder in (top / inside, *(top / inside).parents):
        most, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if most is not None and used is not None:
            yield most - used + (_number(folder / "memory.stat", "inactive_file") or 0)
