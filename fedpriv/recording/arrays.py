"""Arrays of another framework as plain tensors of their own type, and what is unusual about them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from fedpriv.util.errors import UserError
from fedpriv.wire.plain_tensor import check_names, check_plain, from_array

Sets = Mapping[str, Mapping[str, Any]]
"""Name of a set (an ``ArrayRecord`` of Flower, a ``DXO`` of NVFlare) -> name of an array -> NumPy array or tensor."""

MOST_SETS: Final = 1000
"""Sets of arrays in one message."""

STORED: Final = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    }
)
"""Types of numbers that a file keeps as they are."""


@dataclass(frozen=True)
class Unreadable:
    """Stands for an array that an adapter could not read, with the reason in one line."""

    reason: str


Form = tuple[tuple[str, tuple[int, ...], str], ...]
"""(name, shape, type) of every array of a set, in its own order."""


@dataclass(frozen=True)
class Oddity:
    """Something about the arrays of a message that a reader should know; what can be kept is kept all the same.

    Attributes:
        code: what sort of thing: ``type``, ``not-finite``, ``unreadable``.
        told: one line, without round and sender.
    """

    code: str
    told: str


def plain_sets(sets: Sets) -> tuple[dict[str, dict[str, Tensor]], list[Oddity]]:
    """Return arrays as dense tensors on the CPU, each of its own type, and what is odd about them.

    An array that no file of tensors can hold is left out, and is an oddity.

    Raises:
        UserError: where names, or the number of sets or arrays, are beyond bounds: nothing of the message is kept.
    """
    if len(sets) > MOST_SETS:
        raise UserError(f"{len(sets):,} sets of arrays in one message; at most {MOST_SETS:,}")
    check_names("sets of arrays", [*sets])
    found: dict[str, dict[str, Tensor]] = {}
    odd: list[Oddity] = []
    for name, arrays in sets.items():
        check_names(f"set {name!r}", [*arrays])
        found[name] = {}
        for key, array in arrays.items():
            try:
                found[name][key] = plain_array(array)
            except UserError as error:
                odd.append(Oddity("unreadable", f"set {name!r}: {key!r}: {error}; not recorded"))
        odd += _oddities(name, found[name])
    return found, odd


def plain_array(array: Any) -> Tensor:
    """Return an array as a tensor on the CPU that shares no memory which its owner may write.

    Raises:
        UserError: for what no file of tensors can hold.
    """
    if isinstance(array, Unreadable):
        raise UserError(array.reason)
    if isinstance(array, np.ndarray):
        made = from_array("array", array)
    elif isinstance(array, Tensor):
        made = check_plain("array", array).detach().cpu().clone(memory_format=torch.contiguous_format)
    else:
        raise UserError(f"expected a NumPy array or a tensor, got {type(array).__name__}")
    if made.dtype not in STORED:
        raise UserError(f"an array of {made.dtype}, which is not kept")
    return check_plain("array", made)


def _oddities(name: str, arrays: Mapping[str, Tensor]) -> Iterator[Oddity]:
    for dtype in sorted({value.dtype for value in arrays.values()} - {torch.float32}, key=str):
        of_type = [key for key, value in arrays.items() if value.dtype == dtype]
        use = "an attack takes them as float32" if dtype.is_floating_point else "an attack leaves them out"
        told = f"set {name!r}: {len(of_type)} array(s) of {str(dtype).removeprefix('torch.')}, {of_type[0]!r} first"
        yield Oddity("type", f"{told}: recorded as they are; {use}")
    wrong = [key for key, value in arrays.items() if value.is_floating_point() and not bool(value.isfinite().all())]
    if wrong:
        yield Oddity("not-finite", f"set {name!r}: NaN or infinity in {len(wrong)} array(s), {wrong[0]!r} first")


def form_of(arrays: Mapping[str, Tensor]) -> Form:
    """Return names, shapes and types of a set."""
    return tuple((name, tuple(value.shape), str(value.dtype).removeprefix("torch.")) for name, value in arrays.items())


def difference(name: str, before: Form, now: Form) -> str:
    """Return in one line the first thing by which the form of a set changed; empty where it did not.

    >>> difference("arrays", (("w", (2, 3), "float32"),), (("w", (2, 4), "float32"),))
    "set 'arrays': 'w' is (2, 4) of float32, was (2, 3) of float32"
    """
    old, new = ({key: (shape, dtype) for key, shape, dtype in form} for form in (before, now))
    gone, fresh = [key for key in old if key not in new], [key for key in new if key not in old]
    if gone or fresh:
        told = [
            f"{len(keys)} array(s) {what}, {keys[0]!r} first" for keys, what in ((gone, "gone"), (fresh, "new")) if keys
        ]
        return f"set {name!r}: {'; '.join(told)}"
    for key, (shape, dtype) in new.items():
        if old[key] != (shape, dtype):
            return f"set {name!r}: {key!r} is {shape} of {dtype}, was {old[key][0]} of {old[key][1]}"
    return "" if before == now else f"set {name!r}: the same arrays in another order"


def digest(sets: Mapping[str, Mapping[str, Tensor]]) -> str:
    """Return the SHA-256 of all names, types, shapes and values."""
    found = hashlib.sha256()
    for name, arrays in sets.items():
        found.update(repr((name, form_of(arrays))).encode())
        for value in arrays.values():
            found.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
