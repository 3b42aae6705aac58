"""Losses of which only the derivative at a layer's output is known, because the layer's bias gradient is that derivative.

Of one step on one image the gradient of a linear layer's bias is the loss's derivative D at what came out of the layer,
whatever the loss is computed from behind it: private models, projectors, labels. All layers up to it then see the loss
<D, output>, whose gradient a candidate can be asked for without knowing anything private.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from fedpriv.attacks.gradients.local_step import RANDOM
from fedpriv.attacks.read.updates import HEAD


def readable_layers(model: nn.Module, image_shape: tuple[int, int, int]) -> dict[str, frozenset[str]]:
    """Return the linear layers with bias that take one vector an image, in order, and the parameters before each.

    Layers behind one that draws numbers in training are left out: what they see of an image, nobody else can compute.

    Args:
        model: architecture; it is copied.
        image_shape: (channels, height, width).

    Returns:
        Name of a layer -> names of the parameters that its output depends on, its own among them.
    """
    probe = copy.deepcopy(model).eval().requires_grad_(True)
    passed: list[tuple[str, Tensor]] = []
    drawn: list[str] = []

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def hook(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if not drawn and given[0].dim() == 2:
                passed.append((name, output))
            return output.clone()  # what follows may overwrite it

        return hook

    for name, layer in probe.named_modules():
        if isinstance(layer, RANDOM):
            layer.register_forward_pre_hook(lambda *_: drawn.append("random"))
        elif isinstance(layer, nn.Linear) and layer.bias is not None:
            layer.register_forward_hook(note(name))
    device = next(probe.parameters()).device
    probe(torch.full((2, *image_shape), 0.5, device=device))
    names, weights = zip(*probe.named_parameters(), strict=True)
    found = {}
    for name, output in passed:
        slopes = torch.autograd.grad(output.sum(), weights, retain_graph=True, allow_unused=True)
        found[name] = frozenset(own for own, slope in zip(names, slopes, strict=True) if slope is not None)
    return found


def last_readable(layers: dict[str, frozenset[str]], sent: Collection[str], *, head: bool) -> str:
    """Return the last layer whose weight and bias are both compared, or nothing.

    Args:
        layers: of :func:`readable_layers`.
        sent: names of the parameters that are compared.
        head: whether the head is the layer wanted; else the last one before it.
    """
    found = ""
    for name in layers:
        whole = f"{name}.weight" in sent and f"{name}.bias" in sent
        if whole and f"{name}.".startswith(HEAD) == head:
            found = name
    return found
