"""One vector a class as FedProto's own code has it: ``{class: vector}``, read as class means or class outputs."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.experiment.uploads.announced import MOST_CLASSES
from fedpriv.util.errors import UserError, shown
from fedpriv.wire.kinds import payload_kind
from fedpriv.wire.payload import Payload
from fedpriv.wire.plain_tensor import check_plain, from_numbers


def is_class_vectors(given: object, target: str) -> bool:
    """True for a mapping that holds a vector where the target has one row a class; for other targets keys are clients."""
    return isinstance(given, Mapping) and _has_class_rows(target) and any(_is_vector(one) for one in given.values())


def read_class_vectors(where: str, given: Mapping[Any, Any], target: str) -> Payload:
    """Return a payload of the target with the mapping's rows.

    Counts stay unknown: such an upload does not say how many images a mean is of.

    Args:
        where: begins an error.
        given: class -> vector ``(d,)``: tensors, NumPy arrays or lists of numbers.
        target: kind of payload with one row a class.

    Raises:
        UserError: naming the class that is no whole number, or whose vector is no vector, as long as another or finite.
    """
    rows: dict[int, Tensor] = {}
    for key, value in given.items():
        label = _whole(key)
        if label is None:
            raise UserError(f"{where}: class {shown(key)}; expected a whole number as the key of each vector")
        if not 0 <= label < MOST_CLASSES:
            raise UserError(f"{where}: class {shown(label)}; expected 0..{MOST_CLASSES - 1}")
        place = f"{where}: class {label}"
        if not _is_vector(value):
            got = tuple(value.shape) if isinstance(value, (Tensor, np.ndarray)) else type(value).__name__
            raise UserError(f"{place}: expected a vector (d,), got {got}")
        vector = check_plain(place, from_numbers(place, value, integer=False)).detach().cpu()
        if not vector.is_floating_point():
            raise UserError(f"{place}: a tensor of {vector.dtype}; expected floats")
        if not bool(vector.float().isfinite().all()):
            raise UserError(f"{place} holds NaN or infinity; expected finite numbers")
        first = next(iter(rows), label)
        if rows and len(vector) != len(rows[first]):
            raise UserError(
                f"{place}: a vector of {len(vector)} values, but that of class {first} has {len(rows[first])}"
            )
        rows[label] = vector.float()
    kind = payload_kind(target)
    values, classes = str(kind.values_field()), str(kind.field_that_says("classes"))
    return kind(**{values: torch.stack([*rows.values()]), classes: torch.tensor([*rows])})


def _has_class_rows(target: str) -> bool:
    """True for kinds that take one row a class and the classes, and nothing else that must be given."""
    kind = payload_kind(target)
    needed = {spec.name for spec in fields(kind) if not spec.metadata["optional"]}
    return kind.computed_from == "class" and needed == {kind.values_field(), kind.field_that_says("classes")}


def _is_vector(value: object) -> bool:
    if isinstance(value, (Tensor, np.ndarray)):
        return value.ndim == 1
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(one, (int, float)) for one in value)


def _whole(key: object) -> int | None:
    if isinstance(key, (bool, np.bool_, Tensor)):
        return None
    try:
        return operator.index(key)  # type: ignore[arg-type]
    except TypeError:
        return None
