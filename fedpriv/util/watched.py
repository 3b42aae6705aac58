"""Operations that somebody counts or transforms as tensors are computed."""

from __future__ import annotations


def watched() -> bool:
    """Return true while operations are counted or transformed: then torch's own are called, which everybody knows."""
    import torch

    return bool(torch._C._len_torch_dispatch_stack()) or torch._C._are_functorch_transforms_active()
