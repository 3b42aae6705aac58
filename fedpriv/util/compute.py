"""Where and how tensors are computed: the device, the arithmetic of a search, and the memory that is free."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from fedpriv.util.errors import UserError, shown
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
        torch.set_deterministic_debug_mode(
            "warn"
        )  # as use_deterministic_algorithms, which imports the compiler: seconds
        # Nothing here reads memory that it has not written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = False
        # Sums along an axis that is not the only one are taken in order, whatever torch says of the others.
        warnings.filterwarnings("ignore", message="cumsum_cuda_kernel does not have a deterministic implementation")
    return device


Precision = Literal["float32", "tf32", "bfloat16"]
"""float32 everywhere; products in TF32, which GPUs since Ampere have (10 bits of mantissa); or automatic mixed precision in
bfloat16 (7 bits). What a search found is judged in float32 in any case."""


@dataclass(frozen=True)
class Numerics:
    """The arithmetic of searches by Adam (``dip``, ``pixels``, ...); other attacks compute in float32."""

    precision: Precision = "float32"  # of the searches
    recorded: bool = True  # steps are replayed on a GPU, where that changes no bit

    def searching(self, device: torch.device) -> contextlib.AbstractContextManager[None]:
        """Compute an objective and its derivatives as a search does, within the block."""
        import torch

        coarse = self.precision == "bfloat16"
        return torch.autocast(device.type, torch.bfloat16) if coarse else contextlib.nullcontext()

    @contextlib.contextmanager
    def products(self, device: torch.device) -> Iterator[None]:
        """Set the arithmetic of products and convolutions on a GPU within the block: TF32 where asked, else float32.

        Convolutions add in a fixed order, so that a search repeats itself.
        """
        import torch

        if device.type != "cuda":
            yield
            return
        convolutions, coarse = torch.backends.cudnn, self.precision == "tf32"
        before = torch.get_float32_matmul_precision(), convolutions.allow_tf32, convolutions.deterministic
        torch.set_float32_matmul_precision("high" if coarse else "highest")
        convolutions.allow_tf32, convolutions.deterministic = coarse, True
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            convolutions.allow_tf32, convolutions.deterministic = before[1:]


FLOAT32 = Numerics()


def read_numerics(precision: str, device: torch.device) -> Numerics:
    """Return the arithmetic of a precision."""
    import torch

    where, gpu = f"precision={shown(precision)}", device.type == "cuda"
    if precision not in get_args(Precision):
        raise UserError(f"{where}: expected one of {', '.join(get_args(Precision))}")
    if precision == "tf32" and not gpu:
        raise UserError(f"{where}: only GPUs have TF32, and this computes on {device}; use float32 or bfloat16")
    if precision == "tf32" and torch.cuda.get_device_capability(device) < (8, 0):
        raise UserError(f"{where}: {torch.cuda.get_device_name(device)} has no TF32; use float32")
    if precision == "bfloat16" and gpu and not torch.cuda.is_bf16_supported():
        raise UserError(f"{where}: {torch.cuda.get_device_name(device)} has no bfloat16; use float32")
    return Numerics(precision)  # type: ignore[arg-type]


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
