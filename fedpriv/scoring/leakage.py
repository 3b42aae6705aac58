"""Likeness of two images, or two vectors, one number each.

Every image measure takes ``(images (n, c, h, w), truth (n, c, h, w))`` in [0, 1] and gives ``(n,)``; images are clamped
to [0, 1] first. Means come last, and elsewhere.

Sources: SSIM, Wang, Bovik, Sheikh and Simoncelli 2004, equations 13 and 14, with K1 = 0.01, K2 = 0.03 and L = 1; LPIPS,
Zhang, Isola, Efros, Shechtman and Wang 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fedpriv.util.errors import UserError

_SMALLEST_MSE = 1e-10  # -10 log10 of this is the cap of the PSNR, 100 dB
_LPIPS_CHUNK = 64
_LPIPS_SIDE = 64  # smaller images are enlarged to this: AlexNet's pools leave nothing of 32 pixels
GAUSSIAN_SIDE, SIGMA = 11, 1.5
UNIFORM_SIDE = 7  # of the window of SSIM, where an image is too small for the Gaussian one
_C1, _C2 = 0.01**2, 0.03**2
_CHUNK_BYTES = 64 * 2**20  # bounds the memory of what is filtered at a time; changes nothing

ImageMeasure = Callable[[Tensor, Tensor], Tensor]


def _pair(images: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    if images.dim() != 4 or images.shape != truth.shape:
        raise UserError(
            f"images {tuple(images.shape)} and truth {tuple(truth.shape)} should have one shape (n, c, h, w)"
        )
    return images.double().clamp(0, 1), truth.double().clamp(0, 1)


def psnr_of_mse(error: Tensor) -> Tensor:
    """Return the PSNR in dB of mean squared errors on [0, 1]: -10 log10 max(MSE, 1e-10), at most 100 dB.

    >>> psnr_of_mse(torch.tensor([0.01, 0.0], dtype=torch.float64)).tolist()
    [20.0, 100.0]
    """
    return -10 * error.clamp_min(_SMALLEST_MSE).log10()


def mse(images: Tensor, truth: Tensor) -> Tensor:
    """Return the mean squared error of each image on [0, 1], over all channels and pixels. Shape ``(n,)``, float64.

    Raises:
        UserError: when the shapes differ or are not ``(n, c, h, w)``.
    """
    left, right = _pair(images, truth)
    return (left - right).square().mean(dim=(1, 2, 3))


def psnr(images: Tensor, truth: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio of each image in dB, peak 1, at most 100. Shape ``(n,)``."""
    return psnr_of_mse(mse(images, truth))


# ---------------------------------------------------------------- structural similarity


def ssim_unavailable(image_shape: tuple[int, ...]) -> str | None:
    """Return why SSIM cannot be measured on images ``(..., h, w)``, or None where it can."""
    side = min(image_shape[-2:])
    return None if side >= 7 else f"not measured: SSIM's window needs sides of 7 pixels or more, images have {side}"


