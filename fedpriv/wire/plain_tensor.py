"""Tensors as everything here computes with them: plain, dense, of a bounded size; made of NumPy arrays and lists too."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.util.errors import UserError, shown

MOST_VALUES: Final = 1 << 30
"""Values of one tensor, counted as its copy would have them: 4 GiB of float32."""
MOST_ENTRIES: Final = 100_000
"""Tensors of one mapping from names: the deepest network of torchvision has 2,000."""
LONGEST_NAME: Final = 300
"""Characters of a parameter's name."""


def check_plain(where: str, value: object) -> Tensor:
    """Return a tensor that is plain: no subclass but a parameter, dense, neither quantised, nested nor without data."""
    if not isinstance(value, Tensor):
        raise UserError(f"{where}: expected a tensor, got {type(value).__name__}")
    fault = ""
    if type(value) not in (Tensor, nn.Parameter, getattr(nn, "Buffer", Tensor)):
        fault = f"a {type(value).__name__}"  # first, since every look at a subclass runs its code
    elif value.is_meta:
        fault = "a tensor on the meta device, which holds no values"
    elif value.is_nested:
        fault = "a nested tensor"
    elif value.layout != torch.strided:
        fault = f"a tensor of layout {value.layout}"
    elif value.is_quantized:
        fault = f"a quantised tensor, {value.dtype}"
    elif any(getattr(value, "names", ())):  # of some versions of torch
        fault = "a tensor whose axes have names"
    if fault:
        raise UserError(f"{where}: {fault}; expected a plain, dense torch.Tensor of numbers")
    if value.numel() > MOST_VALUES:
        raise UserError(f"{where}: {value.numel():,} values, shape {tuple(value.shape)}; at most {MOST_VALUES:,}")
    return value


def from_array(where: str, array: np.ndarray) -> Tensor:
    """Return a NumPy array of numbers as a tensor that shares no memory with it."""
    kind = shown(str(array.dtype))
    if array.dtype.kind not in "fiub" or isinstance(array, np.ma.MaskedArray):
        what = "a masked array" if isinstance(array, np.ma.MaskedArray) else f"an array of {kind}"
        raise UserError(f"{where}: {what}; expected floats, whole numbers or booleans")
    if array.size > MOST_VALUES:
        raise UserError(f"{where}: {array.size:,} values, shape {array.shape}; at most {MOST_VALUES:,}")
    try:
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True))
    except TypeError as error:
        raise UserError(f"{where}: an array of {kind}, which no tensor holds") from error


def from_numbers(where: str, value: object, *, integer: bool) -> object:
    """Return lists and arrays of numbers as a float32 or int64 tensor, a list of tensors stacked; else the value."""
    expected = "whole numbers" if integer else "numbers"
    if isinstance(value, (list, tuple)):
        try:
            if value and all(isinstance(row, Tensor) for row in value):
                return torch.stack([check_plain(f"{where}[{index}]", row).detach() for index, row in enumerate(value)])
            value = np.asarray(value)
        except UserError:
            raise
        except Exception as error:  # of an object with an array's protocols anything
            raise UserError(f"{where}: expected {expected}, in rows of one length, got a list of others") from error
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind not in ("iu" if integer else "fiu"):
        raise UserError(f"{where}: expected {expected}, got {shown(str(value.dtype))}")
    return from_array(where, value).to(torch.int64 if integer else torch.float32)


def all_finite(value: Tensor) -> bool:
    """True if no number is NaN or infinite. A sum that is finite says so in one pass; finite numbers may add up to more."""
    return bool(value.sum().isfinite()) or bool(value.isfinite().all())


def check_names(where: str, names: list[object]) -> None:
    """Check that tensors are called by printable texts of a usual length, and are not too many."""
    if len(names) > MOST_ENTRIES:
        raise UserError(f"{where}: {len(names):,} tensors; at most {MOST_ENTRIES:,} may be named")
    for name in names:
        if not isinstance(name, str) or not name or len(name) > LONGEST_NAME or not name.isprintable():
            raise UserError(
                f"{where}: a tensor is called {shown(name)}; expected a printable text of at most {LONGEST_NAME} characters"
            )
