"""Count multiplications and additions of whatever runs within a block: a formula for each operation that has some.

Torch has such formulas too, and imports a compiler for them, a fifth of a second of every training. They count
the processor's attention since version 2.15 only, and the weights' gradient of a grouped convolution as if every group
saw all channels. Where neither matters a test holds these to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def _of_product(left: Any, right: Any, *rest: Any, **named: Any) -> int:
    return int(2 * left.shape.numel() * right.shape[-1])


def _of_sum_and_product(summand: Any, left: Any, right: Any, *rest: Any, **named: Any) -> int:
    return _of_product(left, right)


def _of_convolution(maps: Any, weight: Any, *rest: Any, out_val: Any, **named: Any) -> int:
    transposed = rest[4]
    positions = (maps if transposed else out_val).shape[2:].numel()
    return int(2 * maps.shape[0] * positions * weight.numel())


def _of_convolution_back(grad: Any, maps: Any, weight: Any, *rest: Any, **named: Any) -> int:
    transposed, asked = rest[4], rest[7]
    positions = (maps if transposed else grad).shape[2:].numel()
    return int(2 * (asked[0] + asked[1]) * grad.shape[0] * positions * weight.numel())


def _of_attention(query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
    return int(2 * query.shape[:-1].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1]))


def _of_attention_back(grad: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
    """Five products: scores again, their gradient, and the gradients of query, key and value."""
    return int(2 * query.shape[:-1].numel() * key.shape[-2] * (3 * query.shape[-1] + 2 * value.shape[-1]))


_ATTENTION = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")

_FORMULAS: dict[str, Callable[..., int]] = {
    "mm": _of_product,
    "bmm": _of_product,
    "addmm": _of_sum_and_product,
    "baddbmm": _of_sum_and_product,
    "convolution": _of_convolution,
    "convolution_backward": _of_convolution_back,
}
"""By the operation's name in torch's library ``aten``."""

_FORMULAS.update({f"_scaled_dot_product_{kind}": _of_attention for kind in _ATTENTION})
_FORMULAS.update({f"_scaled_dot_product_{kind}_backward": _of_attention_back for kind in _ATTENTION})


class OperationCounter(TorchDispatchMode):
    """Counts convolutions, matrix products and attention, forward and backward; a multiply-add counts two.

    Torch's ``FlopCounterMode`` also tells modules apart, by hooks, and imports torch's compiler to keep itself out of it.

    Attributes:
        total: operations so far.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: int = 0

    def __enter__(self) -> OperationCounter:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        named = kwargs or {}
        formula = _FORMULAS.get(func._opname) if func.namespace == "aten" else None
        if formula is None:
            if func is not torch.ops.prim.device.default:
                with self:  # an operation made of others counts as these
                    made = func.decompose(*args, **named)
                if made is not NotImplemented:
                    return made
            return func(*args, **named)
        made = func(*args, **named)
        self.total += int(formula(*args, **named, out_val=made))
        return made
