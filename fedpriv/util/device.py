"""The device on which tensors are computed: one name for it, checked once."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from fedpriv.util.errors import UserError
from fedpriv.util.escape import one_line

if TYPE_CHECKING:
    import torch


def pick_device(name: str) -> torch.device:
    """Return the device of ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``; have it repeat itself.

    On a CPU that takes one thread, in which sums come out the same on every run; two on a busy two-core machine were
    measured several times slower. On a GPU it takes operations that add in a fixed order, and products in float32: torch
    computes convolutions there in TF32 by default (10 bits of mantissa), and an update so rounded is not what attacks
    derive. Both hold for the process from then on.
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
        _have_gpus_repeat_themselves()
    return device


def _have_gpus_repeat_themselves() -> None:
    """Have every operation that can add in a fixed order, in float32; torch warns of those that cannot."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first product is computed
    torch.set_deterministic_debug_mode("warn")  # as use_deterministic_algorithms, which imports the compiler: seconds
    # Nothing here reads memory that it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = False
    # Sums along an axis that is not the only one are taken in order, whatever torch says of the others.
    warnings.filterwarnings("ignore", message="cumsum_cuda_kernel does not have a deterministic implementation")
