"""Total variation of images, with its derivative written out: a third of the kernels that autograd takes for it.

kornia's total variation is another one: the sum of absolute differences, without a root over both directions.


Pixel prior: the image itself is optimised, kept in its box and smooth.

After Mahendran and Vedaldi, "Understanding deep image representations by inverting them" (CVPR 2015): total variation
to the power beta / 2, a 6-norm around mid-grey, and jitter of a few positions against high frequencies.

"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedpriv.attacks.priors.grouped import RowDraws, shifts

_TINY = 1e-8


def total_variation(images: Tensor, beta: float = 2.0, weight: float = 1.0) -> Tensor:
    """Return the mean over positions of ``((right - here)^2 + (below - here)^2)^(beta / 2)`` of each image.

    Differences over the last row and column count as zero; channels are summed. It can be differentiated once.

    Args:
        images: ``(N, c, h, w)``.
        beta: 1 is isotropic total variation, 2 the squared gradient. Must be positive.
        weight: times which it is returned.

    Returns:
        ``(N,)``.
    """
    found: Tensor = _TotalVariation.apply(images, beta, weight)
    return found


class _TotalVariation(torch.autograd.Function):
    """Forward and backward by hand."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, beta: float, weight: float) -> Tensor:
        """Return the values, and keep the differences."""
        across, down = images[..., 1:] - images[..., :-1], images[..., 1:, :] - images[..., :-1, :]
        # The derivative of a root is infinite at zero; flat places are common.
        squared = torch.full_like(images, 0.0 if beta == 2.0 else _TINY, memory_format=torch.contiguous_format)
        squared[..., :-1].addcmul_(across, across)
        squared[..., :-1, :].addcmul_(down, down)
        powered = squared if beta == 2.0 else squared.sqrt() if beta == 1.0 else squared.pow(beta / 2)
        ctx.save_for_backward(across, down, powered if beta == 1.0 else squared)
        each = weight / (images.shape[-2] * images.shape[-1])
        ctx.beta, ctx.scale = beta, beta * each
        at_rest = 0.0 if beta == 2.0 else -weight * images.shape[1] * _TINY ** (beta / 2)
        return torch.add(_constant(at_rest, images.dtype, images.device), powered.sum((1, 2, 3)), alpha=each)

    @staticmethod
    @once_differentiable  # type: ignore[misc,untyped-decorator,unused-ignore]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return the derivative by the images."""
        across, down, kept = ctx.saved_tensors
        share, scale = gradient.view(-1, 1, 1, 1), ctx.scale
        # Of q^(beta / 2) by a difference d, q being the sum of squares: beta q^(beta / 2 - 1) d.
        if ctx.beta == 1.0:
            steep = share / kept
        else:
            steep = share.expand_as(kept) if ctx.beta == 2.0 else share * kept.pow(ctx.beta / 2 - 1)
        found = torch.zeros_like(kept)
        for difference, own, ahead, behind in (
            (across, steep[..., :-1], found[..., 1:], found[..., :-1]),
            (down, steep[..., :-1, :], found[..., 1:, :], found[..., :-1, :]),
        ):
            ahead.addcmul_(difference, own, value=scale)
            behind.addcmul_(difference, own, value=-scale)
        return found, None, None


@functools.cache
def _constant(value: float, kind: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((), value, dtype=kind, device=device)


@dataclass(frozen=True)
class PixelSettings:
    """Penalties and schedule of a search over pixels.

    Attributes:
        total_variation: weight of :func:`fedpriv.attacks.priors.pixels.total_variation`.
        beta: its exponent.
        grey: weight of the mean 6th power of ``2 x - 1``, which keeps pixels off the ends of their range.
        jitter: images are shifted by up to so many positions in each direction, anew in each iteration.
        jitter_until: share of the iterations after which there is no jitter any more, in [0, 1].
        start_noise: standard deviation of the Gaussian noise around mid-grey to start from.
    """

    total_variation: Annotated[float, Ge(0)] = 0.02
    beta: Annotated[float, Gt(0)] = 1.0
    grey: Annotated[float, Ge(0)] = 0.0
    jitter: Annotated[int, Ge(0)] = 0
    jitter_until: Annotated[float, Ge(0), Le(1)] = 0.5
    start_noise: Annotated[float, Ge(0)] = 0.1


class PixelPrior:
    """The pixels of N rows: a prior for :func:`fedpriv.attacks.search.fit.fit`.

    Args:
        generators: N CPU generators, one a row; each draws its row's start and jitter.
        image_shape: (channels, height, width).
        settings: what holds pixels back.
        device: where to compute.
    """

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        image_shape: tuple[int, int, int],
        settings: PixelSettings,
        device: torch.device,
    ) -> None:
        self._settings = settings
        noise = torch.stack([torch.randn(image_shape, generator=generator) for generator in generators])
        start = (0.5 + settings.start_noise * noise).clamp(0, 1)
        self.parameters = [start.to(device).requires_grad_()]
        self._still = torch.arange(image_shape[1] * image_shape[2], device=device)
        self._jittered = False
        self._shifts = RowDraws(generators, shifts(*image_shape[1:], settings.jitter), device)

    def prepare(self, progress: float) -> Hashable:
        """Draw the jitter of this iteration, where it has one; return whether it has."""
        self._jittered = self._settings.jitter > 0 and progress < self._settings.jitter_until
        if self._jittered:
            self._shifts.advance()
        return self._jittered

    def shown(self, moving: Tensor) -> Tensor:
        """Return this iteration's images ``(N, c, h, w)``, each shifted by its own jitter where a row is moving."""
        images = self.parameters[0]
        if not self._jittered:
            return images
        origin = torch.where(moving[:, None], self._shifts.present, self._still)
        flat = images.flatten(2)
        return flat.gather(2, origin[:, None].expand_as(flat)).view_as(images)

    def clean(self) -> Tensor:
        """Return the images ``(N, c, h, w)`` where they are."""
        return self.parameters[0]

    def penalty(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the weighted total variation and 6th power of each image, ``(N,)``."""
        found = total_variation(images, self._settings.beta, self._settings.total_variation)
        if self._settings.grey:
            found = found + self._settings.grey * (2 * images - 1).pow(6).flatten(1).mean(1)
        return found

    def project(self) -> None:
        """Clamp every pixel to [0, 1]."""
        with torch.no_grad():
            self.parameters[0].clamp_(0, 1)

    def compile(self) -> None:
        """Leave everything as it is: there is no network."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, ``rows`` being int64 positions on the CPU."""
        self._shifts.keep(rows)
        there = rows.to(self.parameters[0].device)
        self.parameters = [self.parameters[0].detach()[there].requires_grad_()]
