"""Fully connected layers of an uploaded network, and the images of one step separated at one of them.

The gradient of such a layer says what each image put in and the loss's derivative there
(:mod:`fedpriv.attacks.gradients.separation`), so the loss is known without what stands behind the layer: all layers up to it
see the loss <D, output>, and every image is asked for its own share instead of all for a sum.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.separation import LabelSlopes, LinearGradient, Parts, members_of_head
from fedpriv.attacks.gradients.update import HEAD, RANDOM, LocalStep, Weights, equal_weights
from fedpriv.models import ImageShape
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator

_BATCHED = nn.modules.batchnorm._BatchNorm
_NORMS = (_BATCHED, nn.modules.instancenorm._InstanceNorm)

_AGREES = 0.05  # cosine distance of a derivative from what a label would make of it, below which the label says it
_MOST_OF_THEM = 0.5  # share of a step's images whose labels must say their derivatives
_PROBES, _BELOW = 8, 0.02  # random images; how far below zero rounding takes a layer's inputs
_CLOSE = 1e-4  # relative difference of logits below which what stands behind a layer is one ReLU and one more layer


class _Reached(Exception):
    """The layer was reached; holds what went in."""


class LayerInputs:
    """Images ``(n, c, h, w)`` to what goes into a linear layer ``(n, k)``, by broadcast weights, differentiably."""

    def __init__(self, model: nn.Module, weights: Mapping[str, Tensor], name: str, device: torch.device) -> None:
        self._model = copy.deepcopy(model).eval().requires_grad_(False).to(device)
        layer = self._model.get_submodule(name)

        def stop(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            raise _Reached(given[0])

        layer.register_forward_pre_hook(stop)
        there = {part for part, _ in self._model.named_parameters() if not part.startswith(f"{name}.")}
        self._weights = {part: value.to(device) for part, value in weights.items() if part in there}
        # What an image puts into the layer does not depend on the others of its batch.
        self.alone = not any(isinstance(module, _BATCHED) for module in self._model.modules())

    def __call__(self, images: Tensor) -> Tensor:
        try:
            functional_call(self._model, self._weights, (images,))
        except _Reached as result:
            inputs: Tensor = result.args[0]
            return inputs
        raise RuntimeError("the layer was not reached")


class LayerViews:
    """Maps to layers' inputs by a model, on a device: the same object where layer and weights are equal."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model, self._device = model, device
        self._made: list[tuple[str, Weights, LayerInputs]] = []

    def of(self, name: str, weights: Weights) -> LayerInputs:
        made = (view for layer, others, view in self._made if layer == name and equal_weights(others, weights))
        view = next(made, None)
        if view is None:
            view = LayerInputs(self._model, weights, name, self._device)
            self._made.append((name, weights, view))
        return view


class Known(NamedTuple):
    """Inputs ``(n, k)`` of a layer that are known of the images of one step, and of which of them ``(n,)`` for sure."""

    view: LayerInputs
    inputs: Tensor
    sure: Tensor


class _Passage(NamedTuple):
    """A linear layer with bias that was passed: what comes before it, and what came out."""

    name: str
    vectors: bool  # whether it takes one vector an image
    random: bool  # whether a layer that draws numbers in training came before
    normed: str  # the first norm before it, or nothing
    output: Tensor


