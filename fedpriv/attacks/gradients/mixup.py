"""The attack adapted to mixup: find the images of a batch together with the weights by which they were mixed.

A client that trains on mixtures x'_i = sum_j M_ij x_j of a batch's images, with the loss weighted alike, sends the gradient
of the batch (M X, M Y): images and labels are mixed by the same matrix. The labels of a batch are its one-hot rows Y, so
that soft labels tell M wherever images have different classes. So mixtures X' and weights M are searched for together,

    min_{X', M} |grad(X', M Y) - g|^2    over matrices M whose rows are distributions,

by L-BFGS as DLG does with images and soft labels (Zhu et al. 2019), and X = M^-1 X'. Images of one class are told apart no
further than their sum. Where M is nearly singular, errors grow by its condition number; singular values below
:data:`LEAST` of the largest are taken for zero. The mixtures are what the batch looks like to the gradient, so that the
search is as easy as without mixup.

InstaHide's signs (x' -> 1 - x' at random pixels) are no part of M and are not undone.

Derived here; what is separated is a batch, by its gradient, where Carlini et al. (2021) separate many published encodings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem, Objective
from fedpriv.attacks.gradients.gradient_matching import Matcher, Matching
from fedpriv.attacks.gradients.step_problems import GradientMatching, StepProblem, Tick
from fedpriv.attacks.gradients.update import square_norms
from fedpriv.attacks.observation import Needs, Reconstruction
from fedpriv.attacks.search.candidates import Row, Solved
from fedpriv.attacks.search.lbfgs import Evaluate, LbfgsSettings, minimise
from fedpriv.wire.kinds import WHOLE

LEAST = 0.01
"""Share of the largest singular value of the weights below which one is taken for zero."""

_OWN = 1.0
"""Logit by which an image's own part in its mixture begins ahead of the others' parts."""


@dataclass(frozen=True, kw_only=True)
class MixtureSeparation(GradientMatching):
    """Search for a batch's images and their mixing weights.

    A target is an upload as a whole; its images are those of its step, before they were mixed.

    Attributes:
        outer_steps: calls of L-BFGS, 20 steps each.
        spread: standard deviation of the start around mid-grey.
        stop_below: a row has converged when the distance relative to the squared norm of the client's gradient falls below.
    """

    outer_steps: Annotated[int, Ge(1)] = 100
    restarts: Annotated[int, Ge(1)] = 4
    spread: Annotated[float, Gt(0)] = 0.1
    stop_below: Annotated[float, Ge(0)] = 1e-10

    name = "demix"
    summary = "a batch's images and the weights by which they were mixed, by equal gradients"
    targets = WHOLE
    only_by_name = True
    budget = "outer_steps"
    needs = Needs(labels=("given",), batch=True)

    def objective(self, problem: AttackProblem) -> Objective | None:
        """Return None: images alone, without their weights, lead to no update."""
        return None

    def bytes_beside(self, problem: AttackProblem, updates: StepProblem) -> int:
        """Estimate the memory of two histories of 100 vectors."""
        count = updates.labels.shape[1]
        return 4 * 200 * count * (math.prod(problem.knowledge.image_shape) + count)

    def search(
        self, problem: AttackProblem, updates: StepProblem, matcher: Matcher, bytes_per_row: int
    ) -> Reconstruction:
        """Search in every restart."""
        return self.every_row(self._solve, problem, updates, matcher, bytes_per_row)

    def _solve(
        self, problem: AttackProblem, updates: StepProblem, matcher: Matcher, rows: Sequence[Row], tick: Tick
    ) -> Solved:
        """Minimise the distance of N rows over images and weights."""
        steps, counts, labels = updates.of(rows)
        known = updates.probabilities(rows, problem.knowledge.n_classes)
        scale = square_norms(steps)
        mixtures = Mixtures((labels.shape[1], *problem.knowledge.image_shape), self.spread, known)
        evaluate = mixtures.evaluator(matcher.against(steps, counts))
        draws = [torch.randn(mixtures.width, generator=row.generator(problem.seed)) for row in rows]
        settings = LbfgsSettings(self.outer_steps)
        found = minimise(evaluate, torch.stack(draws).to(labels.device), settings, scale * self.stop_below, tick)
        images = mixtures.unmixed(found.best)
        loss = found.loss
        return Solved(
            images=updates.shown(rows, images.clamp(0, 1)),
            objective=loss / scale,
            converged=loss < scale * self.stop_below,
            labels=updates.shown(rows, labels),
            iterations=int(found.evaluations.max()),
            evaluations=found.evaluations,
        )


@dataclass(frozen=True)
class Mixtures:
    """The variables of rows: mixtures, and the logits of the weights by which each mixture is made.

    Attributes:
        image_shape: (n, c, h, w) of a row.
        spread: pixels' change for a variable of one.
        labels: ``(N, n, C)`` of the unmixed images.
    """

    image_shape: tuple[int, ...]
    spread: float
    labels: Tensor

    @property
    def width(self) -> int:
        """Number of variables of a row."""
        return math.prod(self.image_shape) + self.image_shape[0] ** 2

    def split(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return mixtures ``(N, n, c, h, w)`` and the weights ``(N, n, n)`` by which they were mixed."""
        count, pixels = self.image_shape[0], math.prod(self.image_shape)
        images = 0.5 + self.spread * points[:, :pixels].reshape(len(points), *self.image_shape)
        logits = points[:, pixels:].reshape(len(points), count, count)
        return images, (logits + _OWN * torch.eye(count, device=points.device)).softmax(2)

    def unmixed(self, points: Tensor) -> Tensor:
        """Return the images ``(N, n, c, h, w)`` that were mixed."""
        mixtures, weights = self.split(points)
        inverse = torch.linalg.pinv(weights.double(), rtol=LEAST).to(points)
        return 0.5 + torch.einsum("nij,njchw->nichw", inverse, mixtures - 0.5)

    def evaluator(self, matching: Matching) -> Evaluate:
        """Return the function to minimise."""

        def evaluate(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            points = points.detach().requires_grad_()
            images, weights = self.split(points)
            losses = matching.squared(images, weights @ self.labels[rows], rows)
            (gradients,) = torch.autograd.grad(losses.sum(), points)
            return losses.detach(), gradients

        return evaluate
