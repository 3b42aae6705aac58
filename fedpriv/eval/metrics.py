"""Likeness of two images, or two vectors; and one guesser scored at every target: attack, control and each baseline alike.

Every image measure takes ``(images (n, c, h, w), truth (n, c, h, w))`` in [0, 1] and gives ``(n,)``; images are clamped
to [0, 1] first. Other shapes are a UserError. Means come last, and elsewhere.

The score of a target that several images went into is the expected PSNR: the mean over its members, by their weights, of
the PSNR between each and the guess assigned to it. One guess is compared with every member; with M guesses the assignment
has the least total squared error, and each guess serves at most ceil(m / M) of the m members.

Sources: SSIM, Wang, Bovik, Sheikh and Simoncelli 2004, equations 13 and 14, with K1 = 0.01, K2 = 0.03 and L = 1; LPIPS,
Zhang, Isola, Efros, Shechtman and Wang 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedpriv.eval.intervals import Values
from fedpriv.sources.truth import Truth
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


def psnr(images: Tensor, truth: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio of each image in dB, peak 1, at most 100. Shape ``(n,)``, float64."""
    left, right = _pair(images, truth)
    return psnr_of_mse((left - right).square().mean(dim=(1, 2, 3)))


# ---------------------------------------------------------------- structural similarity


def ssim_unavailable(image_shape: tuple[int, ...]) -> str | None:
    """Return why SSIM cannot be measured on images ``(..., h, w)``, or None where it can."""
    side = min(image_shape[-2:])
    return None if side >= 7 else f"not measured: SSIM's window needs sides of 7 pixels or more, images have {side}"


def ssim(images: Tensor, truth: Tensor) -> Tensor:
    """Return the structural similarity of each image in [-1, 1], mean over windows and channels. Shape ``(n,)``.

    Gaussian window 11 x 11 with sigma 1.5 and data range 1; where a side is under 11, a uniform window 7 x 7. Only
    windows that lie wholly inside the image count, as in the paper and in scikit-image. Windows are filtered as two banded
    matrices in double precision, thirty times faster than torchmetrics, which is off by up to 0.02. A side under 7 is a
    UserError (:func:`ssim_unavailable`).
    """
    left, right = _pair(images, truth)
    reason = ssim_unavailable(tuple(images.shape))
    if reason is not None:
        raise UserError(reason)
    _, channels, height, width = images.shape
    down, across = (matrix.to(images.device) for matrix in _bands(min(height, width), height, width))
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


