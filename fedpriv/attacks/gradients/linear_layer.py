"""The attack on the first fully connected layer of an uploaded network: read off what went in, without searching.

Where that layer comes first, what went in is the image itself. Where convolutions come before it, what went in is a
representation that the broadcast weights map images to; it is inverted under a deep image prior. Nothing behind the layer
matters: neither the loss, nor a private head or a teacher, nor labels. Of a low-rank model the layer's truncated factors
do, as long as they keep at least as many dimensions as the batch has images.

Beside the representation the update holds the gradients of the layers before. With the derivative D of the loss at the
layer's outputs known for each image, they are sum_i J(x_i)^T W^T D_i, whatever the loss behind the layer was, so a candidate
can be asked to lead to them as well: that tells apart images that pooling and ReLUs make alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn

from fedpriv.attacks.contract import CPU, Attack, AttackProblem, Objective
from fedpriv.attacks.gradients.gradient_matching import Matcher, Matching
from fedpriv.attacks.gradients.layer_inputs import (
    PREFIX,
    LayerInputs,
    UpToLayer,
    as_affine,
    first_linear,
    readable_layers,
    sent_layers,
)
from fedpriv.attacks.gradients.separated_batch import Known, KnownInputs, LabelledStep
from fedpriv.attacks.gradients.separation import (
    DRAWS,
    EXPLAINED,
    SEPARABLE,
    inputs_of,
    linear_gradient,
    lone_inputs,
    separate,
)
from fedpriv.attacks.gradients.step_problems import moved_besides
from fedpriv.attacks.gradients.update import (
    LocalStep,
    batch_facts,
    equal_weights,
    infer_labels,
    infer_labels_through_head,
    last_layer,
    private_head,
)
from fedpriv.attacks.inputs.targets import observation_of
from fedpriv.attacks.inputs.updates import Tangent, Update, Weights, read_update
from fedpriv.attacks.inversion.vector import bytes_of_generator
from fedpriv.attacks.observation import BatchFacts, Cost, Knowledge, Needs, Reconstruction, TargetId
from fedpriv.attacks.priors.dip import Hourglass, SeveralImages
from fedpriv.attacks.search.candidates import Row, Solved, fit_rows, solve_rows
from fedpriv.attacks.search.fit import Schedule
from fedpriv.util.last import Last
from fedpriv.util.seeds import generator
from fedpriv.wire.kinds import NETWORKS

_HALVINGS = (0.1, 0.25)
"""Shares of an inversion's steps after which the worse half of a target's rows ends: four take a third of all steps."""

_SUMMED = (
    "The layer stands behind others that moved in every local step, so what went into it in later steps is not what the "
    "broadcast weights make of an image: the fewer steps, the more this attack says."
)


@dataclass(frozen=True)
class Solution:
    """One layer's inputs, as they were read off.

    Attributes:
        inputs: ``(n, k)`` float32, what went in, one row an image.
        errors: ``(m, n)`` float32 derivative of the loss at the outputs, or None where not all images were told apart.
        unexplained: share of the layer's gradient that the inputs leave unexplained.
    """

    inputs: Tensor
    errors: Tensor | None
    unexplained: float


@dataclass(frozen=True, kw_only=True)
class LinearLayer(Attack):
    """Solve for what went into the first fully connected layer; invert that where it is not the image.

    A target is an upload as a whole; its images are those of the batch, in no particular order.

    Attributes:
        iterations: most steps of a row of the inversion; like all that follows but the last two it has no effect where
            the layer takes the image itself.
        restarts: rows a target of the inversion; the one with the lowest objective is kept.
        learning_rate: Adam's step size in the inversion.
        earlier: weight of the cosine distance of the earlier layers' gradient in the inversion; 0 leaves it out.
        draws: sets of outputs that are tried to tell the images of a batch apart.
        separable: batches of more images are not told apart by trying sets, which grows like 2^n, but by descents alone
            up to 32 (:mod:`fedpriv.attacks.gradients.separation`); beyond, only images that some output saw alone are found.
    """

    iterations: Annotated[int, Ge(1)] = 800
    restarts: Annotated[int, Ge(1)] = 4
    learning_rate: Annotated[float, Gt(0)] = 1e-2
    earlier: Annotated[float, Ge(0)] = 0.1
    draws: Annotated[int, Ge(1)] = DRAWS
    separable: Annotated[int, Ge(1)] = SEPARABLE

    name = "linear-layer"
    summary = "what went into the first fully connected layer, solved for; inverted where that is no image"
    version = 6
    targets = NETWORKS
    unit = "upload"
    budget = "iterations"
    needs = Needs(batch=True)

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Recover the batch of each target, or refuse a network without such a layer."""
        knowledge, targets, device = problem.knowledge, problem.targets, problem.device
        model, facts, updates, layer, views = self._read(problem)
        own_labels = [_labels(model, knowledge, *one) for one in zip(facts, targets, updates, strict=True)]
        most = max(len(own) for own in own_labels)
        # A batch of fewer images shows them again, and again.
        shown = [torch.arange(most) % len(own) for own in own_labels]
        labels = torch.stack([own[place] for own, place in zip(own_labels, shown, strict=True)])
        found = [
            self._solve(
                update,
                layer,
                len(own),
                generator(problem.seed, target.round, target.client, "linear-layer"),
                _labelled(model, layer, update, own, part, knowledge, target),
            )
            for target, update, own, part in zip(targets, updates, own_labels, facts, strict=True)
        ]
        left_over = torch.tensor([one.unexplained for one in found])
        sound = torch.tensor([one.errors is not None and one.unexplained < EXPLAINED for one in found])
        affine = as_affine(views[0], knowledge.image_shape, device)
        if affine is not None:
            pixels = [((one.inputs - affine.shift) / affine.scale).clamp(0, 1) for one in found]
            images = [own.unflatten(1, knowledge.image_shape) for own in pixels]
            return Reconstruction(
                targets=targets,
                images=torch.stack([own[place] for own, place in zip(images, shown, strict=True)]),
                objective=left_over[:, None],
                chosen=torch.zeros(len(targets), dtype=torch.int64),
                labels=labels,
                cost=Cost(iterations=1, rows=len(targets)),
                converged=sound,
            )
        solved = invert_layers(
            model,
            layer,
            [
                self._layer(view, update, one, layer, own, device)
                for view, update, one, own in zip(views, updates, found, facts, strict=True)
            ],
            problem,
            Schedule(self.iterations, self.learning_rate, average=0.99, tolerance=2e-4, halvings=_HALVINGS),
            share=self.earlier,
            restarts=self.restarts,
            labels=labels,
        )
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
                inputs = [view(own).double().cpu() for view, own in zip(views, images, strict=True)]
            return torch.tensor([one.unexplained(own) for one, own in zip(gradients, inputs, strict=True)])

        return of

    def _read(self, problem: AttackProblem) -> tuple[nn.Module, list[BatchFacts], list[Update], str, list[LayerInputs]]:
        """Return the architecture, facts and update of each target, the layer, and each target's map to its inputs.

        The map is the same object where weights are equal.
        """
        knowledge, device, image_shape = problem.knowledge, problem.device, problem.knowledge.image_shape
        known = [batch_facts(self.name, knowledge, target.client) for target in problem.targets]
        model, seen = known[0][0], [observation_of(problem.observations, target) for target in problem.targets]
        shapes = {name: value.shape for name, value in model.named_parameters()}
        updates = [read_update(one, shapes, device) for one in seen]
        layer = first_linear(model, image_shape, updates[0].before.keys())
        made: list[tuple[Update, LayerInputs]] = []
        views = []
        for update in updates:
            view = next((own for other, own in made if equal_weights(other.before, update.before)), None)
            if view is None:
                view = LayerInputs(model, update.before, layer, image_shape, device)
                made.append((update, view))
            views.append(view)
        return model, [facts for _, facts in known], updates, layer, views

    def caveat(self, problem: AttackProblem) -> str:
        """Return in words what else moved the layer than its inputs; empty for nothing."""
        knowledge, loss = problem.knowledge, problem.knowledge.loss
        known = [knowledge.facts_of(target.client) for target in problem.targets]
        several = any(facts is not None and facts.steps > 1 for facts in known)
        told = moved_besides([loss.besides, loss.later if several else ""])
        if not several or knowledge.model is None:
            return told
        *_, views = self._read(replace(problem, targets=problem.targets[:1], device=CPU))
        takes_pixels = as_affine(views[0], knowledge.image_shape, CPU) is not None
        return told if takes_pixels else f"{told} {_SUMMED}".strip()

    def _solve(
        self, update: Update, layer: str, count: int, draw: torch.Generator, labelled: LabelledStep | None
    ) -> Solution:
        rate = 1.0 if labelled is None else labelled.learning_rate
        known = linear_gradient(update.gradient(rate), update.project, layer)
        rows, onto = known.rows, known.onto
        draws = self.draws if count <= self.separable else 0
        if labelled is None:
            parts = separate(rows, known.bias, count, draw, draws)
        else:
            parts = labelled.separated(layer, draw, draws)
        inputs = inputs_of(parts.errors, known.weight, known.left)
        apart = parts.attested == count
        if len(inputs) < count:
            lone, _ = lone_inputs(rows, known.bias)
            lone = lone if onto is None else lone @ onto.T
            inputs = torch.cat([inputs, _others(lone, inputs, count - len(inputs))])
        if not len(inputs):  # no output was touched: the update is zero
            inputs = known.weight.new_zeros(1, known.weight.shape[1])
        return Solution(
            inputs=inputs[torch.arange(count) % len(inputs)].float(),
            errors=(rate * parts.errors).float() if apart else None,
            unexplained=known.unexplained(inputs),
        )

    def _layer(
        self, view: LayerInputs, update: Update, one: Solution, layer: str, facts: BatchFacts, device: torch.device
    ) -> Layer:
        inputs = one.inputs.to(device)
        if one.errors is None or facts.steps != 1:
            return Layer(view, inputs, inputs[:0], {}, None)
        pulls = one.errors.T.to(device) @ update.before[f"{layer}.weight"]
        change = update.gradient(1.0)
        earlier = {name: change[name.removeprefix(PREFIX)] for name in view.weights}
        project = None
        if isinstance(update.project, Tangent):
            left, right = update.project.left, update.project.right
            project = Tangent(
                {PREFIX + name: left[name] for name in left}, {PREFIX + name: right[name] for name in right}
            )
        return Layer(view, inputs, pulls, earlier, project)


