"""Steps whose images are told apart at a fully connected layer, before anything is searched for.

The gradient of such a layer says what each image put in and the loss's derivative there
(:mod:`fedpriv.attacks.gradients.separation`), so the loss is known without what stands behind the layer, and every image is
asked for its own share instead of all for a sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.behind_layer import cross_entropy_slopes, label_slopes, logits_behind
from fedpriv.attacks.gradients.head_members import HeadMembers, members_of_head
from fedpriv.attacks.gradients.known_inputs import Known
from fedpriv.attacks.gradients.label_masks import LabelSlopes
from fedpriv.attacks.gradients.layer_inputs import LayerInputs, readable_layers, sent_layers
from fedpriv.attacks.gradients.linear_gradient import Parts, linear_gradient
from fedpriv.attacks.gradients.local_step import LocalStep, equal_weights
from fedpriv.util.seeds import generator

AGREES = 0.05
"""Cosine distance of a derivative from what a label would make of it, below which the label says it."""

MOST_OF_THEM = 0.5
"""Share of a step's images whose labels must say their derivatives."""

_PROBES, _BELOW = 8, 0.02
"""Random images that show whether a layer's inputs can be negative, and how far below zero rounding takes them."""


@dataclass(frozen=True)
class ToldApart:
    """One target whose loss is known at the output of a layer.

    Attributes:
        step: with the layer as ``readout``, and the gradients of what it depends on.
        derivatives: ``(n, m)`` of the loss at the layer's outputs, one row an image.
        known: images to what goes into the layer, and what went in; None where it depends on the batch, or is not sure.
        labels: ``(n,)`` in the order of the rows; -1 where nothing tells them.
    """

    step: LocalStep
    derivatives: Tensor
    known: Known | None
    labels: Tensor

    def in_order(self, images: Tensor) -> Tensor:
        """Return images ``(n, c, h, w)`` in the order of the rows that they fit best."""
        if self.known is None or len(images) == 1:
            return images
        with torch.no_grad():
            apart = torch.cdist(self.known.inputs, self.known.view(images)).cpu()
        return images[_assigned(apart).to(images.device)]


def tell_apart(
    model: nn.Module,
    compared: Sequence[LocalStep],
    whole: Sequence[LocalStep],
    labels: Sequence[Tensor],
    problem: AttackProblem,
    *,
    always: bool,
) -> list[ToldApart | None]:
    """Return, for each step whose images can be told apart, what is known of each; None for the others.

    Args:
        model: architecture.
        compared: steps, of which candidates are asked for.
        whole: the same steps with all that was sent, by which images are told apart.
        labels: of each step's images, which are of none where they are unknown.
        problem: targets of the steps; what is read off is kept there.
        always: also where labels say the loss; else only where private parts teach the network.
    """
    loss = problem.knowledge.loss
    by_labels = loss.through == "cross_entropy"
    if (by_labels and not always) or all(len(step.sizes) != 1 for step in compared):
        return [None] * len(compared)
    reader = _Reader(model, problem, by_labels)
    return [reader.read(*one) for one in zip(compared, whole, labels, strict=True)]


