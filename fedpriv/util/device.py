"""The device on which tensors are computed: one name for it, checked once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpriv.util.errors import UserError, shown

if TYPE_CHECKING:
    import torch


def pick_device(name: str) -> torch.device:
    """Return the device of ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``; have it repeat itself.

    On a CPU that takes one thread, in which sums come out the same on every run; two on a busy two-core machine were
    measured several times slower. On a GPU it takes convolutions that add in a fixed order, and in float32 throughout: by
    default torch computes them in TF32 (10 bits of mantissa), and an update so rounded is no longer what attacks derive.
    """
    import torch

    torch.set_num_threads(1)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cudnn.allow_tf32 = False
    available = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if available else "cpu")
    if not isinstance(name, str):
        raise UserError(f"device {shown(name)}: expected a text; use auto, cpu, cuda or cuda:N")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"device {name}: unknown device; use auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device {name}: unknown device; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not available:
        raise UserError(f"device {name}: no CUDA device is usable here; use cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device {name}: this machine has {torch.cuda.device_count()} CUDA device(s), from cuda:0")
    return device
