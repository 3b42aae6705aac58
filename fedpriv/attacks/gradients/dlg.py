"""Deep leakage from gradients: the batch whose gradient is the client's.

DLG: Zhu, Liu and Han, "Deep Leakage from Gradients" (NeurIPS 2019). iDLG: Zhao, Mopuri and Bilen, "iDLG: Improved Deep
Leakage from Gradients" (2020), for the label of a single image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.matching import Matcher
from fedpriv.attacks.gradients.step_attack import GradientMatching, StepProblem
from fedpriv.attacks.gradients.update import square_norms
from fedpriv.attacks.observation import Reconstruction
from fedpriv.attacks.priors.spectral import PIXEL, general_spectrum
from fedpriv.attacks.search.candidates import Row, Solved, Tick, solve_rows
from fedpriv.attacks.search.lbfgs import Evaluate, LbfgsSettings, bytes_of_history, minimise

_FIRST_GAIN = 0.1  # a start is redrawn unless the first call of the optimiser brings the loss below this share
_WIDTHS = 4  # widths of start, each twice the one before: starts near mid-grey are much alike
_SPREAD = 0.05  # standard deviation of the first start's pixels around mid-grey


@dataclass(frozen=True, kw_only=True)
class DeepLeakage(GradientMatching):
    """Search for images as they are by L-BFGS in the squared L2 distance, without a prior and without clamping on the way.

    A target is an upload as a whole; its images are the n of the batch, in no particular order. Starts ``0.5 + 0.05 u`` with
    ``u ~ N(0, 1)``, of pixels or of a spectrum (:mod:`fedpriv.attacks.priors.spectral`), unlike the paper's lie close to
    mid-grey: sigmoids saturate far from it and L-BFGS then stalls.

    Attributes:
        outer_steps: calls of L-BFGS, 20 steps each.
        stop_below: distance, relative to the squared norm of the gradient, below which a candidate has converged.
        patience: a candidate is finished when so many calls together took less than a tenth off its distance.
        redraws: how often a candidate may draw a new start when the first call has not reduced the loss tenfold, each
            twice as wide as the one before, four times in all.
        coordinates: ``spectrum``, or ``pixels`` as in the paper.
        labels: ``auto`` takes given labels or infers them from the last layer; ``joint`` optimises soft labels together with
            the images, as DLG does.
    """

    outer_steps: Annotated[int, Ge(1)] = 100
    stop_below: Annotated[float, Ge(0)] = 1e-9
    patience: Annotated[int, Ge(1)] = 10
    redraws: Annotated[int, Ge(0)] = 8
    coordinates: Literal["spectrum", "pixels"] = "spectrum"
    labels: Literal["auto", "joint"] = "auto"

    name = "dlg"
    summary = "images whose gradient is the uploaded one, by L-BFGS without a prior"
    version = 6
    budget = "outer_steps"

    @property
    def labels_known(self) -> bool:
        return self.labels != "joint"

    def bytes_beside(self, problem: AttackProblem, updates: StepProblem) -> int:
        pixels = math.prod(problem.knowledge.image_shape)
        return bytes_of_history(updates.labels.shape[1] * (pixels + problem.knowledge.n_classes))

    def search(
        self, problem: AttackProblem, updates: StepProblem, matcher: Matcher, bytes_per_row: int
    ) -> Reconstruction:
        """Search in rows that have the whole budget each."""
        solve, steps = partial(self._solve, problem, updates, matcher), self.outer_steps
        return solve_rows(problem, solve, restarts=self.restarts, iterations=steps, bytes_per_row=bytes_per_row)

    def _solve(
        self, problem: AttackProblem, updates: StepProblem, matcher: Matcher, rows: Sequence[Row], tick: Tick
    ) -> Solved:
        """Minimise the distance of N rows over points ``(N, D)``: pixels, and soft labels if they are optimised too."""
        n_classes, joint = problem.knowledge.n_classes, not self.labels_known
        steps, counts, labels = updates.of(rows)
        shape = (labels.shape[1], *problem.knowledge.image_shape)
        pixels, spectrum = math.prod(shape), None
        if self.coordinates == "spectrum":
            spectrum = general_spectrum(problem.knowledge.image_shape).to(labels.device)

        def images_of(points: Tensor) -> Tensor:
            wide = points[:, :pixels].reshape(-1, *shape)
            return 0.5 + _SPREAD * (wide if spectrum is None else spectrum.images(wide) / PIXEL)

        def logits_of(points: Tensor) -> Tensor:
            return points[:, pixels:].reshape(-1, shape[0], n_classes)

        known = None if joint else updates.probabilities(rows, n_classes)
        evaluate = matcher.against(steps, counts).descent(
            lambda points, which: (images_of(points), logits_of(points).softmax(2) if known is None else known[which])
        )
        settings = LbfgsSettings(self.outer_steps, patience=self.patience)
        scale, width = square_norms(steps), pixels + (shape[0] * n_classes if joint else 0)
        start, spent = self._start(evaluate, width, [row.generator(problem.seed) for row in rows], labels.device)
        result = minimise(evaluate, start, settings, scale * self.stop_below, tick)
        inside = (images_of(result.best).clamp(0, 1) - 0.5) / _SPREAD
        nearest = (inside if spectrum is None else spectrum.points(inside) * PIXEL).flatten(1)
        best = torch.cat([nearest, result.best[:, pixels:]], 1)
        loss, _ = evaluate(best, torch.arange(len(best), device=best.device))
        return Solved(
            images=updates.shown(rows, images_of(best).clamp(0, 1)),
            objective=loss / scale,
            converged=loss < scale * self.stop_below,
            labels=updates.shown(rows, logits_of(best).argmax(2) if joint else labels),
            iterations=int(result.evaluations.max()),
            evaluations=spent + result.evaluations + 1,
        )

    def _start(
        self, evaluate: Evaluate, width: int, generators: Sequence[torch.Generator], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return a start ``(N, D)`` from N(0, 1), redrawn where the first call gets nowhere, and evaluations ``(N,)``."""
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
            after = minimise(evaluate, start[pending], LbfgsSettings(1, patience=self.patience), numbers=pending)
            spent[pending] += 1 + after.evaluations
            pending = pending[~(after.loss <= _FIRST_GAIN * before)]
            if not len(pending):
                break
        return start, spent
