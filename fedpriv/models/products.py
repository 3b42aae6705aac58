"""Products with the weights of fully connected layers, by whichever of torch's two libraries is the quicker here.

Torch multiplies matrices on a CPU by MKL, which on processors of another maker than its own leaves half of the vector
units unused (``benchmarks/linear_products.py``). Torch also carries oneDNN, which uses them, and calls it for convolutions.
What comes out differs in the last digits only.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fedpriv.util.watched import watched

_WORTH = 2**20
"""Multiplications of a product from which it pays to call the other library: a call takes ten microseconds at least."""

_OTHER_MAKER = "AuthenticAMD"

_CPUINFO = Path("/proc/cpuinfo")


@functools.cache
def quicker_here() -> bool:
    """True where oneDNN multiplies matrices faster than what torch calls: where torch has both, on a processor by AMD."""
    there = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return there and _made_by(_CPUINFO) == _OTHER_MAKER and _as_expected()


def _made_by(cpuinfo: Path) -> str:
    """Return the maker of the processor; empty where the system does not say."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def _as_expected() -> bool:
    """True where all that is called is there, which is none of torch's public parts, and does what it is called for."""
    draw = torch.Generator().manual_seed(0)
    values, weight = torch.randn(3, 5, generator=draw), torch.randn(4, 5, generator=draw)
    try:
        watched()
        found = _by_onednn(values, weight, torch.ones(4))
        return torch.allclose(found, values @ weight.T + 1, atol=1e-5)
    except (AttributeError, RuntimeError, TypeError):
        return False


def _by_onednn(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(values, weight, bias, "none", [], "")
    return found


def onednn_product(values: Tensor, weight: Tensor) -> Tensor:
    """Return ``values @ weight.T`` of ``(n, I)`` and ``(O, I)`` by oneDNN, which is there where it is the quicker one."""
    return _by_onednn(values, weight, None)


def _takes(values: Tensor, weight: Tensor) -> bool:
    """True for vectors ``(n, I)`` and a weight ``(O, I)`` whose product is worth the call."""
    return (
        values.dim() == weight.dim() == 2
        and len(values) * weight.numel() >= _WORTH
        and values.dtype == weight.dtype == torch.float32
        and values.device.type == weight.device.type == "cpu"
        and quicker_here()
    )


def linear(values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``values @ weight.T + bias`` for ``(n, I)``, ``(O, I)`` and ``(O,)``, differentiable once."""
    if not _takes(values, weight) or watched():
        return functional.linear(values, weight, bias)
    if not torch.is_grad_enabled():
        return _by_onednn(values, weight, bias)
    found: Tensor = _Linear.apply(values, weight, bias)
    return found


class _Linear(torch.autograd.Function):
    """A fully connected layer with its derivative, all by oneDNN."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``(n, O)``."""
        ctx.save_for_backward(values, weight)
        return _by_onednn(values, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        """Return the derivatives of what needs one."""
        values, weight = ctx.saved_tensors
        by_values, by_weight, by_bias = ctx.needs_input_grad
        return (
            _by_onednn(delta, weight.T, None) if by_values else None,
            _by_onednn(delta.T, values.T, None) if by_weight else None,
            delta.sum(0) if by_bias else None,
        )


@contextmanager
def quick_products(module: nn.Module) -> Iterator[None]:
    """Have the fully connected layers of a network compute by :func:`linear` for a while, where that is the quicker."""
    layers = [layer for layer in module.modules() if type(layer) is nn.Linear] if quicker_here() else []
    for layer in layers:
        layer.forward = partial(_forward, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _forward(layer: nn.Linear, values: Tensor) -> Tensor:
    return linear(values, layer.weight, layer.bias)
