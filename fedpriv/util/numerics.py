"""The arithmetic of a search: how precisely it computes, and whether its loop is compiled."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from fedpriv.util.errors import UserError, shown

if TYPE_CHECKING:
    import torch

Precision = Literal["float32", "tf32", "bfloat16"]
"""float32 everywhere; products in TF32, which GPUs since Ampere have (10 bits of mantissa); or automatic mixed precision in
bfloat16 (7 bits). What a search found is judged in float32 in any case."""


@dataclass(frozen=True)
class Numerics:
    """The arithmetic of searches by Adam (``dip``, ``pixels``, ``joint``, ...); other attacks compute in float32.

    Attributes:
        compiled: whether generator networks are compiled, by ``torch.compile``; changes results in the last digits only.
        recorded: whether a step is recorded on a GPU and replayed, where that changes no bit of it; never where compiled.
    """

    precision: Precision = "float32"  # of the searches
    compiled: bool = False
    recorded: bool = True

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


def read_numerics(precision: str, device: torch.device, *, compiled: bool) -> Numerics:
    """Return the arithmetic that arguments ask for."""
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
    if compiled and not gpu and not (os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")):
        raise UserError("compile: torch compiles for a CPU with a C++ compiler, and none is here")
    if compiled and gpu and importlib.util.find_spec("triton") is None:
        raise UserError("compile: torch compiles for a GPU with triton, which is not installed")
    if compiled and gpu:
        torch.use_deterministic_algorithms(True, warn_only=True)  # of the compiler's own choices, too
    return Numerics(precision, compiled)  # type: ignore[arg-type]
