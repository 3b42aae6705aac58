"""The machine's own peak: matrix products and convolutions of sizes that suit it, in single precision as torch is set."""

from __future__ import annotations

from typing import Any

from fedpriv.experiment.benchmarks.contract import Side
from fedpriv.experiment.benchmarks.turns import Turns

MATRIX, CONVOLUTION = "matrix products", "convolutions"

_TIMES = 4


def sides(device: str) -> tuple[Side, ...]:
    """Return the sides that measure it, with their operations in a turn as ``units``."""
    found = []
    for name, work, operations in ((MATRIX, "multiply", _matrix), (CONVOLUTION, "convolve", _convolution)):
        settings = {"device": device}
        found.append(Side(name, f"fedpriv.experiment.benchmarks.peak:{work}", settings, units=operations(device)[1]))
    return tuple(found)


def _matrix(device: str) -> tuple[int, float]:
    side = 1024 if device == "cpu" else 8192
    return side, _TIMES * 2.0 * side**3


def _convolution(device: str) -> tuple[int, float]:
    images = 32 if device == "cpu" else 1024
    return images, _TIMES * 2.0 * images * 32 * 32 * 64 * 64 * 9


def multiply(settings: dict[str, Any], turns: Turns) -> None:
    """Multiply square matrices some times a turn."""
    import torch

    from fedpriv.util.device import pick_device

    device = pick_device(settings["device"])
    side = _matrix(settings["device"])[0]
    one, other = (torch.rand(side, side, device=device) for _ in range(2))
    for _ in turns:
        for _ in range(_TIMES):
            one @ other


def convolve(settings: dict[str, Any], turns: Turns) -> None:
    """Convolve maps of 64 channels and 32x32 with as many kernels of 3x3 some times a turn, channels last."""
    import torch

    from fedpriv.util.device import pick_device

    device = pick_device(settings["device"])
    images = _convolution(settings["device"])[0]
    made = torch.rand(images, 64, 32, 32, device=device).to(memory_format=torch.channels_last)
    layer = torch.nn.Conv2d(64, 64, 3, padding=1).to(device).to(memory_format=torch.channels_last)
    with torch.no_grad():
        for _ in turns:
            for _ in range(_TIMES):
                layer(made)
