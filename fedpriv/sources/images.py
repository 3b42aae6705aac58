"""Images as people have them (tensors, arrays, data sets, bytes), brought to floats in [0, 1] with their classes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from fedpriv.datasets.types import Samples, as_unit
from fedpriv.sources.facts import Normalize
from fedpriv.sources.messages import check_labels
from fedpriv.uploads.payload import as_tensor, check_plain
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError, shown
from fedpriv.util.foreign import reason

DEPTHS: Final = (1, 255, 4095, 65535)
"""Largest values of images of whole numbers: of one bit, of bytes, of 12 and of 16 bits."""


def is_array(given: object) -> bool:
    """True for a tensor, a NumPy array, or a data set of PyTorch: what one client has, not one a client."""
    return isinstance(given, (Tensor, np.ndarray, TorchDataset))


def labelled(name: str, given: Any, labels: Any, where: str) -> tuple[Any, Any]:
    """Return images and labels as they were handed in; a ``torch.utils.data.Dataset`` of pairs brings both.

    ``where`` names the labels.
    """
    if not isinstance(given, TorchDataset):
        return given, labels
    if labels is not None:
        raise UserError(f"{where}: the data set in {name} has labels; leave these out")
    try:
        pairs = [given[index] for index in range(len(given))]  # type: ignore[arg-type]
    except Exception as error:  # a data set of somebody else raises anything
        why = f"{type(error).__name__}: {reason(error)}"
        raise UserError(f"{name}: the data set does not give (image, label) by index: {why}") from error
    classes = []
    for number, pair in enumerate(pairs):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise UserError(f"{name}: entry {number} is {type(pair).__name__}; expected a pair (image, label)")
        if not isinstance(pair[0], (Tensor, np.ndarray)):
            advice = "give the data set transform=torchvision.transforms.ToTensor()"
            raise UserError(
                f"{name}: image {number} is {type(pair[0]).__name__}; expected a tensor (c, h, w): {advice}"
            )
        try:
            classes.append(index(pair[1]))
        except (TypeError, ValueError) as error:
            raise UserError(f"{name}: label {number} is {shown(pair[1])}; expected a whole number") from error
    return [image for image, _ in pairs], classes


def unit_images(name: str, given: Any, shape: Sequence[int] | None = None, everyone: Iterable[Any] = ()) -> Tensor:
    """Return images on the CPU as float32 ``(n, c, h, w)`` in [0, 1]; bytes are divided by 255.

    A refusal goes by the range of ``everyone``'s images, these and all other clients'.
    """
    if not isinstance(given, (Tensor, np.ndarray, list, tuple)):
        raise UserError(f"{name}: expected images (n, c, h, w) or a data set of pairs, got {type(given).__name__}")
    values = check_plain(name, as_tensor(name, given)).detach().cpu()
    got = tuple(values.shape)
    if not values.numel():
        raise UserError(f"{name}: no images; expected at least one, (n, c, h, w); leave out clients that have none")
    if values.dim() != 4:
        advice = {3: "; add the axis of channels: [:, None], of one image [None]"}.get(values.dim(), "")
        raise UserError(f"{name}: expected (n, c, h, w), got {got}{advice}")
    if got[1] == got[2] > 4 and got[3] in (1, 3) and shape != got[1:]:
        raise UserError(f"{name}: expected (n, c, h, w), got {got}; channels come first: transpose to (0, 3, 1, 2)")
    if values.is_complex():
        raise UserError(f"{name}: expected floats in [0, 1], got {values.dtype}")
    if values.dtype != torch.uint8 and not values.is_floating_point():
        _refuse_whole(name, values.dtype, *_extent([values, *everyone]))
    result = as_unit(values).to(torch.float32)
    if not bool(result.isfinite().all()):
        raise UserError(f"{name}: holds NaN or infinity; expected values in [0, 1]")
    low, high = float(result.min()), float(result.max())
    if low < 0 or high > 1:
        advice = "before any normalisation, which normalise=(mean, std) is told of"
        low, high = _extent([values, *everyone])
        if low >= 0:
            advice = f"divide by {next((depth for depth in DEPTHS[1:] if high <= depth), 'the largest value')}"
        raise UserError(f"{name}: values from {low:.3g} to {high:.3g}; expected [0, 1]: {advice}")
    if shape is not None and got[1:] != tuple(shape):
        raise UserError(f"{name}: images {got[1:]}, expected {tuple(shape)} as the clients' images are")
    return result


def _extent(images: Iterable[Any]) -> tuple[float, float]:
    """Return the least and the largest value of several clients' images; those that are no numbers are passed over."""
    ends: list[float] = []
    for given in images:
        with contextlib.suppress(UserError):
            values = as_tensor("images", given).detach().double()
            ends += [float(values.min()), float(values.max())] if values.numel() else []
    return min(ends), max(ends)


def _refuse_whole(name: str, kind: torch.dtype, low: float, high: float) -> None:
    """Refuse whole numbers of a type that does not say where white is, by what their range says."""
    depth = next((depth for depth in DEPTHS if high - min(low, 0) <= depth), high - low)
    what = f"{kind} of values {low:.0f} to {high:.0f}"
    shifted = f"add {-low:.0f} and divide by {depth:.0f}" if low < 0 else f"divide by {depth:.0f}"
    raise UserError(
        f"{name}: got {what}; expected floats in [0, 1]: {shifted} (or by the largest value of your format)"
    )


def samples(
    name: str, given: Any, labels: Any, shape: Sequence[int] | None, where: str, everyone: Iterable[Any] = ()
) -> Samples:
    """Return images with their classes; ``where`` names the latter; ``everyone`` as of :func:`unit_images`."""
    images, classes = labelled(name, given, labels, where)
    checked = unit_images(name, images, shape, everyone)
    if classes is None:
        raise UserError(f"{where}: missing; expected the class of each image of {name}")
    return Samples(checked, check_labels(where, classes, len(checked)))


def check_classes(where: str, classes: Tensor, width: int) -> None:
    """Check that a model has a logit for every class."""
    if int(classes.max()) >= width:
        text = f"class {int(classes.max())}, and the model gives {width} logits (classes 0 to {width - 1})"
        raise UserError(f"{where} has {text}")


def normalisation(given: Any, channels: int) -> Normalize | None:
    """Return ``(mean, std)``, numbers or one a channel, by which training normalised images."""
    if given is None:
        return None
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise UserError(f"normalise={shown(given)}: expected mean and std, as transforms.Normalize takes them")
    mean, std = (
        as_tensor("normalise", each if is_array(each) else np.asarray(each)).flatten().tolist() for each in given
    )
    if {len(mean), len(std)} - {1, channels}:
        text = f"{len(mean)} and {len(std)} numbers for images of {channels} channel(s)"
        raise UserError(f"normalise: {text}; expected one, or one a channel, of each")
    result = Normalize(tuple(mean), tuple(std))
    parse(Normalize, vars(result), "normalise")
    return result
