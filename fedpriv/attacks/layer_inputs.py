"""What goes into a network's first fully connected layer, as a function of the image, with weights that were broadcast."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpriv.errors import UserError

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
_PROBES = 3


@dataclass(frozen=True)
class Affine:
    """``inputs = scale * pixels + shift``, the pixels in row-major order."""

    scale: float
    shift: float


class LayerInputs:
    """Images ``(n, c, h, w)`` to what goes into a linear layer ``(n, k)``.

    The network is in evaluation mode: what it does to one image does not depend on others.

    Args:
        model: architecture; it is copied.
        weights: broadcast parameters by name; those behind the layer may be missing.
        name: of the layer.
        device: where to compute.
    """

    def __init__(self, model: nn.Module, weights: Mapping[str, Tensor], name: str, device: torch.device) -> None:
        self._model = copy.deepcopy(model).to(device).eval().requires_grad_(False)
        self._weights = {key: value.to(device) for key, value in weights.items()}
        self._seen: list[Tensor] = []
        self._model.get_submodule(name).register_forward_pre_hook(self._note)

    def _note(self, layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        self._seen.append(given[0])

    def __call__(self, images: Tensor) -> Tensor:
        """Return the layer's inputs, differentiable in the images."""
        return self._through(images, self._weights)

    def with_parameters(self, images: Tensor, names: Iterable[str]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the layer's inputs, and the named parameters, in which they are differentiable too."""
        leaves = {name: self._weights[name].detach().requires_grad_() for name in names}
        return self._through(images, self._weights | leaves), leaves

    def _through(self, images: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        self._seen.clear()
        functional_call(self._model, dict(weights), (images,))
        (found,) = self._seen
        self._seen.clear()
        return found


def first_linear(model: nn.Module, image_shape: tuple[int, int, int], sent: Collection[str]) -> str:
    """Return the name of the first linear layer with bias that takes one vector an image and whose weights are uploaded.

    Args:
        model: architecture.
        image_shape: (channels, height, width).
        sent: names of uploaded parameters.

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
    """Return how the layer's inputs follow from pixels where each is one pixel, scaled and shifted; else None."""
    draw = torch.Generator().manual_seed(0)
    dark, light = torch.zeros(1, *image_shape), torch.ones(1, *image_shape)
    with torch.no_grad():
        found = inputs(torch.cat([dark, light, torch.rand(_PROBES, *image_shape, generator=draw)]).to(device)).cpu()
    size = found.shape[1]
    if size != dark.numel():
        return None
    shift, scale = float(found[0].mean()), float((found[1] - found[0]).mean())
    draw = torch.Generator().manual_seed(0)
    pixels = torch.cat([dark, light, torch.rand(_PROBES, *image_shape, generator=draw)]).flatten(1)
    return Affine(scale, shift) if scale and torch.allclose(found, scale * pixels + shift, atol=1e-5) else None
