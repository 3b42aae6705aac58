"""Held-out images that a caller brings: each client's own, that no upload was computed from. For scorers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fedpriv.datasets.types import Samples
from fedpriv.experiment.uploads.given import PrivateImages, check_images, check_labels, each
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError


def read_held_out(
    given: Any, own: Mapping[int, PrivateImages], shape: Sequence[int], public: Samples | None
) -> dict[int, Samples]:
    """Return each client's held-out images with their classes; nothing where none are given.

    Args:
        given: a pair (images, labels) for each client, a list or a mapping by client; the pair alone where there is one
            client.
        own: the images behind each client's upload.
        shape: (channels, height, width).
        public: the attacker's own images.

    Raises:
        UserError: for anything else, and for an image that an upload was computed from or that the attacker has.
    """
    if given is None:
        return {}
    where, clients = argument("held_out"), list(own)
    alone = isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], Tensor)
    if alone and len(clients) > 1:
        raise UserError(
            f"{where}: one pair for {len(clients)} clients; expected a list of (images, labels), one a client"
        )
    if not isinstance(given, (list, tuple, Mapping)):
        raise UserError(f"{where}: expected (images, labels) for each client, got {type(given).__name__}")
    known = {} if public is None else dict.fromkeys(map(_key, public.images.cpu()), "the attacker's (public)")
    for client, private in own.items():
        known |= dict.fromkeys(map(_key, private.images), f"behind the upload of client {client}")
    found = {}
    for client, pair in each("held_out", [given] if alone else given, clients).items():
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise UserError(f"{where}: expected (images, labels) for client {client}, got {type(pair).__name__}")
        images = check_images("held_out", pair[0], shape)
        labels = check_labels("held_out", pair[1], len(images))
        for place, image in enumerate(images):
            if (whose := known.get(_key(image))) is not None:
                raise UserError(
                    f"{where}: image {place} of client {client} is one {whose}; expected images that the client holds and "
                    "did not train on"
                )
        found[client] = Samples(images, labels)
    return found


def _key(image: Tensor) -> bytes:
    return image.numpy().tobytes()
