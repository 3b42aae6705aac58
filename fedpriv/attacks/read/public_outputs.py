"""A client's outputs on public samples, these samples, and what outputs on them say of other images."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedpriv.attacks.observation import Knowledge, Observation
from fedpriv.attacks.read.class_outputs import as_distributions
from fedpriv.attacks.read.target_features import upload_holds
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import PublicLogits, find_payload

_TINY = 1e-12
_RIDGE = 1e-2


def public_outputs(seen: Observation) -> PublicLogits:
    """Return the outputs on public samples that an upload holds.

    Raises:
        UserError: when it holds none, or no output at all.
    """
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
    """Return the images ``(n, c, h, w)`` that outputs are of, which a card grants as the attacker's own.

    Raises:
        UserError: when the attacker holds no images, or not these.
    """
    images = knowledge.public_images
    if images is None:
        granted = argument("knowledge", {"attacker_data": "same_domain"})
        raise UserError(f"attack {attack!r} needs the public images that outputs are of; pass {granted}")
    first, last = int(sent.samples.min()), int(sent.samples.max())
    if first < 0 or last >= len(images):
        raise UserError(
            f"attack {attack!r}: outputs are of public samples {first} to {last}, but the attacker holds {len(images)} "
            "images; expected the whole public set, in its order"
        )
    return images[sent.samples.to(images.device)]


def of_others(tables: Mapping[int, Tensor], client: int) -> Tensor:
    """Return the mean of the other clients' tables, of equal shapes."""
    return torch.stack([table for other, table in tables.items() if other != client]).mean(0)


def extrapolate(known: Tensor, wanted: Tensor, images: Tensor, width: float = 1.0) -> Tensor:
    """Return ridge regression's values ``(m, k)`` at images ``(m, c, h, w)`` from ``wanted`` ``(n, k)`` at ``known``.

    The kernel over pixels is exp(-|x - x'|^2 / (w s)), with s the summed variance of the pixels of ``known``
    ``(n, c, h, w)`` and w the ``width``. In float64 on the CPU; far from everything known the values go to zero.
    """
    among, across = _pixel_kernels(known, images, width)
    found: Tensor = across @ torch.linalg.solve(among, wanted.double().cpu())
    return found


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