def _labels(model: nn.Module, knowledge: Knowledge, facts: BatchFacts, target: TargetId, update: Update) -> Tensor:
    """Return the labels ``(n,)`` of a target's images, -1 each where nothing tells them."""
    given = knowledge.labels.get((target.round, target.client))
    if given is not None:
        return given.cpu()
    count, head = facts.images, knowledge.heads.get(target.client)
    if update.before.keys() == {name for name, _ in model.named_parameters()}:
        return infer_labels(*last_layer(update.gradient(facts.learning_rate), knowledge.n_classes), count).cpu()
    if head is None:
        return torch.full((count,), -1)
    step = LocalStep(update.before, update.gradient(facts.learning_rate), private_head(head, update.before))
    return infer_labels_through_head(step, model, count, knowledge.n_classes, knowledge.image_shape).cpu()


def _labelled(
    model: nn.Module,
    layer: str,
    update: Update,
    labels: Tensor,
    facts: BatchFacts,
    knowledge: Knowledge,
    target: TargetId,
) -> LabelledStep | None:
    """Return the step whose labels help to tell its images apart; None where they say nothing of the loss."""
    if knowledge.loss.through != "cross_entropy" or facts.steps != 1 or len(labels) < 2 or int(labels.min()) < 0:
        return None
    head, before = knowledge.heads.get(target.client), update.before
    weights = before if head is None else private_head(head, before) | before
    if not {name for name, _ in model.named_parameters()} <= weights.keys():
        return None
    readable = readable_layers(model, knowledge.image_shape)
    layers = sent_layers(readable, before.keys(), head=False)
    if layer not in layers:
        return None
    rate, shape = facts.learning_rate, knowledge.image_shape
    return LabelledStep(model, weights, update.gradient(rate), update.project, tuple(layers), labels, shape, rate)


