"""Fully connected layers of an uploaded network: which can be read, and what goes into one as a function of the image.

Of one step on one image the gradient of a linear layer's bias is the loss's derivative D at what came out of the layer,
whatever the loss is computed from behind it: private models, projectors, labels. All layers up to it then see the loss
<D, output>, whose gradient a candidate can be asked for without knowing anything private.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedpriv.attacks.gradients.update import RANDOM
from fedpriv.attacks.inputs.updates import HEAD
from fedpriv.util.errors import UserError

_BATCHED = nn.modules.batchnorm._BatchNorm
_NORMS = (_BATCHED, nn.modules.instancenorm._InstanceNorm)
_PROBES = 3


@dataclass(frozen=True)
class Affine:
    """``inputs = scale * pixels + shift``, the pixels in row-major order."""

    scale: float
    shift: float


PREFIX = "network."
"""Prefix of the names of a network's parameters in :class:`UpToLayer`."""


class _Reached(Exception):
    """The layer was reached; holds what went in."""

    def __init__(self, inputs: Tensor) -> None:
        self.inputs = inputs


class _Stop(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        """End the pass here."""
        raise _Reached(inputs)


class UpToLayer(nn.Module):
    """A network that ends where a layer begins: images ``(n, c, h, w)`` to what goes into it ``(n, k)``.

    In evaluation mode: what it does to one image does not depend on others. The network is copied; with ``padded`` a zero is
    appended to every row.
    """

    def __init__(self, model: nn.Module, name: str, image_shape: tuple[int, int, int], *, padded: bool = False) -> None:
        super().__init__()
        self.network = copy.deepcopy(model).eval().requires_grad_(False)
        self._padded = padded
        self.network.set_submodule(name, _Stop())
        reached: set[str] = set()
        hooks = [
            module.register_forward_pre_hook(lambda module, given, own=own: reached.add(own))
            for own, module in self.network.named_modules()
        ]
        self(torch.zeros(1, *image_shape, device=next(model.parameters()).device))
        for hook in hooks:
            hook.remove()
        for own, module in list(self.network.named_modules()):
            if own not in reached and any(True for _ in module.parameters(recurse=False)):
                self.network.set_submodule(own, nn.Identity())  # never used

    def forward(self, images: Tensor) -> Tensor:
        """Return the layer's inputs."""
        try:
            self.network(images)
        except _Reached as found:
            return functional.pad(found.inputs, (0, 1)) if self._padded else found.inputs
        raise RuntimeError("the layer was not reached")


class LayerInputs:
    """Images ``(n, c, h, w)`` to what goes into a linear layer ``(n, k)``, by broadcast weights, differentiably."""

    def __init__(
        self,
        model: nn.Module,
        weights: Mapping[str, Tensor],
        name: str,
        image_shape: tuple[int, int, int],
        device: torch.device,
    ) -> None:
        self._model = UpToLayer(model, name, image_shape).to(device)
        self.weights = {own: weights[own.removeprefix(PREFIX)].to(device) for own, _ in self._model.named_parameters()}

    @property
    def alone(self) -> bool:
        """True where what an image puts into the layer does not depend on the others of its batch."""
        return not any(isinstance(layer, _BATCHED) for layer in self._model.modules())

    def __call__(self, images: Tensor) -> Tensor:
        """Return the layer's inputs."""
        found: Tensor = functional_call(self._model, self.weights, (images,))
        return found


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


def first_linear(model: nn.Module, image_shape: tuple[int, int, int], sent: Collection[str]) -> str:
    """Return the name of the first linear layer with bias that takes one vector an image and whose weights are ``sent``.

    Raises:
        UserError: when there is none, or batch normalisation stands before it (then what goes in depends on the batch).
    """
    probe = copy.deepcopy(model).eval()
    passed: list[tuple[str, bool]] = []
    normalised: list[str] = []

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            if isinstance(layer, _NORMS):
                normalised.append(name)
            else:
                passed.append((name, given[0].dim() == 2 and not normalised))

        return hook

    for name, layer in probe.named_modules():
        if isinstance(layer, (nn.Linear, *_NORMS)):
            layer.register_forward_pre_hook(note(name))
    with torch.no_grad():
        probe(torch.zeros(2, *image_shape, device=next(probe.parameters()).device))
    names = [name for name, _ in passed]
    for name, usable in passed:
        if usable and names.count(name) == 1 and {f"{name}.weight", f"{name}.bias"} <= set(sent):
            return name
    raise UserError(
        "attack 'linear-layer' needs an uploaded fully connected layer with bias that takes one vector an image"
        + (f", without batch normalisation before it ({normalised[0]})" if normalised else "")
        + "; use inverting-gradients for this network"
    )


def as_affine(inputs: LayerInputs, image_shape: tuple[int, int, int], device: torch.device) -> Affine | None:
    """Return the map from pixels to the layer's inputs where each input is one pixel, scaled and shifted; else None."""
    draw = torch.Generator().manual_seed(0)
    dark, light = torch.zeros(1, *image_shape), torch.ones(1, *image_shape)
    images = torch.cat([dark, light, torch.rand(_PROBES, *image_shape, generator=draw)])
    pixels = images.flatten(1)
    with torch.no_grad():
        found = inputs(images.to(device)).cpu()
    if found.shape[1] != pixels.shape[1]:
        return None
    shift, scale = float(found[0].mean()), float((found[1] - found[0]).mean())
    return Affine(scale, shift) if scale and torch.allclose(found, scale * pixels + shift, atol=1e-5) else None


def readable_layers(model: nn.Module, image_shape: tuple[int, int, int]) -> dict[str, frozenset[str]]:
    """Return the linear layers with bias that take one vector an image, in order, and the parameters that each depends on.

    Layers behind one that draws numbers in training are left out: what they see of an image, nobody else can compute.
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


def sent_layers(layers: dict[str, frozenset[str]], sent: Collection[str], *, head: bool) -> list[str]:
    """Return those layers whose weight and bias are both ``sent``, in order: the head, or all before it."""
    return [
        name
        for name in layers
        if f"{name}.weight" in sent and f"{name}.bias" in sent and f"{name}.".startswith(HEAD) == head
    ]
