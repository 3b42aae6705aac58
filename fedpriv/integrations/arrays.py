"""Arrays of another framework as plain tensors of their own type, and what is unusual about them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedpriv.util.errors import UserError
from fedpriv.wire.payload import check_names, check_plain, from_array

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


class Oddity(NamedTuple):
    """Something about the arrays of a message: ``type``, ``not-finite`` or ``unreadable``, and one line about it."""

    code: str
    line: str


def plain_sets(sets: Sets) -> tuple[dict[str, dict[str, Tensor]], list[Oddity]]:
    """Return arrays as dense tensors on the CPU, each of its own type, and what is odd about them.

    An array that no file of tensors can hold is left out, and is an oddity.
    """
    if len(sets) > MOST_SETS:
        raise UserError(f"{len(sets):,} sets of arrays in one message; at most {MOST_SETS:,}")
    check_names("sets of arrays", [*sets])
    plain: dict[str, dict[str, Tensor]] = {}
    odd: list[Oddity] = []
    for name, arrays in sets.items():
        check_names(f"set {name!r}", [*arrays])
        plain[name] = {}
        for key, array in arrays.items():
            try:
                plain[name][key] = plain_array(array)
            except UserError as error:
                odd.append(Oddity("unreadable", f"set {name!r}: {key!r}: {error}; not recorded"))
        odd += _oddities(name, plain[name])
    return plain, odd


def plain_array(array: Any) -> Tensor:
    """Return an array as a tensor on the CPU that shares no memory which its owner may write."""
    if isinstance(array, Unreadable):
        raise UserError(array.reason)
    if isinstance(array, np.ndarray):
        tensor = from_array("array", array)
    elif isinstance(array, Tensor):
        tensor = check_plain("array", array).detach().cpu().clone(memory_format=torch.contiguous_format)
    else:
        raise UserError(f"expected a NumPy array or a tensor, got {type(array).__name__}")
    if tensor.dtype not in STORED:
        raise UserError(f"an array of {tensor.dtype}, which is not kept")
    return check_plain("array", tensor)


def _oddities(name: str, arrays: Mapping[str, Tensor]) -> Iterator[Oddity]:
    for dtype in sorted({value.dtype for value in arrays.values()} - {torch.float32}, key=str):
        of_type = [key for key, value in arrays.items() if value.dtype == dtype]
        use = "an attack takes them as float32" if dtype.is_floating_point else "an attack leaves them out"
        what = f"set {name!r}: {len(of_type)} array(s) of {str(dtype).removeprefix('torch.')}, {of_type[0]!r} first"
        yield Oddity("type", f"{what}: recorded as they are; {use}")
    wrong = [key for key, value in arrays.items() if value.is_floating_point() and not bool(value.isfinite().all())]
    if wrong:
        yield Oddity("not-finite", f"set {name!r}: NaN or infinity in {len(wrong)} array(s), {wrong[0]!r} first")


def digest(sets: Mapping[str, Mapping[str, Tensor]]) -> str:
    """Return the SHA-256 of all names, types, shapes and values."""
    sha256 = hashlib.sha256()
    for name, arrays in sets.items():
        forms = tuple((key, tuple(v.shape), str(v.dtype).removeprefix("torch.")) for key, v in arrays.items())
        sha256.update(repr((name, forms)).encode())
        for value in arrays.values():
            sha256.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return sha256.hexdigest()