def _others(candidates: Tensor, chosen: Tensor, number: int) -> Tensor:
    """Return up to ``number`` candidates that are neither among the chosen ones nor mixtures of them."""
    found = list(chosen)
    for one in candidates:
        if len(found) == len(chosen) + number:
            break
        if found:
            # Mixtures have weights that sum to one, so they lie in the plane through what they mix.
            base = torch.stack(found)
            offsets = base[1:] - base[0]
            away = one - base[0]
            if len(offsets):
                away = away - offsets.T @ (torch.linalg.pinv(offsets.T) @ away)
            if float(away.norm()) < EXPLAINED * float(one.norm()):
                continue
        found.append(one)
    return torch.stack(found[len(chosen) :]) if len(found) > len(chosen) else chosen[:0]


_GENERATOR = Hourglass(channels=(16, 32, 64, 64))
"""As good here as the default, whose deepest level holds two thirds of the weights, at three quarters of the time."""


@dataclass(frozen=True)
class Layer:
    """One target's layer and the layers before it.

    Attributes:
        view: images to the layer's inputs, by the broadcast weights; one object for targets of equal weights.
        inputs: ``(n, k)`` what went in, one row an image.
        pulls: ``(n, k)`` derivative of the loss at the inputs; empty where it is not known.
        gradient: of the parameters of the view, by their names in it; empty where it is not compared.
        project: what can be compared of such gradients; None for everything.
    """

    view: LayerInputs
    inputs: Tensor
    pulls: Tensor
    gradient: Weights
    project: Tangent | None

    @property
    def matchable(self) -> bool:
        """True where candidates can be asked for the gradients of the layers before."""
        return len(self.pulls) == len(self.inputs) and bool(self.gradient)


