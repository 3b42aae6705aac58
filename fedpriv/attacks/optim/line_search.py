"""Line search to the strong Wolfe conditions, for N rows at once.

Nocedal and Wright, "Numerical Optimization" (2nd edition, 2006), algorithms 3.5 and 3.6 with the cubic interpolation of
equation 3.59. Each row brackets a good step and then narrows the bracket down, an evaluation at a time; which of both a row
is at is told by masks, so a row's steps do not depend on its company. Lengths, losses and slopes are double precision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_DECREASE = 1e-4
"""Sufficient decrease: f(t) <= f(0) + this * t * f'(0)."""

_CURVATURE = 0.9
"""Curvature: |f'(t)| <= this * |f'(0)|, the value that suits quasi-Newton directions."""

_LEAST_CHANGE = 1e-12
"""A bracket is narrow enough when the loss can hardly change by more within."""


class _Trial(NamedTuple):
    """Evaluated steps of N rows: lengths, losses there, slopes along the direction there; each ``(N,)``."""

    length: Tensor
    loss: Tensor
    slope: Tensor


class WolfeSearch:
    """The searches of N rows, some of which are under way.

    Attributes:
        active: ``(N,)`` bool, whether the row is searching.
        length: ``(N,)`` the step found, of rows that have arrived; of those that search the step to evaluate.
        loss: ``(N,)`` the loss at the step found.
        gradient: ``(N, D)`` the gradient there.
    """

    def __init__(self, points: Tensor, most: int) -> None:
        """Prepare for rows ``(N, D)``; a search asks at most ``most`` evaluations, then takes the lowest point it saw."""
        self._most = most
        zero = points.new_zeros(len(points), dtype=torch.float64)
        self.active = torch.zeros(len(points), dtype=torch.bool, device=points.device)
        self._narrowing = self.active
        self._number = torch.zeros(len(points), dtype=torch.int64, device=points.device)
        self.length = self.loss = zero
        self.gradient = torch.zeros_like(points)
        self._start = self._low = self._high = _Trial(zero, zero, zero)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only (int64 positions)."""
        for name, value in list(vars(self).items()):
            if isinstance(value, Tensor):
                setattr(self, name, value[rows])
            elif isinstance(value, _Trial):
                setattr(self, name, _Trial(*(part[rows] for part in value)))

    def begin(self, which: Tensor, loss: Tensor, slope: Tensor, gradient: Tensor, length: Tensor) -> None:
        """Let some rows search.

        Args:
            which: ``(N,)`` bool.
            loss: ``(N,)`` at the start.
            slope: ``(N,)`` along the direction at the start, below zero.
            gradient: ``(N, D)`` at the start.
            length: ``(N,)`` first step to try.
        """
        start = _Trial(torch.zeros_like(self.length), loss.double(), slope.double())
        self._start, self._low = _chosen(which, start, self._start), _chosen(which, start, self._low)
        self.gradient = torch.where(which.unsqueeze(1), gradient, self.gradient)
        self.length = torch.where(which, length.double(), self.length)
        self._number = torch.where(which, 0, self._number)
        self._narrowing = self._narrowing & ~which
        self.active = self.active | which

    def asked(self, points: Tensor, directions: Tensor) -> Tensor:
        """Return where to evaluate ``(N, D)``: ahead of the points of rows that search, at the points of others."""
        ahead = points + self.length.to(points.dtype).unsqueeze(1) * directions
        return torch.where(self.active.unsqueeze(1), ahead, points)

    def answer(self, loss: Tensor, slope: Tensor, gradient: Tensor) -> Tensor:
        """Take in losses ``(N,)``, slopes and gradients ``(N, D)`` at the steps asked for; return which rows arrived.

        The gradient kept is that of the lower end of the bracket, which is what a search without success ends with.
        """
        now, start, low, high = _Trial(self.length, loss.double(), slope.double()), self._start, self._low, self._high
        self._number = self._number + self.active
        finite = now.loss.isfinite() & now.slope.isfinite()
        decreases = now.loss <= start.loss + _DECREASE * now.length * start.slope
        good = now.slope.abs() <= -_CURVATURE * start.slope
        first, narrowing = self._number <= 1, self._narrowing
        # What is too high, or too far out to say anything, bounds the bracket and is never taken.
        above = ~decreases | (now.loss >= low.loss) & (narrowing | ~first)
        unusable = torch.where(narrowing, ~finite | above, ~finite)
        high_now = ~unusable & above | narrowing & unusable
        success = ~unusable & ~above & good
        rises = torch.where(narrowing, now.slope * (high.length - low.length), now.slope) >= 0
        # The old lower end bounds the bracket on the other side where the loss rises again.
        turned = ~unusable & ~above & ~good & rises
        becomes_low = ~unusable & ~above
        self._high = _chosen(high_now, now, _chosen(turned, low, high))
        self._low = _chosen(becomes_low & self.active, now, low)
        self.gradient = torch.where((becomes_low & self.active).unsqueeze(1), gradient, self.gradient)
        self._narrowing = narrowing | (~unusable & (above | turned))
        self.length = self._next(now, low, finite)
        width = (self._high.length - self._low.length).abs() * start.slope.abs()
        given_up = (self._number >= self._most) | self._narrowing & (width < _LEAST_CHANGE)
        arrived = self.active & (success | given_up)
        self.length = torch.where(arrived, self._low.length, self.length)
        self.loss = torch.where(arrived, self._low.loss, self.loss)
        self.active = self.active & ~arrived
        return arrived

    def _next(self, now: _Trial, before: _Trial, finite: Tensor) -> Tensor:
        """Return the next steps to try, after ``now``; ``before`` is what was the lower end then."""
        low, high = self._low, self._high
        least, greatest = torch.minimum(low.length, high.length), torch.maximum(low.length, high.length)
        margin = 0.1 * (greatest - least)  # stay away from the ends, or the bracket might hardly shrink
        inside = torch.minimum(torch.maximum(_cubic_minimum(low, high), least + margin), greatest - margin)
        ahead = torch.minimum(torch.maximum(_cubic_minimum(before, now), 1.1 * now.length), 10 * now.length)
        ahead = torch.where(finite, ahead, 0.5 * (before.length + now.length))
        return torch.where(self._narrowing, inside, ahead)


def _chosen(which: Tensor, first: _Trial, second: _Trial) -> _Trial:
    return _Trial(*(torch.where(which, one, other) for one, other in zip(first, second, strict=True)))


def _cubic_minimum(first: _Trial, second: _Trial) -> Tensor:
    """Return the minimiser of the cubic through both trials' losses and slopes, their middle where there is none."""
    middle = 0.5 * (first.length + second.length)
    apart = second.length - first.length
    chord = first.slope + second.slope - 3 * (second.loss - first.loss) / apart
    root = torch.copysign((chord * chord - first.slope * second.slope).sqrt(), apart)
    bottom = second.slope - first.slope + 2 * root
    found = second.length - apart * (second.slope + root - chord) / bottom
    # No number, or none that is finite, wherever there is no such minimum.
    return torch.where(found.isfinite(), found, middle)