class _Reader:
    def __init__(self, model: nn.Module, problem: AttackProblem, by_labels: bool) -> None:
        self._model, self._problem, self._by_labels = model, problem, by_labels
        self._layers = readable_layers(model, problem.knowledge.image_shape)
        self._views: list[tuple[str, LocalStep, LayerInputs]] = []

    def read(self, step: LocalStep, sent: LocalStep, labels: Tensor) -> ToldApart | None:
        """Return one step's images as the last layer that says anything tells them apart."""
        if len(step.sizes) != 1:
            return None
        names = sent_layers(self._layers, step.gradient.keys(), head=False)
        through_logits = self._problem.knowledge.loss.through == "logits"
        if not names and through_logits:  # the head's bias tells it too, but leaves more to be searched through
            names = sent_layers(self._layers, step.gradient.keys(), head=True)
        for name in reversed(names):
            by_label = self._by_label(name, sent, labels) if self._by_labels else None
            parts = self._parts(name, sent, step.sizes[0], by_label)
            found = None if parts is None else self._checked(name, step, parts, labels)
            if found is not None:
                return found
        return self._by_head(step, sent, labels) if self._by_labels else None

    def _by_head(self, step: LocalStep, sent: LocalStep, labels: Tensor) -> ToldApart | None:
        """Return one step's images as the head's gradient and their labels tell them apart."""
        names = sent_layers(self._layers, sent.gradient.keys(), head=True)
        if not names or sent.project is not None or not len(labels) or int(labels.min()) < 0:
            return None
        name, problem = names[-1], self._problem
        parameters = [f"{name}.{kind}" for kind in ("weight", "bias")]
        weight, bias = (sent.gradient[own] for own in parameters)
        if len(bias) != problem.knowledge.n_classes:
            return None
        view = self._view(name, step)
        if not view.alone:  # what goes in depends on the batch: asking for it was measured to make the images worse
            return None
        seeds, told = (problem.seed, _digest(sent, name)), tuple(labels.tolist())
        head = sent.weights[parameters[0]], sent.weights[parameters[1]]

        def solved() -> HeadMembers | None:
            return members_of_head(weight, bias, head, labels, generator(*seeds, "head"))

        found = problem.trained.get(("members of the head", *seeds, *told), solved)
        if found is None or not bool(found.sure.any()):
            return None
        gradient = {own: value for own, value in step.gradient.items() if own in self._layers[name]}
        known = Known(view, found.inputs.to(problem.device), found.sure)
        return ToldApart(
            replace(step, gradient=gradient, readout=name), found.derivatives.to(problem.device), known, labels
        )

    def _parts(self, name: str, sent: LocalStep, count: int, by_label: LabelSlopes | None) -> Parts | None:
        """Return the parts of an update, which are the same whoever is said to have sent it: controls ask for them again."""
        told = () if by_label is None else tuple(by_label.counts.tolist())
        seeds = self._problem.seed, count, _digest(sent, name)
        made = partial(_taken_apart, sent, name, by_label, *seeds)
        return self._problem.trained.get(("told apart", name, *seeds, *told), made)

    def _by_label(self, name: str, sent: LocalStep, labels: Tensor) -> LabelSlopes | None:
        """Return a layer's derivatives by label where one more layer stands behind its ReLU; else None."""
        knowledge = self._problem.knowledge
        behind = logits_behind(self._model, sent.weights | sent.fixed, name, knowledge.image_shape)
        return label_slopes(behind, sent.weights[f"{name}.bias"], labels, sent.gradient, knowledge.n_classes)

    def _checked(self, name: str, step: LocalStep, parts: Parts, labels: Tensor) -> ToldApart | None:
        """Return parts that nothing contradicts, in an order in which they have these labels.

        Labels confirm them where they say the loss: most must be what their label makes of them, since a part that is a
        mixture spoils no image but those that it mixes. Else each must show that it is none, and be possible.
        """
        problem, count = self._problem, len(parts.derivatives)
        view, inputs = self._view(name, step), parts.inputs.to(problem.device)
        derivatives, order, sure = parts.derivatives.to(problem.device), torch.arange(count), parts.explained
        certain = torch.ones(count, dtype=torch.bool)
        if self._by_labels:
            outputs = functional.linear(inputs, step.weights[f"{name}.weight"], step.weights[f"{name}.bias"])
            behind = logits_behind(self._model, step.weights | step.fixed, name, problem.knowledge.image_shape)
            made = cross_entropy_slopes(behind, outputs, problem.knowledge.n_classes)
            apart = 1 - functional.cosine_similarity(derivatives.unsqueeze(1), made, dim=2).cpu()
            if problem.knowledge.card.labels == "inferred":
                labels = apart.argmin(1)
            else:
                order = _assigned(apart[:, labels.cpu()].T)
            certain = apart[order, labels.cpu()] < AGREES
            if not sure or float(certain.float().mean()) < MOST_OF_THEM:
                return None
        else:
            sure = sure and parts.attested and reachable(view, inputs, problem.knowledge.image_shape)
            if not sure and count > 1:
                return None
        gradient = {own: value for own, value in step.gradient.items() if own in self._layers[name]}
        there = order.to(problem.device)
        known = Known(view, inputs[there], certain) if sure and view.alone else None
        return ToldApart(replace(step, gradient=gradient, readout=name), derivatives[there], known, labels)

    def _view(self, name: str, step: LocalStep) -> LayerInputs:
        """Return the map to a layer's inputs, the same object where weights are equal."""
        for own, other, view in self._views:
            if own == name and equal_weights(other.weights, step.weights):
                return view
        problem = self._problem
        view = LayerInputs(self._model, step.weights, name, problem.knowledge.image_shape, problem.device)
        self._views.append((name, step, view))
        return view


def _taken_apart(
    sent: LocalStep, name: str, by_label: LabelSlopes | None, seed: int, count: int, digest: str
) -> Parts | None:
    known, draw = linear_gradient(sent.gradient, sent.project, name), generator(seed, digest, "readout")
    return known.taken_apart(count, draw, by_label)


def _digest(sent: LocalStep, name: str) -> str:
    """Return a text that two gradients of a layer share where they are equal to the last bit."""
    both = (sent.gradient[f"{name}.{kind}"].detach().cpu().contiguous() for kind in ("weight", "bias"))
    # As bytes: numpy has no bfloat16.
    return hashlib.sha256(b"".join(value.view(torch.uint8).numpy().tobytes() for value in both)).hexdigest()


def _assigned(costs: Tensor) -> Tensor:
    """Return the column ``(n,)`` of each row of costs ``(n, n)``, each used once, whose sum is least."""
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]  # takes a while to import

    return torch.as_tensor(linear_sum_assignment(costs.numpy())[1])


def reachable(view: LayerInputs, inputs: Tensor, image_shape: tuple[int, int, int]) -> bool:
    """False where inputs are negative though those of random images never are: behind a ReLU a wrong part shows itself."""
    draw = torch.Generator().manual_seed(0)
    probes = torch.rand(_PROBES, *image_shape, generator=draw)
    with torch.no_grad():
        least = float(view(probes.to(inputs.device)).min())
    return least < 0 or float(inputs.min()) >= -_BELOW * float(inputs.abs().max())