def ssim(images: Tensor, truth: Tensor) -> Tensor:
    """Return the structural similarity of each image in [-1, 1], mean over windows and channels. Shape ``(n,)``.

    Gaussian window 11 x 11 with sigma 1.5 and data range 1; where a side is under 11, a uniform window 7 x 7. Only
    windows that lie wholly inside the image count, as in the paper and in scikit-image. Windows are filtered as two banded
    matrices in double precision, which is some thirty times faster than torchmetrics and equal to 1e-15.

    Raises:
        UserError: when the shapes differ, or a side is under 7 (see :func:`ssim_unavailable`).
    """
    left, right = _pair(images, truth)
    reason = ssim_unavailable(tuple(images.shape))
    if reason is not None:
        raise UserError(reason)
    _, channels, height, width = images.shape
    weights = window(min(height, width)).to(images.device)
    down, across = band(weights, height), band(weights, width).T
    chunk = max(1, _CHUNK_BYTES // (5 * 8 * channels * height * width))
    results = [torch.zeros(0, dtype=torch.float64)]
    for a, b in zip(left.split(chunk), right.split(chunk), strict=True):
        # The variances count by their sum alone, so the squares are filtered together.
        mean_a, mean_b, squares, product = down @ torch.stack([a, b, a * a + b * b, a * b]) @ across
        means, both = mean_a.square() + mean_b.square(), mean_a * mean_b
        variances = (squares - means).clamp_min(0)  # rounding may leave it a little below zero where there is none
        light = (2 * both + _C1) / (means + _C1)
        form = (2 * (product - both) + _C2) / (variances + _C2)
        results.append((light * form).mean(dim=(1, 2, 3)))
    return torch.cat(results)


def window(side: int) -> Tensor:
    """Return the weights of the window along one axis for images whose shorter side is ``side``. Float64; they sum to 1."""
    if side < GAUSSIAN_SIDE:
        return torch.full((UNIFORM_SIDE,), 1 / UNIFORM_SIDE, dtype=torch.float64)
    position = torch.arange(GAUSSIAN_SIDE, dtype=torch.float64) - GAUSSIAN_SIDE // 2
    weights = torch.exp(-position.square() / (2 * SIGMA**2))
    return weights / weights.sum()


def band(weights: Tensor, size: int) -> Tensor:
    """Return the banded matrix ``(size - k + 1, size)`` that filters an axis of ``size`` entries by k weights.

    >>> band(torch.tensor([1.0, 2.0]), 3).tolist()
    [[1.0, 2.0, 0.0], [0.0, 1.0, 2.0]]
    """
    made = weights.new_zeros(size - len(weights) + 1, size)
    for index, weight in enumerate(weights):
        made.diagonal(index).fill_(weight)
    return made


# ---------------------------------------------------------------- learned perceptual distance


_BACKBONES = {
    "alex": "alexnet-owt-7be5be79.pth",
    "squeeze": "squeezenet1_1-b8a52dc0.pth",
    "vgg": "vgg16-397923af.pth",
}


def lpips_backbone() -> str | None:
    """Return the first of "alex", "squeeze", "vgg" whose weights are on this disk, or None."""
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    return next((net for net, file in _BACKBONES.items() if (folder / file).is_file()), None)


def lpips_unavailable() -> str | None:
    """Return why LPIPS cannot be measured, or None where it can. Nothing is ever downloaded for it."""
    if lpips_backbone() is not None:
        return None
    return f"not measured: no backbone weights ({_BACKBONES['alex']}) in the checkpoints folder of torch's hub"


def lpips(images: Tensor, truth: Tensor) -> Tensor:
    """Return the learned perceptual distance of each image, >= 0. Shape ``(n,)``.

    Grey images are repeated to three channels; sides under 64 are enlarged (bilinear) to 64.

    Raises:
        UserError: when the shapes differ, or the backbone's weights are not on this disk.
    """
    left, right = _pair(images, truth)
    net = lpips_backbone()
    if net is None:
        raise UserError(str(lpips_unavailable()))
    from torchmetrics.functional.image import learned_perceptual_image_patch_similarity

    results = [torch.zeros(0, dtype=torch.float64)]
    for part, true_part in zip(left.split(_LPIPS_CHUNK), right.split(_LPIPS_CHUNK), strict=True):
        with torch.no_grad():
            value = learned_perceptual_image_patch_similarity(
                _for_backbone(part), _for_backbone(true_part), net_type=net, reduction="none", normalize=True
            )
        results.append(value.reshape(-1).double())
    return torch.cat(results)


def _for_backbone(images: Tensor) -> Tensor:
    colour = images.float()
    if colour.shape[1] == 1:
        colour = colour.expand(-1, 3, -1, -1)
    if min(colour.shape[-2:]) < _LPIPS_SIDE:
        size = (max(_LPIPS_SIDE, colour.shape[-2]), max(_LPIPS_SIDE, colour.shape[-1]))
        colour = torch.nn.functional.interpolate(colour, size=size, mode="bilinear", align_corners=False)
    return colour.clamp(0, 1)


# ---------------------------------------------------------------- vectors


def relative_error(features: Tensor, truth: Tensor) -> Tensor:
    """Return |v - t| / |t| of each recovered feature vector ``(n, d)``, >= 0. Shape ``(n,)``.

    A zero truth gives 0 where the vector is zero too, else infinity.
    """
    left, right = _vectors(features, truth)
    distance, norm = (left - right).norm(dim=1), right.norm(dim=1)
    return torch.where(distance == 0, torch.zeros_like(distance), distance / norm)


def cosine(features: Tensor, truth: Tensor) -> Tensor:
    """Return the cosine between each recovered feature vector ``(n, d)`` and the true one; 0 where one is zero."""
    left, right = _vectors(features, truth)
    norms = left.norm(dim=1) * right.norm(dim=1)
    return torch.where(norms > 0, (left * right).sum(dim=1) / norms.clamp_min(1e-300), torch.zeros_like(norms))


def _vectors(features: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    if features.dim() != 2 or features.shape != truth.shape:
        raise UserError(f"features {tuple(features.shape)} and truth {tuple(truth.shape)} should have one shape (n, d)")
    return features.double(), truth.double()