def _bands(shorter: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the banded matrices that filter rows and columns by the window of images with such a shorter side."""
    weights = torch.ones(UNIFORM_SIDE, dtype=torch.float64)
    if shorter >= GAUSSIAN_SIDE:
        position = torch.arange(GAUSSIAN_SIDE, dtype=torch.float64) - GAUSSIAN_SIDE // 2
        weights = torch.exp(-position.square() / (2 * SIGMA**2))
    weights = weights / weights.sum()
    made = [weights.new_zeros(size - len(weights) + 1, size) for size in (height, width)]
    for matrix in made:
        for index, weight in enumerate(weights):
            matrix.diagonal(index).fill_(weight)
    return made[0], made[1].T


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

    Grey images are repeated to three channels; sides under 64 are enlarged (bilinear) to 64. Without the backbone's weights
    on this disk it is a UserError.
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
    colour, size = images.float(), [max(_LPIPS_SIDE, side) for side in images.shape[-2:]]
    if colour.shape[1] == 1:
        colour = colour.expand(-1, 3, -1, -1)
    return torch.nn.functional.interpolate(colour, size=size, mode="bilinear", align_corners=False).clamp(0, 1)


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


# ---------------------------------------------------------------- one guesser at every target


@dataclass(frozen=True)
class TargetScore:
    """Scores of the guesses at one target: weighted means over assigned pairs, and ``(m,)`` which guess each member has."""

    psnr: float
    mse: float
    assigned: Tensor
    each: Tensor  # (m,) PSNR of each pair in dB


@dataclass(frozen=True)
class ScoredGuesses:
    """Scores of one guesser: per target guesses ``(M, c, h, w)`` in [0, 1], scores, and SSIM (None for small images)."""

    guesses: tuple[Tensor, ...]
    scores: tuple[TargetScore, ...]
    ssim: Values | None

    @property
    def psnr(self) -> Values:
        """PSNR of each target in dB."""
        return np.array([score.psnr for score in self.scores])

    @property
    def each(self) -> Values:
        """PSNR of each image of each target in dB."""
        return np.concatenate([score.each.numpy() for score in self.scores])

    @property
    def mse(self) -> Values:
        """Mean squared error of each target on [0, 1]."""
        return np.array([score.mse for score in self.scores])


def squared_errors(guesses: Tensor, images: Tensor) -> Tensor:
    """Return the mean squared error between each guess ``(M, c, h, w)`` and each image ``(m, c, h, w)``: ``(M, m)``."""
    left, right = guesses.double().flatten(1), images.double().flatten(1)
    return torch.stack([(guess - right).square().mean(dim=1) for guess in left])


def assign(errors: Tensor) -> Tensor:
    """Return which guess each member is compared with ``(m,)``, from errors ``(M, m)``.

    The assignment of least total error in which each guess serves at most ceil(m / M) members.
    """
    n_guesses, n_members = errors.shape
    if n_guesses == 1:
        return torch.zeros(n_members, dtype=torch.int64)
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    copies = math.ceil(n_members / n_guesses)
    rows, columns = linear_sum_assignment(errors.repeat(copies, 1).numpy())
    assigned = np.empty(n_members, dtype=np.int64)
    assigned[columns] = rows % n_guesses
    return torch.from_numpy(assigned)


def score_guesses(guesses: Tensor, truth: Truth) -> TargetScore:
    """Score guesses ``(M, c, h, w)``, finite and in [0, 1], at one target."""
    errors = squared_errors(guesses, truth.members)
    assigned, weights = assign(errors), _shares(truth)
    pairs = errors[assigned, torch.arange(truth.n_c)]
    each = psnr_of_mse(pairs)
    return TargetScore(float(weights @ each), float(weights @ pairs), assigned, each)


def _shares(truth: Truth) -> Tensor:
    weights = truth.weights.double()
    return weights / weights.sum()


def settle(images: Tensor) -> Tensor:
    """Return images ``(T, M, c, h, w)``, non-finite ones black and the rest clamped.

    A diverged row stays in every mean: leaving it out would flatter the attack or the defense that broke it.
    """
    finite = images.isfinite().flatten(2).all(dim=2)
    return torch.where(finite[:, :, None, None, None], images, torch.zeros(())).float().clamp(0, 1)


def own_guesses(images: Tensor, truths: Sequence[Truth]) -> tuple[Tensor, ...]:
    """Return each target's own guesses ``(M_t, c, h, w)`` from images ``(T, M, c, h, w)``.

    Where batches differ in size, M is the largest, and a smaller batch shows its own guesses again to fill its row. A
    repeat is no new guess, but baselines to its number would be new: so trailing repeats are left out, down to as many
    guesses as the target has images.
    """
    own = []
    for row, truth in zip(images, truths, strict=True):
        first_shown: dict[bytes, int] = {}
        for index, guess in enumerate(row.contiguous()):
            first_shown.setdefault(guess.numpy().tobytes(), index)
        own.append(row[: max(min(truth.n_c, len(row)), 1 + max(first_shown.values()))])
    return tuple(own)


def measure(guesses: Sequence[Tensor], truths: Sequence[Truth]) -> ScoredGuesses:
    """Score per-target guesses ``(M, c, h, w)``."""
    scores = tuple(score_guesses(shots, truth) for shots, truth in zip(guesses, truths, strict=True))
    small = ssim_unavailable(truths[0].image_shape) is not None
    similar = None if small else over_pairs(ssim, guesses, scores, truths)
    return ScoredGuesses(tuple(guesses), scores, similar)


def over_pairs(
    function: ImageMeasure, guesses: Sequence[Tensor], scores: Sequence[TargetScore], truths: Sequence[Truth]
) -> Values:
    """Return an image measure per target: its mean over the assigned pairs, by the members' weights."""
    rows = zip(guesses, scores, truths, strict=True)
    return np.array(
        [float((_shares(truth) * function(shots[score.assigned], truth.members)).sum()) for shots, score, truth in rows]
    )
