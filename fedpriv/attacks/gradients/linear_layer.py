"""The attack on the first fully connected layer of an uploaded network: read off what went in, without searching.

Where that layer comes first, what went in is the image itself. Where convolutions come before it, it is a representation
that is inverted under a deep image prior. Nothing behind the layer matters: neither the loss, nor a head, nor labels. Of a
low-rank model the layer's truncated factors do, as long as they keep at least as many dimensions as the batch has images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn

from fedpriv.attacks.contract import CPU, Attack, AttackProblem, Objective
from fedpriv.attacks.gradients.separated_batch import (
    LayerInputs,
    as_affine,
    first_linear,
    label_slopes,
    logits_behind,
)
from fedpriv.attacks.gradients.separation import (
    EXPLAINED,
    MOST_BY_LABELS,
    LabelSlopes,
    LinearGradient,
    inputs_of,
    linear_gradient,
    lone_inputs,
    separate,
)
from fedpriv.attacks.gradients.step_attack import moved_besides
from fedpriv.attacks.gradients.update import LocalStep, batch_facts, equal_weights, infer_labels, private_head
from fedpriv.attacks.inputs.targets import observation_of
from fedpriv.attacks.inputs.updates import Update, read_update
from fedpriv.attacks.observation import BatchFacts, Cost, Knowledge, Needs, Reconstruction, TargetId
from fedpriv.attacks.priors.dip import DeepImagePrior, Hourglass, bytes_of_generator
from fedpriv.attacks.search.candidates import Row, Solved, fit_rows, solve_rows
from fedpriv.attacks.search.fit import Schedule
from fedpriv.attacks.search.objectives import relative_feature_distance
from fedpriv.util.seeds import Last, generator
from fedpriv.wire.kinds import NETWORKS

_HALVINGS = (0.1, 0.25)
"""Shares of an inversion's steps after which the worse half of a target's rows ends: four take a third of all steps."""

_GENERATOR = Hourglass(channels=(16, 32, 64, 64))
"""As good here as the default, whose deepest level holds two thirds of the weights, at three quarters of the time."""

_SUMMED = (
    "The layer stands behind others that moved in every local step, so what went into it in later steps is not what the "
    "broadcast weights make of an image: the fewer steps, the more this attack says."
)


class Solution(NamedTuple):
    """One layer's inputs ``(n, k)``, the share of its gradient that they leave unexplained, and whether all is explained."""

    inputs: Tensor
    unexplained: float
    sound: bool


