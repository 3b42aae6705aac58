"""Where and how tensors are computed: the device, its arithmetic, and the memory that is free."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.util.errors import UserError
from fedpriv.util.escape import one_line

if TYPE_CHECKING:
    import torch


def pick_device(name: str) -> torch.device:
    """Return the device of ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``; have it repeat itself.

    From then on a CPU computes in one thread, and a GPU by operations that add in a fixed order, with products in float32:
    torch's own default there is TF32 (10 bits of mantissa), and an update so rounded is not what attacks derive.
    """
    import torch

    torch.set_num_threads(1)
    _keep_freed_memory()
    available = torch.cuda.is_available()
    if name == "auto":
        name = "cuda" if available else "cpu"
    try:
        device = torch.device(name) if isinstance(name, str) else None
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UserError(f"device {one_line(str(name))}: unknown device; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        if not available:
            raise UserError(f"device {name}: no CUDA device is usable here; use cpu")
        if (device.index or 0) >= torch.cuda.device_count():
            raise UserError(f"device {name}: this machine has {torch.cuda.device_count()} CUDA device(s), from cuda:0")
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first product is computed
        # As use_deterministic_algorithms, which imports the compiler: seconds.
        torch.set_deterministic_debug_mode("warn")
        # Nothing here reads memory that it has not written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = False
        # Sums along an axis that is not the only one are taken in order, whatever torch says of the others.
        warnings.filterwarnings("ignore", message="cumsum_cuda_kernel does not have a deterministic implementation")
    return device


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt, in malloc.h


@cache
def _keep_freed_memory() -> None:
    """Have glibc keep up to 1 GiB that is freed, and serve blocks below 32 MiB from it; do nothing under another library.

    A search takes and frees the same memory at every step. Handed back to the system, each of its pages is cleared anew,
    which can take twice the time of the search.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for parameter, value in ((_TRIM_THRESHOLD, 1 << 30), (_MMAP_THRESHOLD, 32 << 20)):
            library.mallopt(parameter, value)


@contextlib.contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """Compute products and convolutions on a GPU in float32 within the block, and so that a search repeats itself."""
    import torch

    if device.type != "cuda":
        yield
        return
    convolutions = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), convolutions.allow_tf32, convolutions.deterministic
    torch.set_float32_matmul_precision("highest")
    convolutions.allow_tf32, convolutions.deterministic = False, True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        convolutions.allow_tf32, convolutions.deterministic = before[1:]


def free_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process may still take by machine and control groups; None where no system says."""
    left = [_number(root / "proc/meminfo", "MemAvailable:", 1024), *_left_in_groups(root)]
    return min((max(0, number) for number in left if number is not None), default=None)


def require(needed: int, what: str, fits: Callable[[int], str], *keys: str | int) -> None:
    """Refuse work that takes more bytes than are free; ``fits`` says what would fit, ``keys`` are the setting to blame."""
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
    on_gpu = torch is not None and isinstance(error, torch.cuda.OutOfMemoryError)
    on_cpu = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return on_gpu or on_cpu or isinstance(error, MemoryError)


def _number(path: Path, name: str = "", unit: int = 1) -> int | None:
    """Return the first number of a file, or the one behind a name at the beginning of a line; None without."""
    with contextlib.suppress(OSError):
        result = re.search(rf"^{name}\s*(\d+)", path.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
        return int(result[1]) * unit if result else None
    return None


def _left_in_groups(root: Path) -> Iterator[int]:
    """Yield what the control groups around this process leave; files that the system could drop do not count as used."""
    top, inside = root / "sys/fs/cgroup", ""
    with contextlib.suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
        inside = next((line[3:].lstrip("/") for line in lines if line.startswith("0::")), "")
    # In a container the path is that of the host, and the group itself lies at the top.
    for folder in (top / inside, *(top / inside).parents):
        most, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if most is not None and used is not None:
            yield most - used + (_number(folder / "memory.stat", "inactive_file") or 0)
