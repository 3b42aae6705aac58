"""Likeness of two images, one number an image.

Every image measure takes ``(images (n, c, h, w), truth (n, c, h, w))`` in [0, 1] and gives ``(n,)``; images are clamped
to [0, 1] first. Means come last, and elsewhere.

Sources: SSIM, Wang, Bovik, Sheikh and Simoncelli 2004; LPIPS, Zhang, Isola, Efros, Shechtman and Wang 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedpriv.scoring.ssim import structural_similarity
from fedpriv.util.errors import UserError
from fedpriv.util.registry import Registry

PSNR_CAP_DB = 100.0
_SMALLEST_MSE = 1e-10  # -10 log10 of this is the cap
_LPIPS_CHUNK = 64
_LPIPS_SIDE = 64  # smaller images are enlarged to this: AlexNet's pools leave nothing of 32 pixels

ImageMeasure = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Metric:
    """A measure as a table needs it.

    Attributes:
        name: key in ``metrics.json``.
        unit: "dB", "squared grey levels" or "" (none).
        higher_is_better: whether a higher value means a better reconstruction, that is, more leakage.
        description: one line for a reader.
        function: ``(found, truth) -> (n,)``, row by row, of two tensors of one shape: images ``(n, c, h, w)`` in [0, 1], or
            recovered vectors ``(n, d)``.
        of: which of the two.
    """

    name: str
    unit: str
    higher_is_better: bool
    description: str
    function: ImageMeasure
    of: Literal["images", "vectors"] = "images"


def _pair(images: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    if images.dim() != 4 or images.shape != truth.shape:
        raise UserError(
            f"images {tuple(images.shape)} and truth {tuple(truth.shape)} should have one shape (n, c, h, w)"
        )
    return images.double().clamp(0, 1), truth.double().clamp(0, 1)


def _chunks(left: Tensor, right: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    return ((left[start : start + size], right[start : start + size]) for start in range(0, len(left), size))


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


def mse_255(images: Tensor, truth: Tensor) -> Tensor:
    """Return the mean squared error of each image in squared grey levels of 0..255. Shape ``(n,)``."""
    return mse(images, truth) * 255**2


def psnr(images: Tensor, truth: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio of each image in dB, peak 1, at most 100. Shape ``(n,)``."""
    return psnr_of_mse(mse(images, truth))


def ssim_unavailable(image_shape: tuple[int, ...]) -> str | None:
    """Return why SSIM cannot be measured on images ``(..., h, w)``, or None where it can."""
    side = min(image_shape[-2:])
    return None if side >= 7 else f"not measured: SSIM's window needs sides of 7 pixels or more, images have {side}"


def ssim(images: Tensor, truth: Tensor) -> Tensor:
    """Return the structural similarity of each image in [-1, 1]. Shape ``(n,)``.

    Gaussian window 11 x 11 with sigma 1.5 and data range 1; where a side is under 11, a uniform window 7 x 7. Only
    windows that lie wholly inside the image count, as in the paper and in scikit-image.

    Raises:
        UserError: when the shapes differ, or a side is under 7 (see :func:`ssim_unavailable`).
    """
    left, right = _pair(images, truth)
    reason = ssim_unavailable(tuple(images.shape))
    if reason is not None:
        raise UserError(reason)
    if len(left) == 0:
        return torch.zeros(0, dtype=torch.float64)
    return structural_similarity(left, right)


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

    results = []
    for part, true_part in _chunks(left, right, _LPIPS_CHUNK):
        with torch.no_grad():
            value = learned_perceptual_image_patch_similarity(
                _for_backbone(part), _for_backbone(true_part), net_type=net, reduction="none", normalize=True
            )
        results.append(value.reshape(-1).double())
    return torch.cat(results) if results else torch.zeros(0, dtype=torch.float64)


def _for_backbone(images: Tensor) -> Tensor:
    colour = images.float()
    if colour.shape[1] == 1:
        colour = colour.expand(-1, 3, -1, -1)
    if min(colour.shape[-2:]) < _LPIPS_SIDE:
        size = (max(_LPIPS_SIDE, colour.shape[-2]), max(_LPIPS_SIDE, colour.shape[-1]))
        colour = torch.nn.functional.interpolate(colour, size=size, mode="bilinear", align_corners=False)
    return colour.clamp(0, 1)


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


PSNR_DB = Metric("psnr_db", "dB", True, "peak signal-to-noise ratio on [0, 1], at most 100 dB", psnr)
MSE_255 = Metric("mse_255", "squared grey levels", False, "mean squared error on 0..255", mse_255)
SSIM = Metric("ssim", "", True, "structural similarity, 11 x 11 Gaussian window (7 x 7 uniform under 11 px)", ssim)
LPIPS = Metric("lpips", "", False, "learned perceptual distance; measured only where its weights are on disk", lpips)
RELATIVE_ERROR = Metric(
    "relative_error", "", False, "distance of the recovered vector over the true one's norm", relative_error, "vectors"
)
COSINE = Metric("cosine", "", True, "cosine between the recovered vector and the true one", cosine, "vectors")

METRICS = Registry(
    "metric",
    {
        name: f"fedpriv.scoring.leakage:{name.upper()}"
        for name in ("psnr_db", "mse_255", "ssim", "lpips", "relative_error", "cosine")
    },
    group="fedpriv.metrics",
    contract="fedpriv.scoring.open_metrics:refuse_no_metric",
)
"""Measures by their key in ``metrics.json``. Those of other packages stand there under ``others``."""