def _passages(probe: nn.Module, image_shape: ImageShape) -> list[_Passage]:
    passed: list[_Passage] = []
    random: list[str] = []
    norms: list[str] = []
    names = {layer: name for name, layer in probe.named_modules()}

    def note(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        passed.append(_Passage(names[layer], given[0].dim() == 2, bool(random), "".join(norms[:1]), output))
        return output.clone()  # what follows may overwrite it

    for layer in names:
        if isinstance(layer, (RANDOM, _NORMS)):
            kind = random if isinstance(layer, RANDOM) else norms
            layer.register_forward_pre_hook(lambda layer, _, kind=kind: kind.append(names[layer]))
        elif isinstance(layer, nn.Linear) and layer.bias is not None:
            layer.register_forward_hook(note)
    probe(torch.full((2, *image_shape), 0.5, device=next(probe.parameters()).device))
    return passed


def readable_layers(model: nn.Module, image_shape: ImageShape) -> dict[str, frozenset[str]]:
    """Return the linear layers with bias that take one vector an image, and the parameters that each depends on."""
    probe = copy.deepcopy(model).eval().requires_grad_(True)
    names, weights = zip(*probe.named_parameters(), strict=True)
    results = {}
    for layer in _passages(probe, image_shape):
        if layer.vectors and not layer.random:
            slopes = torch.autograd.grad(layer.output.sum(), weights, retain_graph=True, allow_unused=True)
            pairs = zip(names, slopes, strict=True)
            results[layer.name] = frozenset(name for name, slope in pairs if slope is not None)
    return results


def first_linear(model: nn.Module, image_shape: ImageShape, sent: Collection[str]) -> str:
    """Return the name of the first linear layer with bias that takes one vector an image and whose weights are ``sent``.

    Refuses where there is none, or batch normalisation stands before it (then what goes in depends on the batch).
    """
    with torch.no_grad():
        passed = _passages(copy.deepcopy(model).eval(), image_shape)
    names = [layer.name for layer in passed]
    for layer in passed:
        usable = layer.vectors and not layer.normed and names.count(layer.name) == 1
        if usable and {f"{layer.name}.weight", f"{layer.name}.bias"} <= set(sent):
            return layer.name
    normed = next((layer.normed for layer in passed if layer.normed), "")
    wanted = "attack 'linear-layer' needs an uploaded fully connected layer with bias that takes one vector an image"
    beside = f", without batch normalisation before it ({normed})" if normed else ""
    raise UserError(f"{wanted}{beside}; use inverting-gradients for this network")


def as_affine(inputs: LayerInputs, image_shape: ImageShape, device: torch.device) -> tuple[float, float] | None:
    """Return (scale, shift) where a layer takes ``scale * pixels + shift``, pixels in row-major order; else None."""
    draw = torch.Generator().manual_seed(0)
    dark, light = torch.zeros(1, *image_shape), torch.ones(1, *image_shape)
    images = torch.cat([dark, light, torch.rand(_PROBES, *image_shape, generator=draw)])
    pixels = images.flatten(1)
    with torch.no_grad():
        result = inputs(images.to(device)).cpu()
    if result.shape[1] != pixels.shape[1]:
        return None
    shift, scale = float(result[0].mean()), float((result[1] - result[0]).mean())
    return (scale, shift) if scale and torch.allclose(result, scale * pixels + shift, atol=1e-5) else None


def logits_behind(
    model: nn.Module, weights: Weights, layer: str, image_shape: ImageShape
) -> Callable[[Tensor], Tensor]:
    """Return the map from a layer's outputs ``(n, m)`` to logits ``(n, C)``, in evaluation mode, for any images."""
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
    each = [torch.autograd.grad(loss.sum(), point, retain_graph=True)[0] for loss in losses.T]
    return torch.stack(each, 1)


def rectified_head(behind: Callable[[Tensor], Tensor], like: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return W ``(C, m)`` and b ``(C,)`` where logits are W relu(z) + b of a layer's m outputs z; else None."""
    point = like.new_ones(1, len(like)).requires_grad_()
    logits = behind(point)
    if not logits.requires_grad:
        return None
    rows = [torch.autograd.grad(logit, point, retain_graph=True)[0][0] for logit in logits[0]]
    weight = torch.stack(rows).detach()
    bias = logits[0].detach() - weight.sum(1)
    probe = torch.randn(8, len(like), generator=torch.Generator().manual_seed(0)).to(like)
    with torch.no_grad():
        actual, expected = behind(probe), functional.linear(probe.relu(), weight, bias)
    apart = float((actual - expected).norm()) > _CLOSE * float(expected.norm().clamp(min=1e-30))
    return None if apart else (weight, bias)


def label_slopes(
    behind: Callable[[Tensor], Tensor], bias: Tensor, labels: Tensor, gradient: Mapping[str, Tensor]
) -> LabelSlopes | None:
    """Return the derivatives at a layer's outputs by label; None where not a ReLU and a head stand behind it.

    The mean prediction follows from the gradient of the head's bias, db = mean(p) - counts / n, or else from the bias alone.
    ``bias`` ``(m,)`` is the layer's; labels ``(n,)`` are below zero where unknown; ``gradient`` is in the order of layers.
    """
    head = rectified_head(behind, bias)
    if head is None or not len(labels) or int(labels.min()) < 0:
        return None
    weight, head_bias = (value.double().cpu() for value in head)
    if int(labels.max()) >= len(head_bias) or not bool(weight.any()):
        return None
    counts = torch.bincount(labels.cpu(), minlength=len(head_bias))
    chances = head_bias.softmax(0)
    names = [name for name, value in gradient.items() if value.shape == weight.shape]
    sent = gradient.get(f"{names[-1].removesuffix('weight')}bias") if names else None
    if sent is not None:
        chances = (sent.double().cpu() + counts / len(labels)).clamp(min=0)
    return LabelSlopes(weight, chances, counts)


@dataclass(frozen=True)
class SeparatedBatch:
    """One target whose loss is known at the output of a layer."""

    step: LocalStep  # with the layer as readout, and the gradients of what it depends on
    derivatives: Tensor  # (n, m) of the loss at the layer's outputs
    known: Known | None  # what went into the layer; None where it depends on the batch, or is not sure
    labels: Tensor  # (n,), -1 where nothing says them

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
    """Return, for each step whose images can be separated, what is known of each; None for the others.

    ``whole`` are the ``compared`` steps with all that was sent. Where labels say the loss it is done ``always`` or never.
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
        self._views = LayerViews(model, problem.device)

    def read(self, step: LocalStep, sent: LocalStep, labels: Tensor) -> SeparatedBatch | None:
        """Return one step's images as the last layer that says anything tells them apart."""
        if len(step.sizes) != 1:
            return None
        names = self._sent(step, head=False)
        if not names and self._problem.knowledge.loss.through == "logits":
            # The head's bias says it too, but leaves more to be searched through.
            names = self._sent(step, head=True)
        for name in reversed(names):
            parts = self._parts(name, sent, labels, step.sizes[0])
            batch = None if parts is None else self._checked(name, step, parts, labels)
            if batch is not None:
                return batch
        return self._by_head(step, sent, labels) if self._by_labels else None

    def _sent(self, step: LocalStep, *, head: bool) -> list[str]:
        """Return the layers whose weight and bias were both sent, in order: the head, or all before it."""
        sent = step.gradient.keys()
        both = [name for name in self._layers if {f"{name}.weight", f"{name}.bias"} <= sent]
        return [name for name in both if f"{name}.".startswith(HEAD) == head]

    def _parts(self, name: str, sent: LocalStep, labels: Tensor, count: int) -> Parts | None:
        """Return the parts of an update, which are the same whoever is said to have sent it: controls ask for them again."""
        by_label = None
        if self._by_labels:
            by_label = label_slopes(self._behind(name, sent), sent.weights[f"{name}.bias"], labels, sent.gradient)
        counts = () if by_label is None else tuple(by_label.counts.tolist())
        key = self._problem.seed, _digest(sent, name)

        def make() -> Parts | None:
            layer = LinearGradient(sent.gradient, sent.project, name)
            return layer.parts(count, generator(*key, "readout"), by_label)

        return self._problem.trained.get(("parts of a batch", name, count, *key, *counts), make)

    def _checked(self, name: str, step: LocalStep, parts: Parts, labels: Tensor) -> SeparatedBatch | None:
        """Return parts that nothing contradicts, in an order in which they have these labels.

        Where labels say the loss, most must be what their label makes of them; else each must be attested and possible.
        """
        problem, count = self._problem, len(parts.derivatives)
        view, inputs = self._views.of(name, step.weights), parts.inputs.to(problem.device)
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
            sure = sure and parts.attested and _reachable(view, inputs, problem.knowledge.image_shape)
            if not sure and count > 1:
                return None
        there = order.to(problem.device)
        known = Known(view, inputs[there], certain) if sure and view.alone else None
        return SeparatedBatch(self._up_to(name, step), derivatives[there], known, labels)

    def _by_head(self, step: LocalStep, sent: LocalStep, labels: Tensor) -> SeparatedBatch | None:
        """Return one step's images as the head's gradient and their labels tell them apart."""
        names = self._sent(sent, head=True)
        if not names or sent.project is not None or not len(labels) or int(labels.min()) < 0:
            return None
        name, problem = names[-1], self._problem
        view, both = self._views.of(name, step.weights), (f"{name}.weight", f"{name}.bias")
        weight, bias = (sent.gradient[parameter] for parameter in both)
        # What goes in may depend on the batch: asking for it then was measured to make the images worse.
        if len(bias) != problem.knowledge.n_classes or not view.alone:
            return None
        key, head = (problem.seed, _digest(sent, name)), (sent.weights[both[0]], sent.weights[both[1]])

        members = problem.trained.get(
            ("members of the head", *key, *labels.tolist()),
            lambda: members_of_head(weight, bias, head, labels, generator(*key, "head")),
        )
        if members is None or not bool(members.sure.any()):
            return None
        known = Known(view, members.inputs.to(problem.device), members.sure)
        return SeparatedBatch(self._up_to(name, step), members.derivatives.to(problem.device), known, labels)

    def _up_to(self, name: str, step: LocalStep) -> LocalStep:
        """Return a step with a layer as readout, and the gradients of what its outputs depend on."""
        gradient = {current: value for current, value in step.gradient.items() if current in self._layers[name]}
        return replace(step, gradient=gradient, readout=name)

    def _behind(self, name: str, step: LocalStep) -> Callable[[Tensor], Tensor]:
        return logits_behind(self._model, step.weights | step.fixed, name, self._problem.knowledge.image_shape)


def _digest(sent: LocalStep, name: str) -> str:
    """Return a text that two gradients of a layer share where they are equal to the last bit."""
    both = (sent.gradient[f"{name}.{kind}"].detach().cpu().contiguous() for kind in ("weight", "bias"))
    # As bytes: numpy has no bfloat16.
    return hashlib.sha256(b"".join(value.view(torch.uint8).numpy().tobytes() for value in both)).hexdigest()


def _assigned(costs: Tensor) -> Tensor:
    """Return the column ``(n,)`` of each row of costs ``(n, n)``, each used once, whose sum is least."""
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]  # takes a while to import

    return torch.as_tensor(linear_sum_assignment(costs.numpy())[1])


def _reachable(view: LayerInputs, inputs: Tensor, image_shape: ImageShape) -> bool:
    """False where inputs are negative though those of random images never are: behind a ReLU a wrong part shows itself."""
    probes = torch.rand(_PROBES, *image_shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        least = float(view(probes.to(inputs.device)).min())
    return least < 0 or float(inputs.min()) >= -_BELOW * float(inputs.abs().max())
