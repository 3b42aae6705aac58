"""The attack on the first fully connected layer of an uploaded network: read off what went in, without searching.

Where that layer comes first, what went in is the image itself. Where convolutions come before it, it is a representation
that is inverted under a deep image prior. Nothing behind the layer matters: neither the loss, nor a head, nor labels. Of a
low-rank model the layer's truncated factors do, as long as they keep at least as many dimensions as the batch has images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.gradients import separation
from fedpriv.attacks.gradients.layers import (
    LayerInputs,
    LayerViews,
    as_affine,
    first_linear,
    label_slopes,
    logits_behind,
)
from fedpriv.attacks.gradients.update import LocalStep, Update, batch_facts, infer_labels, private_head, read_update
from fedpriv.attacks.inputs.outputs import relative_feature_distance
from fedpriv.attacks.inputs.targets import observation_of
from fedpriv.attacks.observation import BatchFacts, Cost, Knowledge, Needs, Reconstruction, TargetId
from fedpriv.attacks.priors.dip import DeepImagePrior, Hourglass, bytes_of_generator
from fedpriv.attacks.search.candidates import Row, Solved, Tick, fit_rows, solve_rows
from fedpriv.attacks.search.fit import Schedule
from fedpriv.uploads.kinds import NETWORKS
from fedpriv.util.seeds import Last, generator

_HALVINGS = (0.1, 0.25)  # shares of an inversion's steps after which the worse half of a target's rows ends
_GENERATOR = Hourglass(channels=(16, 32, 64, 64))  # as good here as the default, at three quarters of the time


@dataclass(frozen=True, kw_only=True)
class LinearLayer(Attack):
    """Solve for what went into the first fully connected layer; invert that where it is not the image.

    A target is an upload as a whole; its images are those of the batch, in no particular order.

    Attributes:
        iterations: most steps of a row of the inversion; no option has an effect where the layer takes the image itself.
        restarts: rows a target of the inversion; the one with the lowest objective is kept.
        learning_rate: Adam's step size in the inversion.
    """

    iterations: Annotated[int, Ge(1)] = 800
    restarts: Annotated[int, Ge(1)] = 4
    learning_rate: Annotated[float, Gt(0)] = 1e-2

    name = "linear-layer"
    summary = "the inputs of the first fully connected layer, solved for; inverted where they are no images"
    version = 9
    targets = NETWORKS
    unit = "upload"
    budget = "iterations"
    needs = Needs(batch=True)

    def run(self, problem: AttackProblem) -> Reconstruction:
        knowledge, device = problem.knowledge, problem.device
        model, facts, updates, layer, views = self._read(problem)
        own_labels, inputs, left_over, sound = [], [], [], []
        for target, update, own_facts in zip(problem.targets, updates, facts, strict=True):
            current = _labels(model, knowledge, own_facts, target, update)
            by_label = _by_label(model, layer, update, current, own_facts, knowledge, target.client)
            draw = generator(problem.seed, target.round, target.client, "linear-layer")
            gradient = separation.LinearGradient(update.gradient(own_facts.learning_rate), update.project, layer)
            own_inputs, attested = _solve(gradient, len(current), draw, by_label)
            left_over.append(gradient.unexplained(own_inputs))
            sound.append(attested and left_over[-1] < separation.EXPLAINED)
            # A batch of fewer images shows them again, and again.
            inputs.append(own_inputs[torch.arange(len(current)) % len(own_inputs)].float())
            own_labels.append(current)
        most = max(len(group) for group in own_labels)
        shown = [torch.arange(most) % len(group) for group in own_labels]
        labels = torch.stack([group[index] for group, index in zip(own_labels, shown, strict=True)])
        unexplained, converged = torch.tensor(left_over)[:, None], torch.tensor(sound)
        affine = as_affine(views[0], knowledge.image_shape, device)
        if affine is None:
            solved = self._inverted(problem, views, [values.to(device) for values in inputs], labels)
            return replace(
                solved,
                objective=solved.objective + unexplained.to(solved.objective.device),
                converged=solved.converged & converged.to(solved.converged.device),
            )
        scale, shift = affine
        pixels = [((values - shift) / scale).clamp(0, 1)[index] for values, index in zip(inputs, shown, strict=True)]
        return Reconstruction(
            targets=problem.targets,
            images=torch.stack(pixels).unflatten(2, knowledge.image_shape),
            objective=unexplained,
            labels=labels,
            cost=Cost(iterations=1, rows=len(problem.targets)),
            converged=converged,
        )

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the share of the layer's gradient that is no combination of what images put into the layer."""
        _, _, updates, layer, views = self._read(problem)
        gradients = [separation.LinearGradient(update.gradient(1.0), update.project, layer) for update in updates]

        def of(images: Tensor) -> Tensor:
            with torch.no_grad():
                inputs = [view(image).double().cpu() for view, image in zip(views, images, strict=True)]
            return torch.tensor([item.unexplained(current) for item, current in zip(gradients, inputs, strict=True)])

        return of

    def _read(self, problem: AttackProblem) -> tuple[nn.Module, list[BatchFacts], list[Update], str, list[LayerInputs]]:
        """Return the architecture, facts and update of each target, the layer, and each target's map to its inputs."""
        knowledge, image_shape = problem.knowledge, problem.knowledge.image_shape
        known = [batch_facts(self.name, knowledge, target.client) for target in problem.targets]
        model, seen = known[0][0], [observation_of(problem.observations, target) for target in problem.targets]
        updates = [read_update(item, model, problem.device) for item in seen]
        layer = first_linear(model, image_shape, updates[0].before.keys())
        views = LayerViews(model, problem.device)
        return model, [facts for _, facts in known], updates, layer, [views.of(layer, item.before) for item in updates]

    def _inverted(
        self, problem: AttackProblem, views: Sequence[LayerInputs], inputs: Sequence[Tensor], labels: Tensor
    ) -> Reconstruction:
        """Invert every target's inputs ``(n, k)`` under one deep image prior an image; labels ``(T, M)`` pass through."""
        image_shape, device, count = problem.knowledge.image_shape, problem.device, labels.shape[1]
        schedule = Schedule(self.iterations, self.learning_rate, average=0.99, tolerance=2e-4, halvings=_HALVINGS)

        def solve(rows: Sequence[Row], tick: Tick) -> Solved:
            places = [row.position for row in rows]
            draws = [row.generator(problem.seed, image) for row in rows for image in range(count)]
            prior = DeepImagePrior(draws, image_shape, _GENERATOR, device, count)
            distance = _of_inputs([views[place] for place in places], [inputs[place] for place in places], count)
            result = fit_rows(rows, prior, distance, schedule, tick, count=count, restarts=self.restarts)
            pairs = zip(result.images, places, strict=True)
            shown = [current[torch.arange(count) % len(inputs[place])] for current, place in pairs]
            return replace(result, images=torch.stack(shown), labels=labels[places].to(device))

        size = count * (bytes_of_generator(_GENERATOR, image_shape) + 4 * 1000 * image_shape[1] * image_shape[2])
        starts, steps = self.restarts, self.iterations
        return solve_rows(problem, solve, restarts=starts, iterations=steps, bytes_per_row=size, together=True)


