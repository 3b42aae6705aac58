"""Outputs that clients upload, and distances of candidates' representations and outputs from what was uploaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.algebra.matrices import nearest_distribution
from fedpriv.attacks.inputs.targets import observation_of, upload_holds
from fedpriv.attacks.observation import Knowledge, Observation, TargetId
from fedpriv.uploads.payloads import ClassLogits, PublicLogits, find_payload
from fedpriv.util.errors import UserError

Match = Literal["vector", "direction", "nonzero", "pruned"]
"""The part of an uploaded vector that is believed, where a defense may have changed it.

- ``vector``: everything.
- ``direction``: all but its length, which ``clip`` changes.
- ``nonzero``: the coordinates that are not zero; the others were not sent (``diagonal``).
- ``pruned``: the coordinates that are not zero, and that the others are no larger than the smallest of them (``prune``).
"""

_TINY = 1e-12


def squared_length(wanted: Tensor) -> Tensor:
    """Return ``||r||^2`` of each observed representation ``(N, d)``, which distances are divided by."""
    return wanted.square().sum(1).clamp_min(_TINY)


def relative_feature_distance(features: Tensor, wanted: Tensor) -> Tensor:
    """Return ``||g(x') - r||^2 / ||r||^2`` of each row ``(N,)`` of candidates' and observed representations ``(N, d)``.

    So every target has the same scale: ReLU features of large norm would swamp a prior.
    """
    return functional.mse_loss(features, wanted, reduction="none").sum(1) / squared_length(wanted)


def direction_distance(features: Tensor, wanted: Tensor) -> Tensor:
    """Return ``||g(x') / ||g(x')|| - r / ||r|| ||^2`` in [0, 4], twice one minus the cosine: blind to both lengths."""
    first, second = (functional.normalize(values, dim=1, eps=_TINY) for values in (features, wanted))
    return (first - second).square().sum(1)


def nonzero_distance(features: Tensor, wanted: Tensor) -> Tensor:
    """Return the relative feature distance over the coordinates of ``wanted`` that are not zero."""
    return relative_feature_distance(features * (wanted != 0), wanted)


def pruned_distance(features: Tensor, wanted: Tensor) -> Tensor:
    """Return the relative feature distance in which a coordinate that is zero in ``wanted`` costs only what it exceeds.

    Pruning keeps the largest entries, so each entry that was dropped is at most as large as the smallest one that was kept.
    """
    kept = wanted != 0
    least = wanted.abs().masked_fill(~kept, float("inf")).amin(1, keepdim=True).nan_to_num(posinf=0.0)
    beyond = (features.abs() - least).clamp_min(0) * ~kept
    return relative_feature_distance(features * kept, wanted) + beyond.square().sum(1) / squared_length(wanted)


DISTANCES: dict[Match, Callable[[Tensor, Tensor], Tensor]] = {
    "vector": relative_feature_distance,
    "direction": direction_distance,
    "nonzero": nonzero_distance,
    "pruned": pruned_distance,
}
"""(representations ``(N, d)`` of the candidates, uploaded vectors ``(N, d)``) -> ``(N,)``."""

_RIDGE = 1e-2
_SAME = 1e-4  # largest difference of pixels of one image
_MOST_CHANGED = 0.25  # share of outputs' squares that may lie beside the nearest distributions, of softmax vectors

_LIKELY_SUMS = (0.6, 1.4)
"""Mean sum of rows that may have been softmax vectors. That of logits stays what it was before training, about zero, for
gradients of the cross-entropy sum to zero."""


def as_distributions(rows: Tensor) -> Tensor | None:
    """Return rows ``(n, C)`` as distributions, the nearest ones where a defense changed them; None for logits."""
    if bool((rows >= 0).all()) and bool(((rows.sum(1) - 1).abs() < 1e-4).all()):
        return rows
    if not len(rows) or not bool(rows.isfinite().all()):
        return None
    mended = nearest_distribution(rows)
    apart, size = (rows - mended).double().square().sum(), rows.double().square().sum()
    likely = _LIKELY_SUMS[0] <= float(rows.double().sum(1).mean()) <= _LIKELY_SUMS[1]
    return mended if likely and bool(apart <= _MOST_CHANGED * size) else None


def read_outputs(rows: Tensor) -> tuple[Tensor, bool]:
    """Return softmax vectors ``(n, C)`` and True, or logits as they are and False; see :func:`as_distributions`."""
    shares = as_distributions(rows)
    return (rows, False) if shares is None else (shares, True)


def output_distance(logits: Tensor, wanted: Tensor, *, softmax: bool) -> Tensor:
    """Return the distance ``(n,)`` of answers z ``(n, C)`` from uploaded outputs u ``(n, C)``, zero where they agree.

    Softmax outputs are compared by KL(u || softmax(z)), logits by ``||z - u||^2 / ||u||^2``.
    """
    if not softmax:
        return relative_feature_distance(logits, wanted)
    current = (wanted * wanted.clamp_min(_TINY).log()).sum(1)
    return (current - (wanted * logits.log_softmax(1)).sum(1)).clamp_min(0)


def uploaded_output(observations: Sequence[Observation], target: TargetId) -> tuple[Tensor, bool]:
    """Return the output ``(C,)`` that a target points at, and whether the upload holds softmax vectors."""
    sent = find_payload(observation_of(observations, target).upload, ClassLogits)
    where = f"upload of client {target.client} in round {target.round}"
    if sent is None:
        raise UserError(f"{where} holds no class outputs")
    if not 0 <= target.index < len(sent.values):
        raise UserError(f"{where}: target index {target.index}, expected 0..{len(sent.values) - 1}")
    values, softmax = read_outputs(sent.values)
    return values[target.index], softmax


def public_outputs(seen: Observation) -> PublicLogits:
    """Return the outputs on public samples that an upload holds, or refuse one without any."""
    sent = find_payload(seen.upload, PublicLogits)
    if sent is None or not len(sent.values):
        raise UserError(f"{upload_holds(seen)}; expected outputs on public samples")
    return sent


def log_outputs(sent: PublicLogits) -> Tensor:
    """Return the logarithm of softmax outputs ``(n, C)``, float64 on the CPU, of logits or softmax vectors."""
    values = sent.values.double().cpu()
    shares = as_distributions(values)
    if shares is None:
        return values.log_softmax(1)
    changed = float((values - shares).square().mean().sqrt())  # below that nothing is known of a share
    return shares.clamp_min(max(changed, _TINY)).log()


def public_samples(attack: str, sent: PublicLogits, knowledge: Knowledge) -> Tensor:
    """Return the images ``(n, c, h, w)`` that outputs are of, which a card must grant as the attacker's own."""
    images = knowledge.public_images
    if images is None:
        granted = "knowledge={'attacker_data': 'same_domain'}"
        raise UserError(f"attack {attack!r} needs the public images that outputs are of; pass {granted}")
    first, last = int(sent.samples.min()), int(sent.samples.max())
    if first < 0 or last >= len(images):
        raise UserError(
            f"attack {attack!r}: outputs are of public samples {first} to {last}, but the attacker holds {len(images)} "
            "images; expected the whole public set, in its order"
        )
    return images[sent.samples.to(images.device)]


def known_classes(values: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Return the class ``(L,)`` of each broadcast image among the attacker's own, of classes ``labels``, else -1."""
    current = images.flatten(1).cpu()
    wanted = values.flatten(1).to(current)
    nearest = torch.cdist(wanted, current).argmin(1)
    strange = (current[nearest] - wanted).abs().amax(1) > _SAME
    return labels.cpu()[nearest].masked_fill(strange, -1)


def extrapolate(known: Tensor, wanted: Tensor, images: Tensor, width: float = 1.0) -> Tensor:
    """Return ridge regression's values ``(m, k)`` at images ``(m, c, h, w)`` from ``wanted`` ``(n, k)`` at ``known``.

    The kernel over pixels is exp(-|x - x'|^2 / (w s)), with s the summed variance of the pixels of ``known``
    ``(n, c, h, w)`` and w the ``width``. In float64 on the CPU; far from everything known the values go to zero.
    """
    among, across = _pixel_kernels(known, images, width)
    values: Tensor = across @ torch.linalg.solve(among, wanted.double().cpu())
    return values


def extrapolation_weights(known: Tensor, images: Tensor, width: float = 1.0) -> Tensor:
    """Return the weights of values at known images in those at others ``(m, n)``, float64; each row sums to one.

    As :func:`extrapolate`, with the mean over everything known in the place of zero.
    """
    among, across = _pixel_kernels(known, images, width)
    weights: Tensor = torch.linalg.solve(among, across.T).T
    return weights + (1 - weights.sum(1, keepdim=True)) / len(known)


def _pixel_kernels(known: Tensor, images: Tensor, width: float) -> tuple[Tensor, Tensor]:
    """Return the kernel among ``known`` with the ridge on it ``(n, n)``, and that between images and these ``(m, n)``."""
    public, pixels = known.flatten(1).double().cpu(), images.flatten(1).double().cpu()
    scale = width * public.var(0).sum().clamp(min=1e-12)
    among = torch.exp(-torch.cdist(public, public).square() / scale)
    across = torch.exp(-torch.cdist(pixels, public).square() / scale)
    return among + _RIDGE * torch.eye(len(public), dtype=torch.float64), across
