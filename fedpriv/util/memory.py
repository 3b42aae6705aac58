"""Memory: how much a process may still take, and the refusal of work that needs more, before anything is allocated."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from fedpriv.util.errors import UserError

_ROOT = Path("/")
_UNLIMITED = 1 << 60
"""What control groups of the first version say where there is no limit is more than this."""

_CPU_REFUSAL = "can't allocate memory"
"""What torch says on a CPU, in an error of no kind of its own."""


def free_memory(root: Path = _ROOT) -> int | None:
    """Return the bytes that this process may still take, or None where the system does not say.

    The least of what the machine has available, what its control group leaves, and what its limit of address space leaves.

    Args:
        root: folder under which ``proc`` and ``sys`` lie.
    """
    found = [
        _kilobytes(root / "proc/meminfo", "MemAvailable"),
        *(_left_in(group) for group in _groups(root)),
        _address_space_left(root),
    ]
    known = [max(0, number) for number in found if number is not None]
    return min(known) if known else None


def require(needed: int, what: str, fits: Callable[[int], str], *keys: str | int) -> None:
    """Refuse work that would take more memory than there is.

    Args:
        needed: bytes, a lower bound of what the work takes.
        what: that takes it, in words that begin a sentence.
        fits: from the free bytes to advice in words, what would fit.
        keys: the setting that is to blame, where one is.

    Raises:
        UserError: naming both sizes and what would fit.
    """
    free = free_memory()
    if free is not None and needed > free:
        told = f"{what} would take {in_words(needed)} of memory, and {in_words(free)} are free; {fits(free)}"
        raise UserError(told, keys=keys)


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
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")
    return isinstance(error, RuntimeError) and (
        _CPU_REFUSAL in str(error) or (torch is not None and isinstance(error, torch.cuda.OutOfMemoryError))
    )


def asked_for(error: BaseException) -> str:
    """Return in words what could not be had, where an error says so, with a leading blank; else nothing.

    >>> asked_for(RuntimeError("can't allocate memory: you tried to allocate 4294967296 bytes. Error code 12"))
    ' of 4 GiB'
    """
    found = re.search(r"allocate (\d+) bytes", str(error))
    worded = re.search(r"allocate ([\d.]+ [KMGTPE]iB)", str(error))
    return f" of {in_words(int(found[1]))}" if found else f" of {worded[1]}" if worded else ""


def _kilobytes(path: Path, name: str) -> int | None:
    """Return the bytes behind a name in a file of ``/proc``."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text(encoding="ascii", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return int(value.split()[0]) * 1024
    return None


def _groups(root: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Yield the control groups of this process, inner ones first: folder, files of limit and use, and a key of its cache."""
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines():
            number, controllers, inside = (*line.split(":", 2), "", "")[:3]
            if number == "0":
                top, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                top = root / "sys/fs/cgroup/memory"
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            else:
                continue
            own = top / inside.lstrip("/")
            # In a container the path is that of the host, and the group itself lies at the top.
            yield from ((folder, *names) for folder in (own, *own.parents) if folder == top or top in folder.parents)


def _left_in(group: tuple[Path, str, str, str]) -> int | None:
    """Return the rest of a control group's limit; files that the system could drop do not count as used."""
    folder, limit, use, cache = group
    with contextlib.suppress(OSError, ValueError):
        most = int((folder / limit).read_text(encoding="ascii"))
        if most < _UNLIMITED:
            used = int((folder / use).read_text(encoding="ascii"))
            return most - used + _cached(folder / "memory.stat", cache)
    return None  # no limit ("max"), or no such group


def _cached(path: Path, key: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    return 0


def _address_space_left(root: Path) -> int | None:
    """Return the rest of the process's own limit of address space, or None where it has none."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = _kilobytes(root / "proc/self/status", "VmSize")
    return None if most == resource.RLIM_INFINITY or used is None else most - used