@dataclass(frozen=True, kw_only=True)
class LinearLayer(Attack):
    """Solve for what went into the first fully connected layer; invert that where it is not the image.

    A target is an upload as a whole; its images are those of the batch, in no particular order.

    Attributes:
        iterations: most steps of a row of the inversion; like all that follows it has no effect where
            the layer takes the image itself.
        restarts: rows a target of the inversion; the one with the lowest objective is kept.
        learning_rate: Adam's step size in the inversion.
    """

    iterations: Annotated[int, Ge(1)] = 800
    restarts: Annotated[int, Ge(1)] = 4
    learning_rate: Annotated[float, Gt(0)] = 1e-2

    name = "linear-layer"
    summary = "what went into the first fully connected layer, solved for; inverted where that is no image"
    version = 8
    targets = NETWORKS
    unit = "upload"
    budget = "iterations"
    needs = Needs(batch=True)

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Recover the batch of each target, or refuse a network without such a layer."""
        knowledge, targets, device = problem.knowledge, problem.targets, problem.device
        model, facts, updates, layer, views = self._read(problem)
        results, own_labels = [], []
        for target, update, own_facts in zip(targets, updates, facts, strict=True):
            labels_here = _labels(model, knowledge, own_facts, target, update)
            by_label = _by_label(model, layer, update, labels_here, own_facts, knowledge, target)
            draw = generator(problem.seed, target.round, target.client, "linear-layer")
            gradient = linear_gradient(update.gradient(own_facts.learning_rate), update.project, layer)
            results.append(_solve(gradient, len(labels_here), draw, by_label))
            own_labels.append(labels_here)
        most = max(len(group) for group in own_labels)
        # A batch of fewer images shows them again, and again.
        shown = [torch.arange(most) % len(selected) for selected in own_labels]
        labels = torch.stack([current[position] for current, position in zip(own_labels, shown, strict=True)])
        left_over = torch.tensor([result.unexplained for result in results])
        sound = torch.tensor([result.sound for result in results])
        affine = as_affine(views[0], knowledge.image_shape, device)
        if affine is not None:
            pixels = [((item.inputs - affine.shift) / affine.scale).clamp(0, 1) for item in results]
            images = [pixel.unflatten(1, knowledge.image_shape) for pixel in pixels]
            return Reconstruction(
                targets=targets,
                images=torch.stack([image[index] for image, index in zip(images, shown, strict=True)]),
                objective=left_over[:, None],
                chosen=torch.zeros(len(targets), dtype=torch.int64),
                labels=labels,
                cost=Cost(iterations=1, rows=len(targets)),
                converged=sound,
            )
        solved = self._inverted(problem, views, [one.inputs.to(device) for one in results], labels)
        return replace(
            solved,
            objective=solved.objective + left_over[:, None].to(solved.objective.device),
            converged=solved.converged & sound.to(solved.converged.device),
        )

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the share of the layer's gradient that is no combination of what images put into the layer."""
        _, _, updates, layer, views = self._read(problem)
        gradients = [linear_gradient(update.gradient(1.0), update.project, layer) for update in updates]

        def of(images: Tensor) -> Tensor:
            with torch.no_grad():
                inputs = [view(image).double().cpu() for view, image in zip(views, images, strict=True)]
            return torch.tensor([item.unexplained(current) for item, current in zip(gradients, inputs, strict=True)])

        return of

    def _read(self, problem: AttackProblem) -> tuple[nn.Module, list[BatchFacts], list[Update], str, list[LayerInputs]]:
        """Return the architecture, facts and update of each target, the layer, and each target's map to its inputs.

        The map is the same object where weights are equal.
        """
        knowledge, device, image_shape = problem.knowledge, problem.device, problem.knowledge.image_shape
        known = [batch_facts(self.name, knowledge, target.client) for target in problem.targets]
        model, seen = known[0][0], [observation_of(problem.observations, target) for target in problem.targets]
        shapes = {name: value.shape for name, value in model.named_parameters()}
        updates = [read_update(item, shapes, device) for item in seen]
        layer = first_linear(model, image_shape, updates[0].before.keys())
        made: list[tuple[Update, LayerInputs]] = []
        views = []
        for update in updates:
            view = next((current for other, current in made if equal_weights(other.before, update.before)), None)
            if view is None:
                view = LayerInputs(model, update.before, layer, device)
                made.append((update, view))
            views.append(view)
        return model, [facts for _, facts in known], updates, layer, views

    def caveat(self, problem: AttackProblem) -> str:
        """Return in words what else moved the layer than its inputs; empty for nothing."""
        knowledge, loss = problem.knowledge, problem.knowledge.loss
        known = [knowledge.facts_of(target.client) for target in problem.targets]
        several = any(facts is not None and facts.steps > 1 for facts in known)
        details = moved_besides([loss.besides, loss.later if several else ""])
        if not several or knowledge.model is None:
            return details
        *_, views = self._read(replace(problem, targets=problem.targets[:1], device=CPU))
        takes_pixels = as_affine(views[0], knowledge.image_shape, CPU) is not None
        return details if takes_pixels else f"{details} {_SUMMED}".strip()

    def _inverted(
        self, problem: AttackProblem, views: Sequence[LayerInputs], inputs: Sequence[Tensor], labels: Tensor
    ) -> Reconstruction:
        """Invert every target's inputs ``(n, k)`` under one deep image prior an image; labels ``(T, M)`` pass through.

        The objective of a row is the relative squared distance of the inputs, mean over its images.
        """
        image_shape, device, count = problem.knowledge.image_shape, problem.device, labels.shape[1]
        schedule = Schedule(self.iterations, self.learning_rate, average=0.99, tolerance=2e-4, halvings=_HALVINGS)

        def solve(rows: Sequence[Row], tick: Callable[[int], None]) -> Solved:
            places = [row.position for row in rows]
            draws = [row.generator(problem.seed, image) for row in rows for image in range(count)]
            prior = DeepImagePrior(draws, image_shape, _GENERATOR, device, count)
            distance = _of_inputs(
                [views[positions] for positions in places], [inputs[index] for index in places], count
            )
            result = fit_rows(rows, prior, distance, schedule, tick, count=count, restarts=self.restarts)
            # A batch of fewer images shows them again, and again.
            shown = [
                current[torch.arange(count) % len(inputs[place])]
                for current, place in zip(result.images, places, strict=True)
            ]
            return replace(result, images=torch.stack(shown), labels=labels[places].to(device))

        pixels = image_shape[1] * image_shape[2]
        return solve_rows(
            problem,
            solve,
            restarts=self.restarts,
            iterations=self.iterations,
            together=True,
            bytes_per_row=count * (bytes_of_generator(_GENERATOR, image_shape) + 4 * 1000 * pixels),
        )


