"""Deep leakage from gradients: find the batch whose gradient is the client's.

DLG: Zhu, Liu and Han, "Deep Leakage from Gradients" (NeurIPS 2019). iDLG: Zhao, Mopuri and Bilen, "iDLG: Improved Deep
Leakage from Gradients" (2020), for the label of a single image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from fedpriv.attacks import TARGETS
from fedpriv.attacks.labels import infer_labels, last_layer
from fedpriv.attacks.lbfgs import Evaluate, LbfgsSettings, minimise
from fedpriv.attacks.local_step import LocalStep, StepModel, Weights, batch_facts, local_step, same_weights, stacked
from fedpriv.attacks.objectives import gradient_distance
from fedpriv.attacks.observation import Knowledge, Needs, Observation, Progress, Reconstruction, TargetId, Unit
from fedpriv.attacks.rows import Row, Solved, solve_rows
from fedpriv.attacks.target_features import observation_of
from fedpriv.errors import UserError

_FIRST_GAIN = 0.1
"""A start is redrawn unless the first call of the optimiser brings the loss below this share of where it began."""

_WIDTHS = 4
"""How many widths of start there are, each twice the one before: starts near mid-grey are much alike."""


@dataclass(frozen=True)
class DeepLeakage:
    """Gradient matching by L-BFGS in the squared L2 distance, without prior and without clamping on the way.

    A target is an upload as a whole; its images are the n of the batch, in no particular order.

    Departs from the paper in where it starts: close to mid-grey, because sigmoids saturate far from it and L-BFGS then
    stalls. The variables are ``u`` with ``x = 0.5 + spread u`` and ``u ~ N(0, 1)``, which scales its first steps too.

    Attributes:
        outer_steps: calls of L-BFGS, 20 steps each.
        restarts: rows a target; the one with the lowest objective is kept.
        redraws: how often a row may draw a new start when the first call has not reduced the loss tenfold. Each is
            twice as wide as the one before, four times in all, then begins anew.
        spread: standard deviation of the first start around mid-grey.
        labels: ``auto`` takes given labels where the card grants them and else infers them from the last layer;
            ``joint`` optimises soft labels together with the images, as DLG does.
        learning_rate: step size of L-BFGS.
        stop_below: a row is finished, and converged, when the distance relative to the squared norm of the client's
            gradient falls below.
    """

    outer_steps: Annotated[int, Ge(1)] = 100
    restarts: Annotated[int, Ge(1)] = 1
    redraws: Annotated[int, Ge(0)] = 8
    spread: float = 0.1
    labels: Literal["auto", "joint"] = "auto"
    learning_rate: Annotated[float, Gt(0)] = 1.0
    stop_below: float = 1e-9

    name = "dlg"
    targets = TARGETS["dlg"]
    unit: ClassVar[Unit] = "upload"
    budget: ClassVar[str | None] = "outer_steps"
    needs = Needs(batch=True)

    def run(
        self,
        observations: tuple[Observation, ...],
        targets: tuple[TargetId, ...],
        knowledge: Knowledge,
        *,
        seed: int,
        device: torch.device,
        chunk_rows: int | None = None,
        progress: Progress | None = None,
    ) -> Reconstruction:
        """Recover the batch of each target; see :class:`fedpriv.attacks.observation.Attack`.

        Raises:
            UserError: when the model or the batch facts are missing, the upload sums up several steps, or labels have
                the wrong number.
        """
        if self.labels not in ("auto", "joint"):
            raise UserError(f"attack {self.name!r}: labels={self.labels!r}; expected 'auto' or 'joint'")
        self.needs.refuse(self.name, knowledge.card)
        model, facts = batch_facts(self.name, knowledge)
        steps = [
            local_step(observation_of(observations, target), model, facts.learning_rate, device) for target in targets
        ]
        known = None
        if self.labels == "auto":
            known = [
                known_labels(self.name, target, step, knowledge, facts.batch_size).to(device)
                for target, step in zip(targets, steps, strict=True)
            ]
        shape = (facts.batch_size, *knowledge.image_shape)
        matcher = _Matcher(StepModel(model, device), shape, knowledge.n_classes, self.spread)

        def solve(rows: Sequence[Row], tick: Callable[[int], None]) -> Solved:
            chosen = [steps[row.position] for row in rows]
            labels = None if known is None else torch.stack([known[row.position] for row in rows])
            return self._solve(matcher, rows, chosen, labels, seed, device, tick)

        size = shape[0] * (shape[1] * shape[2] * shape[3] + knowledge.n_classes)
        weights = sum(parameter.numel() for parameter in model.parameters())
        best = solve_rows(
            targets,
            solve,
            restarts=self.restarts,
            iterations=self.outer_steps,
            # Two histories of 100 vectors; candidate and wanted gradients with their graph; activations.
            bytes_per_row=4 * (200 * size + 8 * weights + 200 * size),
            device=device,
            chunk_rows=chunk_rows,
            progress=progress,
        )
        fields = {
            name: getattr(best, name) for name in ("images", "objective", "chosen", "labels", "cost", "converged")
        }
        return Reconstruction(targets=targets, **fields)

    def _solve(
        self,
        matcher: _Matcher,
        rows: Sequence[Row],
        steps: Sequence[LocalStep],
        labels: Tensor | None,
        seed: int,
        device: torch.device,
        tick: Callable[[int], None],
    ) -> Solved:
        scale = torch.stack([square_norm(step.gradient) for step in steps])
        evaluate = matcher.evaluator(steps, labels)
        settings = LbfgsSettings(self.outer_steps, learning_rate=self.learning_rate)
        start = self._start(evaluate, matcher, [row.generator(seed) for row in rows], labels is None, settings, device)
        found = minimise(evaluate, start, settings, scale * self.stop_below, tick)
        points = matcher.clamped(found.best)
        images, logits = matcher.split(points)
        loss, _ = evaluate(points, torch.arange(len(points), device=device))
        return Solved(
            images=images.clamp(0, 1),
            objective=loss / scale,
            converged=loss < scale * self.stop_below,
            labels=logits.argmax(2) if labels is None else labels,
            iterations=int(found.evaluations.max()),
        )

    def _start(
        self,
        evaluate: Evaluate,
        matcher: _Matcher,
        generators: Sequence[torch.Generator],
        joint: bool,
        settings: LbfgsSettings,
        device: torch.device,
    ) -> Tensor:
        """Return a start ``(N, D)`` from N(0, 1), redrawn where the first call of the optimiser gets nowhere."""
        width = matcher.width(joint)
        start = torch.empty(len(generators), width, device=device)
        pending = torch.arange(len(generators), device=device)
        for attempt in range(self.redraws + 1):
            wider = 2.0 ** (attempt % _WIDTHS)
            drawn = [wider * torch.randn(width, generator=generators[row]) for row in pending.tolist()]
            start[pending] = torch.stack(drawn).to(device)
            if not self.redraws:
                break

            def of_pending(points: Tensor, rows: Tensor, among: Tensor = pending) -> tuple[Tensor, Tensor]:
                return evaluate(points, among[rows])

            before, _ = of_pending(start[pending], torch.arange(len(pending), device=device))
            after = minimise(of_pending, start[pending], replace(settings, outer_steps=1)).loss
            pending = pending[~(after <= _FIRST_GAIN * before)]
            if not len(pending):
                break
        return start


def square_norm(gradient: Weights) -> Tensor:
    """Return the sum of squares over all parameters, a scalar."""
    return torch.stack([value.square().sum() for value in gradient.values()]).sum()


def known_labels(attack: str, target: TargetId, step: LocalStep, knowledge: Knowledge, batch_size: int) -> Tensor:
    """Return the labels ``(n,)`` of a target's batch: the given ones where the card grants them, else inferred ones.

    Raises:
        UserError: when labels were granted but not handed over, or not n of them.
    """
    if knowledge.card.labels == "inferred":
        return infer_labels(*last_layer(step.gradient, knowledge.n_classes), batch_size)
    where = f"client {target.client} in round {target.round}"
    given = knowledge.labels.get((target.round, target.client))
    if given is None:
        raise UserError(
            f"attack {attack!r}: the knowledge card gives labels, but none were handed over for {where}; "
            "pass --knowledge labels=inferred"
        )
    if len(given) != batch_size:
        raise UserError(f"attack {attack!r}: {len(given)} labels for {where}, expected the batch size {batch_size}")
    return given


class _Matcher:
    """Gradient distance of many rows at once."""

    def __init__(self, model: StepModel, batch_shape: tuple[int, ...], n_classes: int, spread: float) -> None:
        self._model = model
        self._shape = batch_shape
        self._n_classes = n_classes
        self._spread = spread

    def width(self, joint: bool) -> int:
        """Return the number of variables of a row: pixels, and soft labels if they are optimised too."""
        return math.prod(self._shape) + (self._shape[0] * self._n_classes if joint else 0)

    def split(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images ``(N, n, c, h, w)`` and label logits ``(N, n, C)``, empty where labels are known."""
        pixels = math.prod(self._shape)
        images = 0.5 + self._spread * points[:, :pixels].reshape(len(points), *self._shape)
        return images, points[:, pixels:].reshape(len(points), self._shape[0], -1)

    def clamped(self, points: Tensor) -> Tensor:
        """Return the points whose images are in [0, 1], the nearest to ``points``."""
        pixels = math.prod(self._shape)
        reach = 0.5 / self._spread
        return torch.cat([points[:, :pixels].clamp(-reach, reach), points[:, pixels:]], 1)

    def evaluator(self, steps: Sequence[LocalStep], labels: Tensor | None) -> Evaluate:
        """Return what :func:`minimise` needs, for rows with these steps and labels ``(N, n)`` (None: optimised)."""
        groups = [(torch.tensor(group), stacked([steps[row] for row in group])) for group in same_weights(steps)]

        def distance(weights: Weights, images: Tensor, probabilities: Tensor, wanted: Weights) -> Tensor:
            return gradient_distance(self._model.gradient(weights, images, probabilities), wanted)

        batched = vmap(distance, in_dims=(None, 0, 0, 0))

        def evaluate(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            points = points.detach().requires_grad_()
            images, logits = self.split(points)
            if labels is None:
                probabilities = logits.softmax(2)
            else:
                probabilities = functional.one_hot(labels[rows], self._n_classes).to(points.dtype)
            losses = points.new_zeros(len(rows))
            there = rows.cpu()
            for group, wanted in groups:
                # Where in the group each row is, and which of the asked rows are in it.
                match = there.unsqueeze(1) == group
                asked = match.any(1).nonzero().flatten().to(points.device)
                if not len(asked):
                    continue
                member = match.int().argmax(1).to(points.device)[asked]
                aim = wanted if len(asked) == len(group) else {name: value[member] for name, value in wanted.items()}
                found = batched(steps[int(group[0])].weights, images[asked], probabilities[asked], aim)
                losses = losses.index_copy(0, asked, found)
            (gradients,) = torch.autograd.grad(losses.sum(), points)
            return losses.detach(), gradients

        return evaluate
