"""What a loop asks of a device, counted on a CPU by torch's profiler: kernels, and reads of a value by the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

_NO_KERNEL = {
    *(
        "alias",
        "as_strided",
        "chunk",
        "contiguous",
        "detach",
        "empty",
        "empty_like",
        "empty_strided",
        "expand",
        "expand_as",
    ),
    *("flatten", "item", "_local_scalar_dense", "is_nonzero", "narrow", "new_empty", "new_empty_strided", "permute"),
    *("_reshape_alias", "reshape", "resize_", "resolve_conj", "resolve_neg", "result_type", "select", "slice", "split"),
    *(
        "split_with_sizes",
        "squeeze",
        "t",
        "to",
        "transpose",
        "unbind",
        "unflatten",
        "_unsafe_view",
        "unsqueeze",
        "view",
    ),
    *("view_as", "set_", "as_strided_", "lift_fresh", "detach_", "_unpack_dual"),
}
"""Operations that allocate, look at the same memory in another way, or read a number."""


def counts(work: Callable[[int], object], short: int = 10, long: int = 30) -> Counter[str]:
    """Return what an iteration asks for by name, over iterations ``short`` to ``long`` of ``work(iterations)``.

    An operation counts where it asks for no other one, so that nothing is counted twice. ``item`` stands for all reads by
    the host but that of the fused Adam, which on a CPU reads its own step number, a number of the CPU's. An operation on a
    list of tensors, which a CPU does one by one, is one kernel, as on a GPU.
    """
    work(1)  # what is made once is made
    before, after = _seen(work, short), _seen(work, long)
    after.subtract(before)
    return Counter({name: round(number / (long - short), 3) for name, number in after.items() if number})


def kernels(found: Counter[str]) -> float:
    """Return the number of kernels among counts."""
    return sum(number for name, number in found.items() if name != "item")


def _seen(work: Callable[[int], object], iterations: int) -> Counter[str]:
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        work(iterations)
    found: Counter[str] = Counter()
    for event in watched.events():
        name = event.name.removeprefix("aten::")
        above = event.cpu_parent
        while above and not above.name.startswith("aten::_foreach"):
            above = above.cpu_parent
        if above:
            continue
        if name.startswith("_foreach"):
            found[name] += 1
        elif name == "_local_scalar_dense":
            parents = [event.cpu_parent, event.cpu_parent and event.cpu_parent.cpu_parent]
            found["item"] += not any(one and one.name == "aten::_fused_adam_" for one in parents)
        elif name != event.name and name not in _NO_KERNEL:
            within = [
                child.name.removeprefix("aten::") for child in event.cpu_children if child.name.startswith("aten::")
            ]
            found[name] += all(child in _NO_KERNEL for child in within)
    return found
