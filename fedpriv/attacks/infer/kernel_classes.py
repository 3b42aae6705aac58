"""Classes that a client holds, by how alike its kernel over public images makes images of one class.

A client learns to tell the classes that it holds from others, so it moves representations of such a class away from the
middle, in one direction: two public images of it are more alike than other clients make the same images. The server has all
kernels of a round and, where it knows the classes of its public images, needs nothing else: no client is made up, and
nobody is in league with it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedpriv.algebra.matrices import centred
from fedpriv.attacks.observation import Observation
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import Kernel, PublicImages, get_payload

_TINY = 1e-9
_SAME = 1e-4


def likeness(matrix: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Return the mean similarity of two images of each class ``(C,)``, float64; NaN for a class of fewer than two.

    The kernel ``(L, L)`` of images of classes ``labels`` ``(L,)`` is centred and divided by the mean of its diagonal, so
    that neither an offset nor the length of representations counts.
    """
    similar = centred(matrix.double().cpu())
    similar = similar / similar.diagonal().mean().clamp_min(_TINY)
    similar = similar.clone().fill_diagonal_(0)
    of_class = torch.nn.functional.one_hot(labels.cpu(), n_classes).double()
    number = of_class.sum(0)
    return (of_class.T @ similar @ of_class).diagonal() / torch.where(number > 1, number * (number - 1), torch.nan)


def compare(
    uploads: Mapping[int, Observation], images: Tensor, labels: Tensor, n_classes: int
) -> dict[int, tuple[Tensor, Tensor]]:
    """Return for each client the classes that can be asked about ``(k,)`` and their scores ``(k,)``, float64.

    A score says by how many standard deviations of the other clients' the images of a class are more alike than theirs, less
    the mean of that over the client's classes: some clients make everything more alike. The attacker's own images, of the
    classes ``labels``, include those that were broadcast to the two clients or more.
    """
    table = torch.stack([_of_client(seen, images, labels, n_classes) for seen in uploads.values()])
    classes = table.isfinite().all(0).nonzero().squeeze(1)
    if not len(classes):
        raise UserError("property: no class has two of the public images of the round; train with a larger rad_size")
    table = table[:, classes]
    found = {}
    for place, client in enumerate(uploads):
        others = table[torch.arange(len(table)) != place]
        above = (table[place] - others.mean(0)) / others.std(0, unbiased=False).clamp_min(_TINY)
        found[client] = classes, above - above.mean()
    return found


def _of_client(seen: Observation, images: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    matrix = get_payload(seen.upload, Kernel).matrix
    asked = get_payload(seen.broadcast, PublicImages).images[-len(matrix) :]
    return likeness(matrix, _classes_of(asked, images, labels), n_classes)


def known_classes(asked: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Return the class ``(L,)`` of each broadcast image ``(L, c, h, w)`` that is one of the attacker's own, else -1.

    Args:
        asked: broadcast images.
        images: the attacker's own ``(p, c, h, w)``.
        labels: their classes ``(p,)``.
    """
    own = images.flatten(1).cpu()
    wanted = asked.flatten(1).to(own)
    nearest = torch.cdist(wanted, own).argmin(1)
    strange = (own[nearest] - wanted).abs().amax(1) > _SAME
    return labels.cpu()[nearest].masked_fill(strange, -1)


def _classes_of(asked: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Return the classes ``(L,)`` of broadcast images, found among the attacker's own."""
    found = known_classes(asked, images, labels)
    if bool((found < 0).any()):
        raise UserError(
            "property: an image that was broadcast is none of the attacker's own, so its class is not known"
        )
    return found