def _solve(
    known: separation.LinearGradient, count: int, draw: torch.Generator, by_label: separation.LabelSlopes | None
) -> tuple[Tensor, bool]:
    """Return up to ``count`` inputs ``(n, k)`` of a layer, and whether each shows that it is no mixture."""
    errors, attested = separation.separate(known.rows, known.bias, count, draw, by_label)
    inputs = known.inputs(errors)
    if len(inputs) < count:
        lone = separation.lone_inputs(known.rows, known.bias)
        lone = lone if known.onto is None else lone @ known.onto.T
        inputs = _with_others(inputs, lone, count)
    if not len(inputs):  # no output was touched: the update is zero
        inputs = known.weight.new_zeros(1, known.weight.shape[1])
    return inputs, attested == count


def _with_others(chosen: Tensor, candidates: Tensor, count: int) -> Tensor:
    """Return up to ``count`` inputs: the chosen ones, and candidates that are neither among them nor mixtures of them."""
    results = list(chosen)
    for candidate in candidates:
        if len(results) == count:
            break
        if results:
            # Mixtures have weights that sum to one, so they lie in the plane through what they mix.
            offsets, away = torch.stack(results)[1:] - results[0], candidate - results[0]
            if len(offsets):
                away = away - offsets.T @ (torch.linalg.pinv(offsets.T) @ away)
            if float(away.norm()) < separation.EXPLAINED * float(candidate.norm()):
                continue
        results.append(candidate)
    return torch.stack(results) if results else chosen


def _labels(model: nn.Module, knowledge: Knowledge, facts: BatchFacts, target: TargetId, update: Update) -> Tensor:
    """Return the labels ``(n,)`` of a target's images, -1 each where nothing tells them."""
    given = knowledge.labels.get((target.round, target.client))
    if given is not None:
        return given.cpu()
    count, head = facts.images, knowledge.heads.get(target.client)
    if head is None and not update.whole:
        return torch.full((count,), -1)
    fixed = {} if head is None or update.whole else private_head(head, update.before)
    step = LocalStep(update.before, update.gradient(facts.learning_rate), fixed)
    return infer_labels(step, model, count, knowledge.n_classes, knowledge.image_shape).cpu()


def _by_label(
    model: nn.Module, layer: str, update: Update, labels: Tensor, facts: BatchFacts, knowledge: Knowledge, client: int
) -> separation.LabelSlopes | None:
    """Return the slopes of labels at the layer's outputs; None where they say nothing of the loss there."""
    known = knowledge.loss.through == "cross_entropy" and facts.steps == 1
    if not known or not 2 <= len(labels) <= separation.MOST_BY_LABELS:
        return None
    head, before = knowledge.heads.get(client), update.before
    weights = before if head is None else private_head(head, before) | before
    if not {name for name, _ in model.named_parameters()} <= weights.keys():
        return None
    behind = logits_behind(model, weights, layer, knowledge.image_shape)
    return label_slopes(behind, weights[f"{layer}.bias"], labels, update.gradient(facts.learning_rate))


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