def _solve(known: LinearGradient, count: int, draw: torch.Generator, by_label: LabelSlopes | None) -> Solution:
    parts = separate(known.rows, known.bias, count, draw, by_label)
    inputs = inputs_of(parts.errors, known.weight, known.left)
    if len(inputs) < count:
        lone = lone_inputs(known.rows, known.bias)
        lone = lone if known.onto is None else lone @ known.onto.T
        inputs = torch.cat([inputs, _others(lone, inputs, count - len(inputs))])
    if not len(inputs):  # no output was touched: the update is zero
        inputs = known.weight.new_zeros(1, known.weight.shape[1])
    unexplained = known.unexplained(inputs)
    inputs = inputs[torch.arange(count) % len(inputs)].float()
    return Solution(inputs, unexplained, parts.attested == count and unexplained < EXPLAINED)


def _labels(model: nn.Module, knowledge: Knowledge, facts: BatchFacts, target: TargetId, update: Update) -> Tensor:
    """Return the labels ``(n,)`` of a target's images, -1 each where nothing tells them."""
    given = knowledge.labels.get((target.round, target.client))
    if given is not None:
        return given.cpu()
    count, head = facts.images, knowledge.heads.get(target.client)
    whole = update.before.keys() == {name for name, _ in model.named_parameters()}
    if head is None and not whole:
        return torch.full((count,), -1)
    fixed = {} if head is None or whole else private_head(head, update.before)
    step = LocalStep(update.before, update.gradient(facts.learning_rate), fixed)
    return infer_labels(step, model, count, knowledge.n_classes, knowledge.image_shape).cpu()


def _by_label(
    model: nn.Module,
    layer: str,
    update: Update,
    labels: Tensor,
    facts: BatchFacts,
    knowledge: Knowledge,
    target: TargetId,
) -> LabelSlopes | None:
    """Return the slopes of labels at the layer's outputs; None where they say nothing of the loss there."""
    if knowledge.loss.through != "cross_entropy" or facts.steps != 1:
        return None
    if not 2 <= len(labels) <= MOST_BY_LABELS:
        return None
    head, before = knowledge.heads.get(target.client), update.before
    weights = before if head is None else private_head(head, before) | before
    if not {name for name, _ in model.named_parameters()} <= weights.keys():
        return None
    behind = logits_behind(model, weights, layer, knowledge.image_shape)
    return label_slopes(behind, weights[f"{layer}.bias"], labels, update.gradient(facts.learning_rate))


def _others(candidates: Tensor, chosen: Tensor, number: int) -> Tensor:
    """Return up to ``number`` candidates that are neither among the chosen ones nor mixtures of them."""
    results = list(chosen)
    for candidate in candidates:
        if len(results) == len(chosen) + number:
            break
        if results:
            # Mixtures have weights that sum to one, so they lie in the plane through what they mix.
            base = torch.stack(results)
            offsets = base[1:] - base[0]
            away = candidate - base[0]
            if len(offsets):
                away = away - offsets.T @ (torch.linalg.pinv(offsets.T) @ away)
            if float(away.norm()) < EXPLAINED * float(candidate.norm()):
                continue
        results.append(candidate)
    return torch.stack(results[len(chosen) :]) if len(results) > len(chosen) else chosen[:0]


def _of_inputs(views: Sequence[LayerInputs], inputs: Sequence[Tensor], most: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the mean relative squared distance ``(R,)`` of pictures ``(R, M c, h, w)`` of some rows from their inputs."""

    @Last
    def groups(which: Tensor) -> list[tuple[LayerInputs, int, Tensor, Tensor]]:
        alike: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for index, row in enumerate(which.tolist()):
            alike.setdefault((id(views[row]), len(inputs[row])), []).append((index, row))
        results = []
        for (_, count), group in alike.items():
            wanted = torch.cat([inputs[row] for _, row in group])
            places = torch.tensor([position for position, _ in group], device=wanted.device)
            results.append((views[group[0][1]], count, places, wanted))
        return results

    def distance(pictures: Tensor, which: Tensor) -> Tensor:
        images, result = pictures.unflatten(1, (most, -1)), pictures.new_zeros(len(which))
        for view, count, places, wanted in groups(which):
            apart = relative_feature_distance(view(images[places, :count].flatten(0, 1)), wanted)
            result = result.index_copy(0, places, apart.view(-1, count).mean(1))
        return result

    return distance
