"""Forms of what is handed in for one client or for several, and the checks of images and labels at the door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from fedpriv.experiment.uploads.announced import MOST_CLASSES
from fedpriv.experiment.uploads.class_vectors import is_class_vectors
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError, shown
from fedpriv.wire.payload import Payload
from fedpriv.wire.plain_tensor import check_plain

MOST_CLIENTS: Final = 1_000_000
"""Clients that uploads may be of, and their numbers."""


@dataclass(frozen=True)
class Update:
    """Weights before and after a client's local steps.

    Attributes:
        before: parameter name -> tensor, as ``state_dict()`` gives it: what the client started from, known to the server.
        after: the same names and shapes: what the client uploaded. Entries that are no parameters may stand beside.
    """

    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]


@dataclass(frozen=True)
class Gradient:
    """The gradient that a client uploaded, of the mean loss over its batch; of several steps the sum.

    Attributes:
        values: parameter name -> tensor, or tensors in the order of ``model.named_parameters()``, as
            ``torch.autograd.grad`` returns them.
    """

    values: Mapping[str, Tensor] | Sequence[Tensor]


@dataclass(frozen=True)
class PrivateImages:
    """A client's own images, which only scorers see.

    Attributes:
        images: ``(n, c, h, w)`` float32 in [0, 1].
        labels: ``(n,)`` int64.
        weights: ``(n,)`` each image's share in a mixture, or None.
    """

    images: Tensor
    labels: Tensor
    weights: Tensor | None = None


def is_state(given: object) -> bool:
    """True for tensors by name, as ``state_dict()`` returns them."""
    return isinstance(given, Mapping) and bool(given) and all(isinstance(key, str) for key in given)


def is_pair(given: object) -> bool:
    """True for two mappings that are not by client or class: weights before and after."""
    mappings = isinstance(given, tuple) and len(given) == 2 and all(isinstance(one, Mapping) for one in given)
    return mappings and not any(isinstance(key, int) for one in given for key in one)  # type: ignore[attr-defined]


def is_one_upload(given: object, target: str) -> bool:
    """True for one upload, not one a client."""
    if isinstance(given, (Payload, Tensor, np.ndarray, Update, Gradient)) or is_class_vectors(given, target):
        return True
    if is_state(given) or is_pair(given):
        return True
    return isinstance(given, tuple) and bool(given) and all(isinstance(one, Payload) for one in given)


def by_client(name: str, given: Any, target: str) -> dict[int, Any]:
    """Return one upload, a list or a mapping as a mapping from the client's number.

    Raises:
        UserError: naming the argument, for anything else.
    """
    if is_one_upload(given, target):
        return {0: given}
    if isinstance(given, Mapping):
        found = dict(given)
        if not all(type(client) is int and 0 <= client < MOST_CLIENTS for client in found):
            told = shown([*found])
            raise UserError(f"{argument(name)}: expected client numbers 0..{MOST_CLIENTS - 1} as keys, got {told}")
    elif isinstance(given, (list, tuple)):
        found = dict(enumerate(given))
    else:
        raise UserError(
            f"{argument(name)}: expected an upload (a payload such as fedpriv.Prototypes, a tensor, fedpriv.Update or "
            f"fedpriv.Gradient), a list of them or a mapping by client, got {type(given).__name__}"
        )
    if not found:
        raise UserError(f"{argument(name)}: expected at least one, got none")
    if len(found) > MOST_CLIENTS:
        raise UserError(f"{argument(name)}: {len(found):,} clients; expected at most {MOST_CLIENTS:,}")
    return dict(sorted(found.items()))


def by_round(given: Any, target: str) -> list[dict[int, Any]]:
    """Return uploads as one mapping from the client's number for each round, the oldest first.

    Several rounds are a list whose entries are lists, or mappings from client numbers; anything else is one round. A mapping
    from whole numbers to vectors is one client's upload where the target has a row a class, by client otherwise.

    Raises:
        UserError: as :func:`by_client`.
    """
    several = isinstance(given, list) and all(
        isinstance(one, list)
        or (isinstance(one, Mapping) and all(isinstance(key, int) for key in one) and not is_one_upload(one, target))
        for one in given
    )
    return [by_client("uploads", one, target) for one in (given if several and given else [given])]


def declared_groups(given: Any, clients: Sequence[int]) -> dict[int, int]:
    """Return client -> number of its independent unit, in the order in which their labels come; empty where none are given.

    Raises:
        UserError: for anything but a label, a text or a whole number, for each client.
    """
    if given is None:
        return {}
    if not isinstance(given, (list, tuple, Mapping)):
        raise UserError(f"{argument('groups', given)}: expected one label a client, a list or a mapping by client")
    labels = each("groups", given, clients)
    for client, label in labels.items():
        if isinstance(label, bool) or not isinstance(label, (int, str)):
            raise UserError(
                f"{argument('groups')}: {shown(label)} of client {client}; expected a text or a whole number"
            )
    order = list(dict.fromkeys(labels.values()))
    return {client: order.index(label) for client, label in labels.items()}


def each(name: str, given: Any, clients: Sequence[int]) -> dict[int, Any]:
    """Return an argument that is one for all clients, or one a client (a list in their order, or a mapping).

    Raises:
        UserError: naming the argument and the client that is left out.
    """
    if isinstance(given, Mapping) and all(isinstance(key, int) for key in given):
        missing = [client for client in clients if client not in given]
        if missing:
            raise UserError(f"{argument(name)}: nothing for client {missing[0]}; expected one for each upload")
        return {client: given[client] for client in clients}
    if isinstance(given, (list, tuple)):
        if len(given) != len(clients):
            raise UserError(f"{argument(name)}: {len(given)} given for {len(clients)} uploads; expected one for each")
        return dict(zip(clients, given, strict=True))
    return dict.fromkeys(clients, given)


def check_images(name: str, images: Any, shape: Sequence[int] | None = None) -> Tensor:
    """Return images on the CPU as float32 ``(n, c, h, w)``.

    Raises:
        UserError: naming the argument, what was given and what would be right.
    """
    where = argument(name)
    if not isinstance(images, Tensor):
        raise UserError(f"{where}: expected a tensor (n, c, h, w), got {type(images).__name__}")
    check_plain(where, images)
    if images.dim() != 4 or not images.numel():
        raise UserError(f"{where}: expected a tensor (n, c, h, w) of at least one image, got {tuple(images.shape)}")
    if not images.is_floating_point():
        raise UserError(f"{where}: expected floats in [0, 1], got {images.dtype}; divide by 255")
    found = images.detach().to("cpu", torch.float32)
    if not bool(found.isfinite().all()):
        raise UserError(f"{where}: holds NaN or infinity; expected values in [0, 1]")
    low, high = float(found.min()), float(found.max())
    if low < 0 or high > 1:
        raise UserError(f"{where}: values from {low:.3g} to {high:.3g}; expected [0, 1], before any normalisation")
    if shape is not None and found.shape[1:] != torch.Size(shape):
        raise UserError(f"{where}: images {tuple(found.shape[1:])}, expected {tuple(shape)} as the clients' images are")
    return found


def check_labels(name: str, labels: Any, count: int | None = None) -> Tensor:
    """Return labels on the CPU as int64 ``(n,)``, of any number where none is expected.

    Raises:
        UserError: naming the argument, what was given and what would be right.
    """
    where = argument(name)
    found = _numbers(where, labels, "whole numbers, one an image")
    if found.is_floating_point() or found.dtype == torch.bool or found.is_complex():
        raise UserError(f"{where}: expected whole numbers, got {found.dtype}")
    if found.dim() != 1 or not len(found) or count not in (None, len(found)):
        expected = "as many as images" if count is None else count
        raise UserError(f"{where}: expected {expected}, one an image, got shape {tuple(found.shape)}")
    found = found.long()
    if int(found.min()) < 0:
        raise UserError(f"{where}: expected classes of at least 0, got {int(found.min())}")
    if int(found.max()) >= MOST_CLASSES:
        raise UserError(f"{where}: class {int(found.max())}; expected 0..{MOST_CLASSES - 1}")
    return found


def _numbers(where: str, given: Any, expected: str) -> Tensor:
    """Return a tensor, or a list of numbers, as a tensor on the CPU without a graph."""
    try:
        found = given if isinstance(given, Tensor) else torch.as_tensor(given)
    except Exception as error:  # of an object with an array's protocols anything
        raise UserError(f"{where}: expected {expected}, got {type(given).__name__}") from error
    return check_plain(where, found).detach().cpu()


def private_images(
    images: Any, labels: Any, weights: Any, uploads: Mapping[int, tuple[Payload, ...]]
) -> dict[int, PrivateImages]:
    """Return each client's own images with their labels.

    Args:
        images: tensors ``(n, c, h, w)``, one a client; a tensor where there is one upload.
        labels: ``(n,)``, one a client; None where uploads name the class of each image.
        weights: ``(n,)`` shares in a mixture, one a client; None where they follow from the label encoding.
        uploads: by client.

    Raises:
        UserError: naming the argument that is wrong.
    """
    clients = list(uploads)
    for name, given in (("images", images), ("labels", labels), ("weights", weights)):
        if isinstance(given, Tensor) and len(clients) > 1:
            raise UserError(f"{argument(name)}: one tensor for {len(clients)} uploads; expected a list, one a client")
    if len(clients) == 1:
        client = clients[0]
        images, labels, weights = (
            given if given is None or isinstance(given, Mapping) else {client: _only(given)}
            for given in (images, labels, weights)
        )
    shown = {k: check_images("images", one) for k, one in each("images", images, clients).items()}
    shapes = {tuple(one.shape[1:]) for one in shown.values()}
    if len(shapes) > 1:
        raise UserError(f"{argument('images')}: shapes {sorted(shapes)}; expected one shape for all clients")
    named = each("labels", labels, clients) if labels is not None else dict.fromkeys(clients)
    shares = each("weights", weights, clients) if weights is not None else dict.fromkeys(clients)
    found = {}
    for client, own in shown.items():
        told = named[client]
        if told is None:
            sent = next((payload for payload in uploads[client] if payload.computed_from == "image"), None)
            said = None if sent is None else sent.field_that_says("classes")
            if said is None:
                raise UserError(f"{argument('labels')}: missing; expected the class of each image, one tensor a client")
            told = getattr(sent, said)
        found[client] = PrivateImages(
            own, check_labels("labels", told, len(own)), _check_weights(shares[client], len(own))
        )
    return found


def _only(given: Any) -> Any:
    """Return the single entry of a list of one tensor or list, or what was given itself."""
    nested = isinstance(given, (list, tuple)) and len(given) == 1 and isinstance(given[0], (Tensor, list, tuple))
    return given[0] if nested else given


def _check_weights(weights: Any, count: int) -> Tensor | None:
    if weights is None:
        return None
    given = _numbers(argument("weights"), weights, f"{count} finite shares, one an image")
    found = given.double().abs() if not given.is_complex() else torch.empty(0)
    if found.shape != (count,) or not bool(found.isfinite().all()) or not float(found.sum()) > 0:
        raise UserError(f"{argument('weights')}: expected {count} finite shares, not all zero, one an image")
    return found
