"""Uploads are data from strangers: held against what was announced beside them, before anything is computed with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError, shown
from fedpriv.wire.payload import Payload
from fedpriv.wire.plain_tensor import check_names, check_plain, from_array

MOST_CLASSES: Final = 100_000
"""Classes that an upload or labels may speak of: tables of floors have one row a class. ImageNet in full has 21,841."""
MOST_IMAGES: Final = 1 << 40
"""A client's number of images, where an upload tells one."""
MOST_TOGETHER: Final = 1 << 32
"""Values of everything that is handed in: 16 GiB of float32, of which attacks make copies."""
LONGEST_LABEL: Final = 200
"""Characters of a name that pages and tables show."""


def settled(where: str, payload: Payload, n_classes: int | None) -> Payload:
    """Return a payload on the CPU, without a graph, and in agreement with what was announced.

    Args:
        where: begins an error.
        payload: of any kind; its own types and shapes are checked again, as its tensors may have been changed since.
        n_classes: C, where it was announced.

    Raises:
        UserError: naming the field, what it holds and what was expected.
    """
    values: dict[str, Any] = {}
    for spec in fields(payload):
        value = getattr(payload, spec.name)
        if isinstance(value, Tensor):
            values[spec.name] = check_plain(f"{where}: {payload.kind}.{spec.name}", value).detach().cpu()
        elif isinstance(value, Mapping):
            tensors = named_tensors(f"{where}: {payload.kind}.{spec.name}", value)
            values[spec.name] = {name: entry.detach().cpu() for name, entry in tensors.items()}
    try:
        made = replace(payload, **values)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    wrong = made.non_finite()
    if wrong is not None:
        raise UserError(f"{where}: {made.kind}.{wrong} holds NaN or infinity; expected finite numbers")
    _check_said(where, made, n_classes)
    return made


def named_tensors(where: str, values: object) -> dict[str, Tensor]:
    """Return tensors by name.

    Raises:
        UserError: for anything but a mapping from printable texts to plain tensors.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{where}: expected tensors by name, got {type(values).__name__}")
    found = dict(values)
    check_names(where, [*found])
    return {name: plain_tensor(f"{where}[{name!r}]", value) for name, value in found.items()}


def plain_tensor(where: str, value: object) -> Tensor:
    """Return a plain tensor, or a NumPy array as one.

    Raises:
        UserError: for anything else.
    """
    return check_plain(where, from_array(where, value) if isinstance(value, np.ndarray) else value)


def _check_said(where: str, payload: Payload, n_classes: int | None) -> None:
    """Check classes, counts and widths that a payload tells in clear."""
    most, source = (
        (MOST_CLASSES, "at most so many") if n_classes is None else (n_classes, argument("n_classes", n_classes))
    )
    classes = payload.said("classes")
    if classes is not None and len(classes):
        name = f"{where}: {payload.kind}.{payload.field_that_says('classes')}"
        wrong = classes[(classes < 0) | (classes >= most)]
        if len(wrong):
            raise UserError(f"{name}: class {int(wrong[0])}; expected 0..{most - 1} ({source})")
        held, counts = classes.unique(return_counts=True)
        if payload.computed_from == "class" and len(held) != len(classes):
            raise UserError(f"{name}: class {int(held[counts.argmax()])} is there twice; expected one row a class")
    for what in ("counts", "histogram", "size"):
        counts = payload.said(what)
        if counts is not None and len(counts) and not 0 <= int(counts.min()) <= int(counts.max()) <= MOST_IMAGES:
            name = f"{where}: {payload.kind}.{payload.field_that_says(what)}"
            raise UserError(f"{name}: {int(counts.min())} to {int(counts.max())}; expected 0..{MOST_IMAGES} images")
    for name, width in _class_widths(payload).items():
        if width > most or (n_classes is not None and width != n_classes):
            raise UserError(f"{where}: {payload.kind}.{name}: of {width} classes; expected {most} ({source})")


def _class_widths(payload: Payload) -> dict[str, int]:
    """Return the number of classes that each field has one entry for."""
    named = {what: payload.field_that_says(what) for what in ("weights", "histogram")}
    found = {name: len(getattr(payload, name)) for name in named.values() if name is not None}
    values = payload.values_field()
    if payload.space == "outputs" and values is not None:
        found[values] = getattr(payload, values).shape[-1]
    return found


def refuse_too_much(tensors: Iterable[Tensor]) -> None:
    """Check that all that was handed in together is of a size that can be worked with.

    Raises:
        UserError: with the number of values.
    """
    together = sum(tensor.numel() for tensor in tensors)
    if together > MOST_TOGETHER:
        raise UserError(f"{argument('uploads')}: {together:,} values together with images; at most {MOST_TOGETHER:,}")


def check_label(name: str, value: object) -> None:
    """Check a name that pages and tables show.

    Raises:
        UserError: for anything but a printable text of a usual length.
    """
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_LABEL or not value.isprintable():
        raise UserError(
            f"{argument(name)}: expected a printable text of at most {LONGEST_LABEL} characters, got {shown(value)}"
        )


@torch.no_grad()
def tried(where: str, network: nn.Module, images: Tensor, given: str) -> Tensor:
    """Return ``(n, d)`` that a network makes of images ``(n, c, h, w)``.

    Args:
        where: begins an error.
        network: in evaluation mode.
        images: some of a client's.
        given: names what the rows should be.

    Raises:
        UserError: when it fails on them, or returns anything but one finite vector an image.
    """
    device = next(network.parameters(), images).device
    try:
        found = network(images.to(device))
    except Exception as error:  # a network of somebody else raises anything
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{where}: fails on images {tuple(images.shape[1:])}: {told}") from error
    if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != len(images):
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise UserError(f"{where}: expected {given} of images (n, c, h, w), got {got}")
    if not found.is_floating_point() or not bool(check_plain(where, found).isfinite().all()):
        raise UserError(
            f"{where}: returns NaN, infinity or {found.dtype} on the client's images; expected finite floats"
        )
    return found
