"""Steps whose images are told apart at a fully connected layer, before anything is searched for.

The gradient of such a layer says what each image put in and the loss's derivative there
(:mod:`fedpriv.attacks.gradients.separation`), so the loss is known without what stands behind the layer, and every image is
asked for its own share instead of all for a sum. Where what went into a layer came out of another one through a ReLU, an
image's derivatives there are those of this layer times the weights between, where its inputs are positive, and zero
elsewhere: who is told apart at a layer is told apart at the one below, and helps to tell the others apart.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.layer_inputs import LayerInputs, readable_layers, sent_layers
from fedpriv.attacks.gradients.separation import (
    MOST_BY_LABELS,
    HeadMembers,
    LabelSlopes,
    Parts,
    Separation,
    inputs_of,
    linear_gradient,
    members_of_head,
    separate,
)
from fedpriv.attacks.gradients.update import LocalStep, equal_weights
from fedpriv.attacks.inputs.updates import Weights
from fedpriv.attacks.search.objectives import relative_feature_distance, squared_length
from fedpriv.util.seeds import generator

_AGREES, _MOST_OF_THEM = 0.05, 0.5
"""Cosine distance of a derivative from what a label would make of it, below which the label says it; share of a step's
images whose labels must say their derivatives."""

_SURELY, _ACTIVE = 1e-5, 1e-4
"""The same distance below which a derivative at a layer is used at the one below: rounding makes 1e-6, a mixture of two
images hardly less than 1e-4. Share of the largest input from which on one was positive; what is solved for is never quite
zero."""

_PROBES, _BELOW = 8, 0.02
"""Random images that show whether a layer's inputs can be negative, and how far below zero rounding takes them."""

_CLOSE = 1e-4
"""Relative difference of logits below which what stands behind a layer is one ReLU and one more layer."""


# ---------------------------------------------------------------- behind a layer


def logits_behind(
    model: nn.Module, weights: Weights, layer: str, image_shape: tuple[int, int, int]
) -> Callable[[Tensor], Tensor]:
    """Return the map from a layer's outputs ``(n, m)`` to logits ``(n, C)``, in evaluation mode.

    What stands behind the layer takes its outputs alone, whatever the images were. Where the layer stands beside what leads
    to the logits, these do not depend on what is put in.
    """
    network = copy.deepcopy(model).eval()
    put: list[Tensor] = []
    # The layer's own outputs are put aside, so any images of this number do; what follows may overwrite what it is given.
    network.get_submodule(layer).register_forward_hook(lambda *_: put[0].clone())

    def of(outputs: Tensor) -> Tensor:
        put[:] = [outputs]
        images = torch.zeros(len(outputs), *image_shape).to(outputs)
        logits: Tensor = functional_call(network.to(outputs.device), weights, (images,))
        return logits

    return of


def cross_entropy_slopes(behind: Callable[[Tensor], Tensor], outputs: Tensor, n_classes: int) -> Tensor:
    """Return the derivative of every label's cross-entropy at a layer's outputs: ``(n, m)`` to ``(n, C, m)``."""
    point = outputs.detach().requires_grad_()
    logits = behind(point)
    if not logits.requires_grad:  # the layer stands beside what leads to them
        return point.new_zeros(len(point), n_classes, point.shape[1])
    losses = -functional.log_softmax(logits, 1)
    each = [
        torch.autograd.grad(losses[:, label].sum(), point, retain_graph=True)[0] for label in range(losses.shape[1])
    ]
    return torch.stack(each, 1)


