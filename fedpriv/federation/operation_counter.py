"""Count multiplications and additions of whatever runs within a block, by torch's own formulas for each operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_ATTENTION_BACK = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def _of_attention(query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _of_attention_back(grad: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
    return int(sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))


def _of_convolution_back(grad: Any, maps: Any, weight: Any, *rest: Any, **named: Any) -> int:
    transposed, asked = rest[4], rest[7]
    positions = (maps if transposed else grad).shape[2:].numel()
    return int(2 * (asked[0] + asked[1]) * grad.shape[0] * positions * weight.numel())


_FORMULAS: dict[Any, Callable[..., int]] = {
    _ATTENTION: _of_attention,
    _ATTENTION_BACK: _of_attention_back,
    torch.ops.aten.convolution_backward: _of_convolution_back,
}
"""Where torch's own differ: it counts the processor's attention since its version 2.15 only, and the weights' gradient of a
grouped convolution as if every group saw all channels."""


class OperationCounter(TorchDispatchMode):
    """Counts convolutions, matrix products and attention, forward and backward; a multiply-add counts two.

    Torch's ``FlopCounterMode`` counts the same but for grouped convolutions (a test holds it to that). It also tells modules
    apart, by hooks, and imports torch's compiler to keep itself out of it: a second of every process that trains.

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
        packet = func._overloadpacket
        formula: Callable[..., Any] | None = _FORMULAS.get(packet) or flop_registry.get(packet)
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
