"""Search of N rows' images, by Adam or by L-BFGS, in pixels or in cosines, and the best that each row has seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedpriv.attacks.gradients.matching import Matching
from fedpriv.attacks.gradients.presets import SearchConfig
from fedpriv.attacks.gradients.step_attack import Tick
from fedpriv.attacks.priors.spectral import Frame, drops
from fedpriv.attacks.search.cuda_graph import Replay, recorder_on
from fedpriv.attacks.search.fit import Adam, cooling
from fedpriv.attacks.search.lbfgs import LbfgsSettings, minimise

_SPREAD, _FRAME_SPREAD, _INNER, _DONE = 0.1, 0.3, 20, 1e-9
"""Of L-BFGS: pixel values, and standard deviations of coordinates, of one unit, which scales its first step; steps of a
call; share of the squared norm of what is matched at which nothing is left to find."""

_SCALE = 0.5
"""Pixel values of one unit of a learning rate: about the standard deviation of images, in which the paper measures."""

_BETAS, _LONG_BETAS, _EPSILON = (0.9, 0.999), (0.97, 0.999), 1e-9
"""Adam's; of unsigned searches over pixels, whose long valleys want a long memory; for variables ten times the paper's."""

_DECAY = 0.2
"""What weights of priors are multiplied by each time they fall."""

SearchResult = tuple[Tensor, Tensor, Tensor]
"""Images ``(N, M, c, h, w)`` in [0, 1], their distances ``(N,)``, and evaluations of each row ``(N,)``."""


class AdamSearch:
    """N rows on their way by Adam, all with signs or all without.

    Args:
        iterations: evaluations of a row.
        matching: distances of candidates.
        labels: ``(N, M, C)`` probabilities.
        start: ``(N, M, c, h, w)`` images.
        configs: of each row.
        beside: of images what is added to their total variation ``(N,)`` before it is weighted; or None.
        frame: of the rows' images, in which they are searched; None for pixels, within the box of valid images.
    """

    def __init__(
        self,
        iterations: int,
        matching: Matching,
        labels: Tensor,
        start: Tensor,
        configs: Sequence[SearchConfig],
        beside: Callable[[Tensor], Tensor] | None = None,
        frame: Frame | None = None,
    ) -> None:
        self._iterations, self._matching, self._labels = iterations, matching, labels
        self._beside, self._frame, self._signed = beside, frame, configs[0].signed
        self._rows = torch.arange(len(start), device=start.device)
        # Adam's steps do not depend on the scale of a variable, so each row's learning rate is the scale of its own.
        rates = start.new_tensor([config.learning_rate for config in configs]).view(-1, 1, 1, 1, 1)
        self._scale = _SCALE * rates if frame is None else rates
        self._most, self._middle = 0.5 / self._scale, start.new_tensor(0.5)
        self._least = -self._most
        if frame is None:
            point = ((start - 0.5) / self._scale).clamp(self._least, self._most)
        else:
            point = frame.points(start) / self._scale
        self._point = point.requires_grad_()
        betas = _BETAS if self._signed or frame is not None else _LONG_BETAS
        self._optimiser = Adam([self._point], 1.0, betas=betas, epsilon=_EPSILON, fused=True)
        self._first = start.new_tensor([[config.variation, config.unlikely] for config in configs]).T
        self._weights = self._first.clone()
        self._each = torch.ones(len(start), device=start.device)
        self._passed = 0
        self._lowest = torch.full_like(self._each, torch.inf)
        self._images = self._shown().detach().clone()
        self._distance = torch.full_like(self._lowest, torch.inf)

    def _shown(self) -> Tensor:
        if self._frame is not None:
            return self._frame.images(self._point * self._scale)
        return torch.addcmul(self._middle, self._point, self._scale)

    def _evaluate(self) -> Tensor:
        """Return objectives ``(N,)`` of the present images; remember those of rows that never had a lower one."""
        images = self._shown()
        distance = self._matching.cosine(images, self._labels, self._rows)
        kept = absolute_variation(images)
        if self._beside is not None:
            kept = kept + self._beside(images)
        objective = distance + self._weights[0] * kept
        if self._frame is not None:
            objective = objective + self._weights[1] * (self._point * self._scale).square().flatten(1).mean(1)
        with torch.no_grad():
            better = objective < self._lowest
            self._lowest = torch.where(better, objective, self._lowest)
            self._distance = torch.where(better, distance, self._distance)
            self._images = torch.where(better.view(-1, 1, 1, 1, 1), images, self._images)
        return objective

    def optimise(self, tick: Tick) -> SearchResult:
        """Take all steps, and evaluate a last time; ``tick`` is told of the steps done."""
        step_again = Replay(self._step, (self, self._optimiser), recorder_on(self._point.device))
        for step in range(self._iterations - 1):
            self._optimiser.pace(cooling(step / self._iterations))
            passed = drops(step / self._iterations)
            if passed != self._passed:  # objectives under another weight cannot be compared
                self._passed, self._weights = passed, self._first * _DECAY**passed
                self._lowest = torch.full_like(self._lowest, torch.inf)
            step_again(0)
            tick(step + 1)
        self._evaluate()
        return self._images, self._distance, torch.full((len(self._rows),), self._iterations)

    def _step(self) -> None:
        """Evaluate, then take a step back into the box."""
        (gradient,) = torch.autograd.grad(self._evaluate(), self._point, self._each)
        # A row that is not finite stays where it is; the others go on.
        gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
        self._point.grad = gradient.sign() if self._signed else gradient
        self._optimiser.step()
        if self._frame is None:
            with torch.no_grad():
                self._point.clamp_(self._least, self._most)


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

    ``scale`` ``(N,)`` is the squared norm of what is matched; further arguments are as of :class:`AdamSearch`.
    """

    def images_at(points: Tensor, rows: Tensor | None = None) -> Tensor:
        if frame is not None:
            return frame.drawn(_FRAME_SPREAD * points.view(-1, *start.shape[1:]), rows)
        return (0.5 + _SPREAD * points).view(-1, *start.shape[1:])

    evaluate = matching.descent(lambda points, rows: (images_at(points, rows), labels[rows]))
    # After the last step its place is evaluated, and at the end what is shown.
    inner = min(_INNER, max(1, iterations - 2))
    settings = LbfgsSettings(max(1, (iterations - 2) // inner), inner)
    begin = (start - 0.5) / _SPREAD if frame is None else frame.points(start) / _FRAME_SPREAD
    result = minimise(evaluate, begin.flatten(1), settings, _DONE * scale, lambda done: tick(done * inner))
    images = images_at(result.best).clamp(0, 1)
    with torch.no_grad():
        distance = matching.cosine(images, labels, torch.arange(len(images), device=images.device))
    return images, distance, result.evaluations + 1


def absolute_variation(images: Tensor) -> Tensor:
    """Return mean ``|right - here|`` plus mean ``|below - here|`` of each row's images ``(N, M, c, h, w)``: ``(N,)``."""
    across, down = (torch.diff(images, dim=axis).abs().flatten(1).mean(1) for axis in (-1, -2))
    return across + down
