"""Deep leakage from gradients: find the batch whose gradient is the client's.

DLG: Zhu, Liu and Han, "Deep Leakage from Gradients" (NeurIPS 2019). iDLG: Zhao, Mopuri and Bilen, "iDLG: Improved Deep
Leakage from Gradients" (2020), for the label of a single image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.gradient_matching import Matcher, Matching
from fedpriv.attacks.gradients.step_problems import GradientMatching, StepProblem, Tick
from fedpriv.attacks.gradients.update import square_norms
from fedpriv.attacks.observation import Reconstruction
from fedpriv.attacks.priors.spectral import PIXEL, Spectrum, general_spectrum
from fedpriv.attacks.search.candidates import Row, Solved
from fedpriv.attacks.search.lbfgs import Evaluate, LbfgsSettings, minimise
from fedpriv.util.errors import UserError

_FIRST_GAIN = 0.1
"""A start is redrawn unless the first call of the optimiser brings the loss below this share of where it began."""

_WIDTHS = 4
"""Number of widths of start, each twice the one before: starts near mid-grey are much alike."""


@dataclass(frozen=True, kw_only=True)
class DeepLeakage(GradientMatching):
    """Gradient matching by L-BFGS in the squared L2 distance, without prior and without clamping on the way.

    A target is an upload as a whole; its images are the n of the batch, in no particular order.

    Departs from the paper in where it starts: close to mid-grey, because sigmoids saturate far from it and L-BFGS then
    stalls. The variables are ``u ~ N(0, 1)``, which scales its first steps too, with ``x = 0.5 + spread u``, or with ``u``
    in the coordinates of images in general (:mod:`fedpriv.attacks.priors.spectral`), whose first steps are coarse.

    Attributes:
        outer_steps: calls of L-BFGS, 20 steps each.
        patience: a row is finished when so many calls together took less than a tenth off its distance. Smooth networks
            lose half of it in as many; behind kinks a search ends where it is stuck.
        redraws: how often a row may draw a new start when the first call has not reduced the loss tenfold. Each is
            twice as wide as the one before, four times in all, then begins anew.
        spread: standard deviation of the first start's pixels around mid-grey.
        coordinates: ``spectrum`` or ``pixels``, as in the paper. What is least is the same, the way to it another.
        labels: ``auto`` takes given labels where the card grants them and else infers them from the last layer;
            ``joint`` optimises soft labels together with the images, as DLG does.
        apart: whether the images of a step are told apart first, where a fully connected layer or the head lets them: then
            each is asked for its own share of the update (:mod:`fedpriv.attacks.gradients.separated_batch`).
        learning_rate: step size of L-BFGS.
        line_search: ``none``, as in the paper, or ``strong-wolfe``: fewer steps that lead astray, at more evaluations each.
        stop_below: a row is finished, and converged, when the distance relative to the squared norm of the client's
            gradient falls below.
    """

    outer_steps: Annotated[int, Ge(1)] = 100
    patience: Annotated[int, Ge(1)] = 10
    redraws: Annotated[int, Ge(0)] = 8
    spread: Annotated[float, Gt(0)] = 0.05
    coordinates: Literal["spectrum", "pixels"] = "spectrum"
    labels: Literal["auto", "joint"] = "auto"
    apart: bool = True
    learning_rate: Annotated[float, Gt(0)] = 1.0
    line_search: Literal["none", "strong-wolfe"] = "none"
    stop_below: Annotated[float, Ge(0)] = 1e-9

    name = "dlg"
    summary = "images whose gradient is the uploaded one, by L-BFGS without a prior"
    budget = "outer_steps"
    version = 5

    def __post_init__(self) -> None:
        if self.labels not in ("auto", "joint"):
            raise UserError(f"attack {self.name!r}: labels={self.labels!r}; expected 'auto' or 'joint'")

    @property
    def labels_known(self) -> bool:
        """False where labels are found together with the images."""
        return self.labels != "joint"

    @property
    def separates_batches(self) -> bool:
        """As asked for."""
        return self.apart

    def bytes_beside(self, problem: AttackProblem, updates: StepProblem) -> int:
        """Estimate the memory of two histories of 100 vectors."""
        return 4 * 200 * self._points(problem, updates).width

    def _points(self, problem: AttackProblem, updates: StepProblem) -> _Points:
        shape = (updates.labels.shape[1], *problem.knowledge.image_shape)
        spectrum = general_spectrum(problem.knowledge.image_shape).to(updates.labels.device)
        own = spectrum if self.coordinates == "spectrum" else None
        return _Points(shape, problem.knowledge.n_classes, self.spread, not self.labels_known, own)

    def search(
        self, problem: AttackProblem, updates: StepProblem, matcher: Matcher, bytes_per_row: int
    ) -> Reconstruction:
        """Search in every restart."""
        return self.every_row(self._solve, problem, updates, matcher, bytes_per_row)

    def _solve(
        self, problem: AttackProblem, updates: StepProblem, matcher: Matcher, rows: Sequence[Row], tick: Tick
    ) -> Solved:
        """Minimise the distance of N rows."""
        points, n_classes = self._points(problem, updates), problem.knowledge.n_classes
        steps, counts, labels = updates.of(rows)
        scale = square_norms(steps)
        evaluate = points.evaluator(
            matcher.against(steps, counts), updates.probabilities(rows, n_classes) if self.labels_known else None
        )
        settings = LbfgsSettings(
            self.outer_steps,
            learning_rate=self.learning_rate,
            line_search=None if self.line_search == "none" else self.line_search,
            patience=self.patience,
        )
        generators = [row.generator(problem.seed) for row in rows]
        start, spent = self._start(evaluate, points.width, generators, settings, labels.device)
        found = minimise(evaluate, start, settings, scale * self.stop_below, tick)
        best = points.clamped(found.best)
        images, logits = points.split(best)
        loss, _ = evaluate(best, torch.arange(len(best), device=best.device))
        return Solved(
            images=updates.shown(rows, images.clamp(0, 1)),
            objective=loss / scale,
            converged=loss < scale * self.stop_below,
            labels=updates.shown(rows, labels if self.labels_known else logits.argmax(2)),
            iterations=int(found.evaluations.max()),
            evaluations=spent + found.evaluations + 1,
        )

    def _start(
        self,
        evaluate: Evaluate,
        width: int,
        generators: Sequence[torch.Generator],
        settings: LbfgsSettings,
        device: torch.device,
    ) -> tuple[Tensor, Tensor]:
        """Return a start ``(N, D)`` from N(0, 1), redrawn where the first call of the optimiser gets nowhere.

        Beside it the evaluations ``(N,)`` that this took.
        """
        start = torch.empty(len(generators), width, device=device)
        spent = torch.zeros(len(generators), dtype=torch.int64, device=device)
        pending = torch.arange(len(generators), device=device)
        for attempt in range(self.redraws + 1):
            wider = 2.0 ** (attempt % _WIDTHS)
            drawn = [wider * torch.randn(width, generator=generators[row]) for row in pending.tolist()]
            start[pending] = torch.stack(drawn).to(device)
            if not self.redraws:
                break

            before, _ = evaluate(start[pending], pending)
            after = minimise(evaluate, start[pending], replace(settings, outer_steps=1), numbers=pending)
            spent[pending] += 1 + after.evaluations
            pending = pending[~(after.loss <= _FIRST_GAIN * before)]
            if not len(pending):
                break
        return start, spent


class _Points:
    """The variables of rows: pixels, and soft labels if they are optimised too."""

    def __init__(
        self, image_shape: tuple[int, ...], n_classes: int, spread: float, joint: bool, spectrum: Spectrum | None
    ) -> None:
        self._shape = image_shape
        self._classes = n_classes if joint else 0
        self._spread, self._spectrum = spread, spectrum

    @property
    def width(self) -> int:
        """Number of variables of a row."""
        return math.prod(self._shape) + self._shape[0] * self._classes

    def split(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images ``(N, n, c, h, w)`` and label logits ``(N, n, C)``, empty where labels are known."""
        pixels = math.prod(self._shape)
        wide = points[:, :pixels].reshape(len(points), *self._shape)
        apart = self._spread * wide if self._spectrum is None else self._spread / PIXEL * self._spectrum.images(wide)
        return 0.5 + apart, points[:, pixels:].reshape(len(points), self._shape[0], self._classes)

    def clamped(self, points: Tensor) -> Tensor:
        """Return the nearest points whose images are in [0, 1]."""
        pixels = math.prod(self._shape)
        if self._spectrum is None:
            reach = 0.5 / self._spread
            return torch.cat([points[:, :pixels].clamp(-reach, reach), points[:, pixels:]], 1)
        images, _ = self.split(points)
        inside = self._spectrum.points(images.clamp(0, 1) - 0.5) * (PIXEL / self._spread)
        return torch.cat([inside.flatten(1), points[:, pixels:]], 1)

    def evaluator(self, matching: Matching, probabilities: Tensor | None) -> Evaluate:
        """Return the function to minimise for label probabilities ``(N, n, C)``, or None where they are optimised."""

        def evaluate(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            points = points.detach().requires_grad_()
            images, logits = self.split(points)
            labels = logits.softmax(2) if probabilities is None else probabilities[rows]
            losses = matching.squared(images, labels, rows)
            (gradients,) = torch.autograd.grad(losses.sum(), points)
            return losses.detach(), gradients

        return evaluate
