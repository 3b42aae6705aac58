"""Membership from kernels over public images: does a client's network put this image with its class, as others' do not?

A kernel K = H H^T is what a client's network makes of public images, up to a rotation, and nothing in it is computed from a
private image. But a network that has learned an image moves what lies near to it along. With K centred (no offset counts)
and a(x) the weights by which ridge regression over pixels makes the value at a candidate x out of those at public images,
H^T a(x) stands for its representation, and with u_y the mean over public images of class y less the mean over all, H^T u_y
for the direction of its class. The signal of a candidate is the cosine between the two,

    a(x)^T K u_y / sqrt(a(x)^T K a(x)  u_y^T K u_y),

which no rotation changes; for every client it is of the same images and weights, so that clients can be held against one
another (:func:`fedpriv.attacks.infer.membership_null.beyond_the_spread`). Who does not know the classes of public images has
the length of the first alone, a(x)^T K a(x) over the mean of the diagonal. Neither uses a client's extractor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpriv.algebra.matrices import centred
from fedpriv.attacks.infer.kernel_classes import known_classes
from fedpriv.attacks.inputs.outputs import extrapolation_weights
from fedpriv.attacks.inputs.targets import upload_holds
from fedpriv.attacks.observation import Knowledge, Observation
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import Kernel, PublicImages, find_payload

WIDTH = 2.0
"""Of the kernel over pixels, in summed variances of the public images."""

_TINY = 1e-12


def kernel_signals(seen: Sequence[Observation], images: Tensor, labels: Tensor, knowledge: Knowledge) -> Tensor:
    """Return the signal of each upload for each candidate: ``(k, n)`` float64 on the CPU.

    Args:
        seen: k observations of a round, whose kernels are of the same public images.
        images: candidates ``(n, c, h, w)``.
        labels: their classes ``(n,)``.
        knowledge: with classes of public images, where the card grants any.

    Raises:
        UserError: when an upload holds no kernel, or the broadcast not the images that it is about.
    """
    kernels = [_centred_kernel(one) for one in seen]
    public = _public_images(seen[0], len(kernels[0]))
    weights = extrapolation_weights(public, images, WIDTH)
    classes = _classes(public, knowledge)
    towards = None if classes is None else _directions(classes, labels.cpu())
    return torch.stack([_signal(one, weights, towards) for one in kernels])


def _centred_kernel(seen: Observation) -> Tensor:
    sent = find_payload(seen.upload, Kernel)
    if sent is None:
        raise UserError(f"{upload_holds(seen)}; expected a kernel")
    return centred(sent.matrix.double().cpu())


def _public_images(seen: Observation, number: int) -> Tensor:
    sent = find_payload(seen.broadcast, PublicImages)
    if sent is None:
        raise UserError(f"broadcast of round {seen.round}: holds no public images; a kernel is about some")
    return sent.images[-number:]


def _classes(public: Tensor, knowledge: Knowledge) -> Tensor | None:
    """Return the classes ``(L,)`` of public images, -1 for one that is not known; None where none is."""
    own, labels = knowledge.public_images, knowledge.public_labels
    if own is None or labels is None or own.shape[1:] != public.shape[1:]:
        return None
    found = known_classes(public, own, labels)
    return found if bool((found >= 0).any()) else None


def _directions(classes: Tensor, labels: Tensor) -> Tensor:
    """Return for each candidate the weights of public images in the direction of its class ``(n, L)``; 0 without any."""
    same = (labels[:, None] == classes).double()
    number = same.sum(1, keepdim=True)
    return torch.where(number > 0, same / number.clamp_min(1) - 1 / len(classes), 0.0)


def _signal(matrix: Tensor, weights: Tensor, towards: Tensor | None) -> Tensor:
    """Return the cosine ``(n,)`` of extrapolated representations and class directions, or the square of their lengths."""
    across = weights @ matrix
    squares: Tensor = torch.linalg.vecdot(across, weights)
    if towards is None:
        return squares / matrix.diagonal().mean().clamp_min(_TINY)
    others: Tensor = torch.linalg.vecdot(towards @ matrix, towards)
    # A defense may leave a matrix that is no product: a negative square counts as none.
    lengths = (squares.clamp_min(0) * others.clamp_min(0)).sqrt()
    cosines: Tensor = torch.linalg.vecdot(across, towards) / lengths.clamp_min(_TINY)
    return cosines.clamp(-1, 1)