def invert_layers(
    model: nn.Module,
    name: str,
    layers: Sequence[Layer],
    problem: AttackProblem,
    schedule: Schedule,
    *,
    share: float,
    restarts: int,
    labels: Tensor,
) -> Reconstruction:
    """Invert every target's inputs to the layer ``name`` under one deep image prior an image.

    The objective of a row is the relative squared distance of the inputs, mean over its images, and ``share`` times the
    cosine distance of the gradients of the layers before, where those can be matched. Labels ``(T, M)``, M the largest
    number of images of a target, are passed through.
    """
    image_shape, device = problem.knowledge.image_shape, problem.device
    count = labels.shape[1]
    shape = _GENERATOR
    matcher = None
    if share and any(layer.matchable for layer in layers):
        upto = UpToLayer(model, name, image_shape, padded=True)
        matcher = Matcher(upto, image_shape, BatchFacts(count, 1.0, 1), "approximate", device)

    def solve(rows: Sequence[Row], tick: Callable[[int], None]) -> Solved:
        known = [layers[row.position] for row in rows]
        features = KnownInputs(
            [Known(layer.view, layer.inputs, torch.ones(len(layer.inputs), dtype=torch.bool)) for layer in known]
        )
        gradients = None
        if matcher is not None and any(layer.matchable for layer in known):
            gradients = _Gradients(known, count, matcher)

        def distance(pictures: Tensor, which: Tensor) -> Tensor:
            images = pictures.unflatten(1, (count, -1))
            value = features.distance(images, which)
            return value if gradients is None else value + share * gradients.distance(images, which)

        draws = [[row.generator(problem.seed, image) for image in range(count)] for row in rows]
        prior = SeveralImages(draws, image_shape, shape, device)
        found = fit_rows(rows, prior, distance, schedule, tick, count=count, restarts=restarts)
        # A batch of fewer images shows them again, and again.
        shown = [_filled(own, count, len(one.inputs)) for own, one in zip(found.images, known, strict=True)]
        own_labels = labels[[row.position for row in rows]].to(device)
        return replace(found, images=torch.stack(shown), labels=own_labels)

    _, height, width = image_shape
    return solve_rows(
        problem,
        solve,
        restarts=restarts,
        iterations=schedule.iterations,
        together=bool(schedule.halvings),
        bytes_per_row=count * (bytes_of_generator(shape, image_shape) + 4 * 1000 * height * width),
    )


class _Gradients:
    """Distances of the gradients of the layers before from those that candidates lead to.

    The loss is linear in the layer's inputs, <D W, a>. That is a cross-entropy of ``(a, 0)`` with "labels" ``(-D W, sum
    D W)``, which sum to zero, so the matcher of cross-entropies computes it.
    """

    def __init__(self, known: Sequence[Layer], count: int, matcher: Matcher) -> None:
        self._mine = torch.tensor([place for place, layer in enumerate(known) if layer.matchable])
        chosen = [known[place] for place in self._mine.tolist()]
        self._labels = torch.stack([_filled(_as_labels(layer.pulls), count) for layer in chosen])
        steps = [LocalStep(one.view.weights, one.gradient, project=one.project) for one in chosen]
        self._matching: Matching = matcher.against(steps, [len(layer.inputs) for layer in chosen])
        self._asked = Last(self._among)

    def distance(self, images: Tensor, which: Tensor) -> Tensor:
        """Return the cosine distances ``(R,)``, zero for rows whose gradients cannot be matched."""
        there, labels, member = self._asked(which)
        if not len(there):
            return images.new_zeros(len(which))
        value = self._matching.cosine(images[there], labels, member)
        return images.new_zeros(len(which)).index_copy(0, there, value)

    def _among(self, which: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the positions of rows that can be matched, their labels, and their numbers among those (on the CPU)."""
        match = which[:, None] == self._mine
        asked = match.any(1).nonzero().squeeze(1)
        member, device = match.int().argmax(1)[asked], self._labels.device
        return asked.to(device), self._labels[member.to(device)], member


def _filled(values: Tensor, count: int, own: int | None = None) -> Tensor:
    """Return the first ``own`` rows, by default all, again and again until there are ``count`` of them."""
    return values[torch.arange(count) % (own or len(values))]


def _as_labels(pulls: Tensor) -> Tensor:
    # The matcher takes the mean over the n images; pulls are of the sum.
    return len(pulls) * torch.cat([-pulls, pulls.sum(1, keepdim=True)], 1)