def rectified_head(behind: Callable[[Tensor], Tensor], width: int, like: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return W ``(C, m)`` and b ``(C,)`` where logits are W relu(z) + b of a layer's m outputs z; else None.

    ``behind`` is as of :func:`logits_behind`, ``width`` m, and ``like`` a tensor of the device and type to compute with.
    """
    point = like.new_ones(1, width).requires_grad_()
    logits = behind(point)
    if not logits.requires_grad:
        return None
    rows = [torch.autograd.grad(logit, point, retain_graph=True)[0][0] for logit in logits[0]]
    weight = torch.stack(rows).detach()
    bias = logits[0].detach() - weight.sum(1)
    probe = torch.randn(8, width, generator=torch.Generator().manual_seed(0)).to(like)
    with torch.no_grad():
        actual, expected = behind(probe), functional.linear(probe.relu(), weight, bias)
    apart = float((actual - expected).norm()) > _CLOSE * float(expected.norm().clamp(min=1e-30))
    return None if apart else (weight, bias)


def label_slopes(
    behind: Callable[[Tensor], Tensor], bias: Tensor, labels: Tensor, gradient: Mapping[str, Tensor], n_classes: int
) -> LabelSlopes | None:
    """Return the derivatives at a layer's outputs by label; None where not a ReLU and a head stand behind it.

    The mean prediction follows from the gradient of the head's bias, db = mean(p) - counts / n; where that was not sent,
    it is taken for the one that the head's bias makes alone.

    Args:
        behind: as of :func:`logits_behind`.
        bias: ``(m,)`` of the layer.
        labels: ``(n,)`` of a step's images; below zero where they are unknown.
        gradient: of all that was sent of the step, by name, in the order of layers.
        n_classes: C.
    """
    head = rectified_head(behind, len(bias), bias)
    if head is None or not len(labels) or int(labels.min()) < 0:
        return None
    weight, head_bias = (value.double().cpu() for value in head)
    if int(labels.max()) >= len(head_bias) or not bool(weight.any()):
        return None
    counts = torch.bincount(labels.cpu(), minlength=len(head_bias))
    chances = head_bias.softmax(0)
    names = [name for name, value in gradient.items() if value.shape == weight.shape]
    sent = gradient.get(f"{names[-1].removesuffix('weight')}bias") if names else None
    if sent is not None and len(head_bias) == n_classes:
        chances = (sent.double().cpu() + counts / len(labels)).clamp(min=0)
    return LabelSlopes(weight, chances, counts)


# ---------------------------------------------------------------- from the last layer down


@dataclass(frozen=True)
class LabelledStep:
    """One step of a cross-entropy, with labels.

    Attributes:
        model: architecture.
        weights: all parameters that the loss takes.
        gradient: of those that were sent.
        project: as of :func:`fedpriv.attacks.gradients.separation.linear_gradient`.
        layers: names of fully connected layers, in order, none of them the head; weight and bias were sent.
        labels: ``(n,)``.
        image_shape: (channels, height, width).
        learning_rate: by which the update was divided.
    """

    model: nn.Module
    weights: Weights
    gradient: Mapping[str, Tensor]
    project: Any
    layers: tuple[str, ...]
    labels: Tensor
    image_shape: tuple[int, int, int]
    learning_rate: float

    def separated(self, layer: str, draw: torch.Generator, draws: int) -> Separation:
        """Return the columns at one of the layers, told apart from the last one down.

        ``draw`` and ``draws`` are as of :func:`fedpriv.attacks.gradients.separation.separate`, these at this layer alone.
        """
        way, columns = self.layers[self.layers.index(layer) :], None
        for below, name in zip(reversed(way[:-1]), reversed(way[1:]), strict=True):
            columns = self.columns_below(name, below, self.at(name, draw, 0, columns))
        return self.at(layer, draw, draws, columns)

    def at(self, layer: str, draw: torch.Generator, draws: int, columns: Tensor | None) -> Separation:
        """Return the columns at a layer, where some ``(m, s)`` may be known but for their lengths."""
        known, count, by_label = linear_gradient(self.gradient, self.project, layer), len(self.labels), None
        if layer == self.layers[-1] and count <= MOST_BY_LABELS:
            bias, behind = self.weights[f"{layer}.bias"], self._behind(layer)
            by_label = label_slopes(behind, bias, self.labels, self.gradient, behind(bias.unsqueeze(0)).shape[1])
        return separate(known.rows, known.bias, count, draw, draws, by_label, columns)

    def columns_below(self, layer: str, below: str, parts: Separation) -> Tensor | None:
        """Return columns ``(m, s)`` at the layer below of those images that are surely told apart at this one."""
        if not parts.errors.shape[1] or not self._rectified(below, layer):
            return None
        known, weight = linear_gradient(self.gradient, self.project, layer), self.weights[f"{layer}.weight"]
        inputs = inputs_of(parts.errors, known.weight, known.left)
        outputs = functional.linear(inputs.to(weight), weight, self.weights[f"{layer}.bias"])
        slopes = cross_entropy_slopes(self._behind(layer), outputs, int(self.labels.max()) + 1).cpu().double()
        apart = 1 - functional.cosine_similarity(parts.errors.T.unsqueeze(1), slopes, dim=2)
        active = inputs > _ACTIVE * inputs.amax(1, keepdim=True)
        return (((parts.errors.T @ weight.double().cpu()) * active)[apart.amin(1) < _SURELY]).T

    def _behind(self, layer: str) -> Callable[[Tensor], Tensor]:
        return logits_behind(self.model, self.weights, layer, self.image_shape)

    def _rectified(self, below: str, above: str) -> bool:
        """True where what goes into one layer is what came out of another, rectified."""
        bias = self.weights[f"{below}.bias"]
        probe = torch.randn(4, len(bias), generator=torch.Generator().manual_seed(0)).to(bias)
        network = copy.deepcopy(self.model).eval().to(bias.device)
        seen: list[Tensor] = []
        network.get_submodule(below).register_forward_hook(lambda *_: probe.clone())
        network.get_submodule(above).register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
        with torch.no_grad():
            functional_call(network, self.weights, (torch.zeros(len(probe), *self.image_shape).to(probe),))
        return seen[0].shape == probe.shape and torch.allclose(seen[0], probe.relu(), 1e-4, 1e-5)


# ---------------------------------------------------------------- what went into a layer


@dataclass(frozen=True)
class Known:
    """Inputs of a layer that are known of the images of one step.

    Attributes:
        view: images to the layer's inputs.
        inputs: ``(n, k)``, one row an image.
        sure: ``(n,)`` whether an image's own inputs are known; the others are not asked for.
    """

    view: LayerInputs
    inputs: Tensor
    sure: Tensor


class KnownInputs:
    """Distances of N rows' candidates from what went into a layer; rows of which nothing is known have none.

    Which rows are asked for is looked at only where it is another tensor than the last time, or was written to.
    """

    def __init__(self, known: Sequence[Known | None]) -> None:
        self._known = known
        self._last: tuple[Tensor, int, list[_Share]] | None = None

    def distance(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the relative squared distance ``(R,)``, mean over each row's own images of ``(R, M, c, h, w)``."""
        distances = images.new_zeros(len(images))
        if self._last is None or self._last[0] is not rows or self._last[1] != rows._version:
            self._last = rows, rows._version, self._grouped(rows.tolist(), images.device)
        for share in self._last[2]:
            count = share.sure.shape[1]
            inputs = share.view(images[share.places, :count].flatten(0, 1))
            apart = relative_feature_distance(inputs, share.wanted, share.square).view(-1, count)
            distances = distances.index_copy(0, share.places, (apart * share.sure).mean(1))
        return distances

    def _grouped(self, rows: list[int], device: torch.device) -> list[_Share]:
        """Return the asked rows by their layer's weights and number of images."""
        groups: dict[tuple[int, int], list[tuple[int, Known]]] = {}
        for place, row in enumerate(rows):
            known = self._known[row]
            if known is not None:
                groups.setdefault((id(known.view), len(known.inputs)), []).append((place, known))
        shares = []
        for group in groups.values():
            wanted = torch.cat([known.inputs for _, known in group]).to(device)
            sure = torch.stack([known.sure for _, known in group]).to(wanted)
            places = torch.tensor([place for place, _ in group], device=device)
            shares.append(_Share(group[0][1].view, wanted, squared_length(wanted), sure, places))
        return shares


class _Share(NamedTuple):
    """Rows at ``places`` of one layer and n images each: what went in ``(R n, k)``, its squares, if known ``(R, n)``."""

    view: LayerInputs
    wanted: Tensor
    square: Tensor
    sure: Tensor
    places: Tensor


# ---------------------------------------------------------------- targets


@dataclass(frozen=True)
class SeparatedBatch:
    """One target whose loss is known at the output of a layer.

    Attributes:
        step: with the layer as ``readout``, and the gradients of what it depends on.
        derivatives: ``(n, m)`` of the loss at the layer's outputs, one row an image.
        known: images to what goes into the layer, and what went in; None where it depends on the batch, or is not sure.
        labels: ``(n,)`` in the order of the rows; -1 where nothing says them.
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


def separate_batch(
    model: nn.Module,
    compared: Sequence[LocalStep],
    whole: Sequence[LocalStep],
    labels: Sequence[Tensor],
    problem: AttackProblem,
    *,
    always: bool,
) -> list[SeparatedBatch | None]:
    """Return, for each step whose images can be told apart, what is known of each; None for the others.

    Args:
        model: architecture.
        compared: steps, of which candidates are asked for.
        whole: the same steps with all that was sent, by which images are told apart.
        labels: of each step's images, which are of none where they are unknown.
        problem: targets of the steps; what is read off is kept there.
        always: also where labels say the loss; else only where private parts teach the network.
    """
    by_labels = problem.knowledge.loss.through == "cross_entropy"
    if (by_labels and not always) or all(len(step.sizes) != 1 for step in compared):
        return [None] * len(compared)
    reader = _Reader(model, problem, by_labels)
    return [reader.read(*each) for each in zip(compared, whole, labels, strict=True)]


class _Reader:
    def __init__(self, model: nn.Module, problem: AttackProblem, by_labels: bool) -> None:
        self._model, self._problem, self._by_labels = model, problem, by_labels
        self._layers = readable_layers(model, problem.knowledge.image_shape)
        self._views: list[tuple[str, LocalStep, LayerInputs]] = []

    def read(self, step: LocalStep, sent: LocalStep, labels: Tensor) -> SeparatedBatch | None:
        """Return one step's images as the last layer that says anything tells them apart."""
        if len(step.sizes) != 1:
            return None
        names = sent_layers(self._layers, step.gradient.keys(), head=False)
        if not names and self._problem.knowledge.loss.through == "logits":
            # The head's bias says it too, but leaves more to be searched through.
            names = sent_layers(self._layers, step.gradient.keys(), head=True)
        for name in reversed(names):
            parts = self._parts(name, sent, labels, step.sizes[0])
            batch = None if parts is None else self._checked(name, step, parts, labels)
            if batch is not None:
                return batch
        return self._by_head(step, sent, labels) if self._by_labels else None

    def _parts(self, name: str, sent: LocalStep, labels: Tensor, count: int) -> Parts | None:
        """Return the parts of an update, which are the same whoever is said to have sent it: controls ask for them again."""
        by_label = None
        if self._by_labels:
            n_classes, bias = self._problem.knowledge.n_classes, sent.weights[f"{name}.bias"]
            by_label = label_slopes(self._behind(name, sent), bias, labels, sent.gradient, n_classes)
        counts = () if by_label is None else tuple(by_label.counts.tolist())
        seeds = self._problem.seed, count, _digest(sent, name)
        make = partial(_parts_of, sent, name, by_label, *seeds)
        return self._problem.trained.get(("parts of a batch", name, *seeds, *counts), make)

    def _checked(self, name: str, step: LocalStep, parts: Parts, labels: Tensor) -> SeparatedBatch | None:
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
            slopes = cross_entropy_slopes(self._behind(name, step), outputs, problem.knowledge.n_classes)
            apart = 1 - functional.cosine_similarity(derivatives.unsqueeze(1), slopes, dim=2).cpu()
            if problem.knowledge.card.labels == "inferred":
                labels = apart.argmin(1)
            else:
                order = _assigned(apart[:, labels.cpu()].T)
            certain = apart[order, labels.cpu()] < _AGREES
            if not sure or float(certain.float().mean()) < _MOST_OF_THEM:
                return None
        else:
            sure = sure and parts.attested and reachable(view, inputs, problem.knowledge.image_shape)
            if not sure and count > 1:
                return None
        there = order.to(problem.device)
        known = Known(view, inputs[there], certain) if sure and view.alone else None
        return SeparatedBatch(self._up_to(name, step), derivatives[there], known, labels)

    def _by_head(self, step: LocalStep, sent: LocalStep, labels: Tensor) -> SeparatedBatch | None:
        """Return one step's images as the head's gradient and their labels tell them apart."""
        names = sent_layers(self._layers, sent.gradient.keys(), head=True)
        if not names or sent.project is not None or not len(labels) or int(labels.min()) < 0:
            return None
        name, problem = names[-1], self._problem
        view, parameters = self._view(name, step), [f"{name}.{kind}" for kind in ("weight", "bias")]
        weight, bias = (sent.gradient[parameter] for parameter in parameters)
        # What goes in may depend on the batch: asking for it then was measured to make the images worse.
        if len(bias) != problem.knowledge.n_classes or not view.alone:
            return None
        key, head = (problem.seed, _digest(sent, name)), (sent.weights[parameters[0]], sent.weights[parameters[1]])

        def solve() -> HeadMembers | None:
            return members_of_head(weight, bias, head, labels, generator(*key, "head"))

        members = problem.trained.get(("members of the head", *key, *labels.tolist()), solve)
        if members is None or not bool(members.sure.any()):
            return None
        known = Known(view, members.inputs.to(problem.device), members.sure)
        return SeparatedBatch(self._up_to(name, step), members.derivatives.to(problem.device), known, labels)

    def _up_to(self, name: str, step: LocalStep) -> LocalStep:
        """Return a step with a layer as readout, and the gradients of what its outputs depend on."""
        gradient = {own: value for own, value in step.gradient.items() if own in self._layers[name]}
        return replace(step, gradient=gradient, readout=name)

    def _behind(self, name: str, step: LocalStep) -> Callable[[Tensor], Tensor]:
        return logits_behind(self._model, step.weights | step.fixed, name, self._problem.knowledge.image_shape)

    def _view(self, name: str, step: LocalStep) -> LayerInputs:
        """Return the map to a layer's inputs, the same object where weights are equal."""
        for layer, other, view in self._views:
            if layer == name and equal_weights(other.weights, step.weights):
                return view
        problem = self._problem
        view = LayerInputs(self._model, step.weights, name, problem.knowledge.image_shape, problem.device)
        self._views.append((name, step, view))
        return view


def _parts_of(
    sent: LocalStep, name: str, by_label: LabelSlopes | None, seed: int, count: int, digest: str
) -> Parts | None:
    draw = generator(seed, digest, "readout")
    return linear_gradient(sent.gradient, sent.project, name).parts(count, draw, by_label)


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
    probes = torch.rand(_PROBES, *image_shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        least = float(view(probes.to(inputs.device)).min())
    return least < 0 or float(inputs.min()) >= -_BELOW * float(inputs.abs().max())
