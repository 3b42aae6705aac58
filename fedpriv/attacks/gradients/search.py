"""Search of N rows' images, by Adam or by L-BFGS, in pixels or in cosines, and the best that each row has seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.gradients.matching import Matching
from fedpriv.attacks.gradients.presets import SearchConfig
from fedpriv.attacks.gradients.step_attack import Tick
from fedpriv.attacks.priors.spectral import Frame
from fedpriv.attacks.search.cuda_graph import Replay, recorder_on
from fedpriv.attacks.search.fit import Adam
from fedpriv.attacks.search.lbfgs import LbfgsSettings, minimise

_DROPS = (3 / 8, 5 / 8, 7 / 8)
"""Shares of the iterations after which total variation loses weight."""

_SPREAD, _INNER, _DONE = 0.1, 20, 1e-9
"""Of L-BFGS: pixel values of one unit, which scales its first step; steps of a call; share of the squared norm of what is
matched at which nothing is left to find."""

_FRAME_SPREAD = 0.3
"""Standard deviations of a coordinate of one unit of L-BFGS in a frame."""

_SCALE = 0.5
"""Pixel values of one unit of a learning rate: about the standard deviation of images, in which the paper measures."""

_BETAS = {True: (0.9, 0.999), False: (0.97, 0.999)}
"""Adam's, with signs and without: what is left of the last step's mean. Long valleys want a long memory."""

_FRAME_BETAS = (0.9, 0.999)
"""The same of coordinates that are all alike, where no long valleys are left."""

_EPSILON = 1e-9
"""Adam's, for variables ten times as large as the paper's."""


@dataclass(frozen=True)
class SearchSettings:
    """Settings that all rows share.

    Attributes:
        iterations: evaluations of a row.
        variation_decay: what the weight of total variation is multiplied by, three times on the config.
        beside: of images ``(N, M, c, h, w)`` what is added to their total variation ``(N,)`` before it is weighted; or None.
        frame: of the rows' images, in which they are searched; None for pixels, within the box of valid images.
    """

    iterations: int
    variation_decay: float
    beside: Callable[[Tensor], Tensor] | None = None
    frame: Frame | None = None


class PixelSearch:
    """N rows on their way by Adam, all with signs or all without.

    Args:
        settings: of all rows.
        matching: distances of candidates.
        labels: ``(N, M, C)`` probabilities.
        start: ``(N, M, c, h, w)`` images.
        configs: of each row.

    Attributes:
        settings: as given.
        images: ``(N, M, c, h, w)`` in [0, 1], each row's best so far.
        distance: ``(N,)`` the distance of exactly these images.
    """

    def __init__(
        self,
        settings: SearchSettings,
        matching: Matching,
        labels: Tensor,
        start: Tensor,
        configs: Sequence[SearchConfig],
    ) -> None:
        self.settings = settings
        self._matching = matching
        self._labels = labels
        self._rows = torch.arange(len(start), device=start.device)
        # Adam's steps do not depend on the scale of a variable, so each row's learning rate is the scale of its own.
        rates, frame = (
            start.new_tensor([config.learning_rate for config in configs]).view(-1, 1, 1, 1, 1),
            settings.frame,
        )
        self._scale = _SCALE * rates if frame is None else rates
        self._most, self._middle = 0.5 / self._scale, start.new_tensor(0.5)
        self._least = -self._most
        point = (start - 0.5) / self._scale if frame is None else frame.points(start) / self._scale
        self._point = (point.clamp(self._least, self._most) if frame is None else point).requires_grad_()
        betas = _BETAS[configs[0].signed] if frame is None else _FRAME_BETAS
        self._optimiser = Adam([self._point], 1.0, betas=betas, epsilon=_EPSILON, fused=True)
        self._first_weights = self._weights = start.new_tensor([config.variation for config in configs])
        self._first_unlikely = self._unlikely = start.new_tensor([config.unlikely for config in configs])
        self._signed = configs[0].signed
        self._each = torch.ones_like(self._weights)
        self._passed = 0
        self._lowest = start.new_full((len(start),), torch.inf)
        self.images = self._images().detach().clone()
        self.distance = torch.full_like(self._lowest, torch.inf)

    def _images(self) -> Tensor:
        if self.settings.frame is not None:
            return self.settings.frame.images(self._point * self._scale)
        return torch.addcmul(self._middle, self._point, self._scale)

    def evaluate(self) -> Tensor:
        """Return objectives ``(N,)`` of the present images; remember those of rows that never had a lower one."""
        images = self._images()
        distance = self._matching.cosine(images, self._labels, self._rows)
        kept = absolute_variation(images)
        if self.settings.beside is not None:
            kept = kept + self.settings.beside(images)
        objective = distance + self._weights * kept
        if self.settings.frame is not None:
            objective = objective + self._unlikely * (self._point * self._scale).square().flatten(1).mean(1)
        with torch.no_grad():
            better = objective < self._lowest
            self._lowest = torch.where(better, objective, self._lowest)
            self.distance = torch.where(better, distance, self.distance)
            self.images = torch.where(better.view(-1, 1, 1, 1, 1), images, self.images)
        return objective

    def optimise(self, tick: Tick) -> None:
        """Take all steps, and evaluate a last time; ``tick`` is told of the steps done."""
        stepped = Replay(self.step, (self, self._optimiser), recorder_on(self._point.device))
        for step in range(self.settings.iterations - 1):
            self._prepare(step)
            stepped(0)
            tick(step + 1)
        self.evaluate()

    def _prepare(self, step: int) -> None:
        settings = self.settings
        self._optimiser.pace(cooling(step / settings.iterations))
        passed = sum(step >= share * settings.iterations for share in _DROPS)
        if passed != self._passed:  # objectives under another weight cannot be compared
            self._passed = passed
            self._weights = self._first_weights * settings.variation_decay**passed
            self._unlikely = self._first_unlikely * settings.variation_decay**passed
            self._lowest = torch.full_like(self._lowest, torch.inf)

    def step(self) -> None:
        """Evaluate, then take a step back into the box."""
        (gradient,) = torch.autograd.grad(self.evaluate(), self._point, self._each)
        # A row that is not finite stays where it is; the others go on.
        gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
        self._point.grad = gradient.sign() if self._signed else gradient
        self._optimiser.step()
        if self.settings.frame is None:
            with torch.no_grad():
                self._point.clamp_(self._least, self._most)


@dataclass(frozen=True)
class SearchResult:
    """Images ``(N, M, c, h, w)`` in [0, 1], their distances ``(N,)``, and evaluations of each row ``(N,)``."""

    images: Tensor
    distance: Tensor
    evaluations: Tensor


def optimise_by_lbfgs(
    iterations: int,
    matching: Matching,
    labels: Tensor,
    start: Tensor,
    scale: Tensor,
    tick: Tick,
    frame: Frame | None = None,
) -> SearchResult:
    """Follow the squared distance of N rows down by L-BFGS from images ``start``, without prior and without a box.

    Args:
        iterations: most evaluations of a row.
        matching: distances of candidates.
        labels: ``(N, M, C)`` probabilities.
        start: ``(N, M, c, h, w)`` images.
        scale: ``(N,)`` squared norms of what is matched.
        tick: told of the iterations done.
        frame: of the rows' images, whose coordinates are followed; None for pixels.
    """

    def images_at(points: Tensor, rows: Tensor | None = None) -> Tensor:
        if frame is not None:
            return frame.drawn(_FRAME_SPREAD * points.view(-1, *start.shape[1:]), rows)
        return (0.5 + _SPREAD * points).view(-1, *start.shape[1:])

    evaluate = matching.descent(lambda points, rows: (images_at(points, rows), labels[rows]))
    inner = min(
        _INNER, max(1, iterations - 2)
    )  # after the last step its place is evaluated, and at the end what is shown
    settings = LbfgsSettings(max(1, (iterations - 2) // inner), inner)
    begin = (start - 0.5) / _SPREAD if frame is None else frame.points(start) / _FRAME_SPREAD
    result = minimise(evaluate, begin.flatten(1), settings, _DONE * scale, lambda done: tick(done * inner))
    images = images_at(result.best).clamp(0, 1)
    with torch.no_grad():
        distance = matching.cosine(images, labels, torch.arange(len(images), device=images.device))
    return SearchResult(images, distance, result.evaluations + 1)


def cooling(progress: float) -> float:
    """Return the share of the learning rate that is left: half a period of a cosine, from 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * progress))


def absolute_variation(images: Tensor) -> Tensor:
    """Return mean ``|right - here|`` plus mean ``|below - here|`` of each row's images ``(N, M, c, h, w)``: ``(N,)``."""
    across, down = (torch.diff(images, dim=axis).abs().flatten(1).mean(1) for axis in (-1, -2))
    return across + down
