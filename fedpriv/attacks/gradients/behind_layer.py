"""The part of an uploaded network that stands behind a fully connected layer, and the loss's derivatives at its outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedpriv.attacks.gradients.label_masks import LabelSlopes
from fedpriv.attacks.inputs.updates import Weights

_CLOSE = 1e-4
"""Relative difference of logits below which what stands behind a layer is one ReLU and one more layer."""


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


def values_between(
    model: nn.Module,
    weights: Weights,
    layer: str,
    later: str,
    outputs: Tensor,
    image_shape: tuple[int, int, int],
) -> Tensor:
    """Return the inputs of a later layer ``(n, k)`` when these are a layer's outputs ``(n, m)``, in evaluation mode."""
    network = copy.deepcopy(model).eval().to(outputs.device)
    seen: list[Tensor] = []
    network.get_submodule(layer).register_forward_hook(lambda *_: outputs.clone())
    network.get_submodule(later).register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    with torch.no_grad():
        functional_call(network, weights, (torch.zeros(len(outputs), *image_shape).to(outputs),))
    return seen[0]


def cross_entropy_slopes(behind: Callable[[Tensor], Tensor], outputs: Tensor, n_classes: int) -> Tensor:
    """Return the derivative of every label's cross-entropy at a layer's outputs: ``(n, m)`` to ``(n, C, m)``."""
    point = outputs.detach().requires_grad_()
    logits = behind(point)
    if not logits.requires_grad:  # the layer stands beside what leads to them
        return point.new_zeros(len(point), n_classes, point.shape[1])
    told = -functional.log_softmax(logits, 1)
    each = [torch.autograd.grad(told[:, own].sum(), point, retain_graph=True)[0] for own in range(told.shape[1])]
    return torch.stack(each, 1)


def rectified_head(behind: Callable[[Tensor], Tensor], width: int, like: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return W ``(C, m)`` and b ``(C,)`` where logits are W relu(z) + b of a layer's m outputs z; else None.

    Args:
        behind: as of :func:`logits_behind`.
        width: m.
        like: a tensor of the device and type to compute with.
    """
    point = like.new_ones(1, width).requires_grad_()
    logits = behind(point)
    if not logits.requires_grad:
        return None
    rows = [torch.autograd.grad(one, point, retain_graph=True)[0][0] for one in logits[0]]
    weight = torch.stack(rows).detach()
    bias = logits[0].detach() - weight.sum(1)
    probe = torch.randn(8, width, generator=torch.Generator().manual_seed(0)).to(like)
    with torch.no_grad():
        found, expected = behind(probe), functional.linear(probe.relu(), weight, bias)
    apart = float((found - expected).norm()) > _CLOSE * float(expected.norm().clamp(min=1e-30))
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
    weight, own_bias = (value.double().cpu() for value in head)
    if int(labels.max()) >= len(own_bias) or not bool(weight.any()):
        return None
    counts = torch.bincount(labels.cpu(), minlength=len(own_bias))
    chances = own_bias.softmax(0)
    names = [own for own, value in gradient.items() if value.shape == weight.shape]
    told = gradient.get(f"{names[-1].removesuffix('weight')}bias") if names else None
    if told is not None and len(own_bias) == n_classes:
        chances = (told.double().cpu() + counts / len(labels)).clamp(min=0)
    return LabelSlopes(weight, chances, counts)
