"""Settings of the search for a target: in which coordinates, under which prior, with signs or without, how fast.

Which of them can win follows from what everybody knows: whether the network has kinks, how many images there are, and what
the search may cost. Chosen on a few CIFAR-10 images on two untrained networks (``docs/attacks/inverting-gradients.md``).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

_KINKED = tuple(
    f"{name}Backward"
    for name in (
        "Relu",
        "LeakyRelu",
        "PreluKernel",
        "Threshold",
        "Hardtanh",
        "Hardswish",
        "Hardsigmoid",
        "RreluWithNoise",
    )
)
"""Beginnings of the names that autograd gives to activations whose derivative jumps."""

_SMALL = 48 * 48
"""Pixels of a small image. A larger one's gradient says too little of each pixel: the prior has to say the rest."""

_SHORT, _RELAXED = 100, 0.75
"""Evaluations up to which weights are as they are, and the power with which they fall with more."""

_PIXELS_FROM = 200
"""Evaluations from which pixels are nearer, where networks have kinks and what is known determines them."""

_BESIDE = 0.6
"""Share of total variation that is left beside a learned prior."""


@dataclass(frozen=True)
class SearchConfig:
    """Settings of one search.

    Attributes:
        variation: first weight of total variation.
        signed: whether Adam is given the gradient's signs only.
        learning_rate: first step size, in standard deviations of images, or of coordinates.
        curved: L-BFGS in place of Adam, without total variation.
        learned: whether a learned prior holds images back, too.
        framed: whether coordinates are those of a spectrum in place of pixels.
        unlikely: first weight of the mean square of these coordinates.
    """

    variation: float
    signed: bool
    learning_rate: float
    curved: bool = False
    learned: bool = False
    framed: bool = False
    unlikely: float = 0.0

    @property
    def kind(self) -> tuple[bool, bool, bool, bool]:
        """Searches of one kind are made together."""
        return self.curved, self.signed, self.learned, self.framed

    @property
    def held_back(self) -> SearchConfig:
        """The same with a learned prior, and less total variation beside it; L-BFGS takes neither."""
        return self if self.curved else replace(self, variation=_BESIDE * self.variation, learned=True)


@dataclass(frozen=True)
class TargetInfo:
    """The images of one target, and what is known of them before anything is searched for.

    Attributes:
        count: how many there are.
        apart: whether they were separated, so that each is asked for its own share of the update.
        determined: whether of each as many numbers are known as it has pixels, from what it put into a layer.
        own_images: whether the attacker has images of the same data set.
        misled: whether their update was taught by what nobody outside knows, so that others explain it better.
    """

    count: int
    apart: bool = False
    determined: bool = False
    own_images: bool = False
    misled: bool = False

    def gains_by_frame(self, network: NetworkKind, iterations: int) -> bool:
        """True where coordinates of a spectrum were measured to bring images nearer than pixels do."""
        if network.normed:
            return network.kinked
        if network.kinked and self.determined:
            return self.own_images and iterations < _PIXELS_FROM
        return True


@dataclass(frozen=True)
class NetworkKind:
    """Traits of a network: activations with kinks, batch norms, and images of more than 48 x 48 pixels."""

    kinked: bool
    normed: bool
    large: bool = False

    @classmethod
    def of(cls, model: nn.Module, image_shape: tuple[int, int, int]) -> NetworkKind:
        """Return the kind of a network that takes images of this shape."""
        normed = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules())
        return cls(has_kinks(model, image_shape), normed, image_shape[1] * image_shape[2] > _SMALL)


def has_kinks(model: nn.Module, image_shape: tuple[int, int, int]) -> bool:
    """True where an activation's derivative jumps, as that of ReLU does: the distance of gradients then has cliffs."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    images = torch.zeros(2, *image_shape, device=device).requires_grad_()
    output: Tensor = copy.deepcopy(model).eval()(images)
    seen, left = set(), [output.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        if node.name().startswith(_KINKED):
            return True
        seen.add(node)
        left += [before for before, _ in node.next_functions]
    return False


def choose_configs(network: NetworkKind, target: TargetInfo, iterations: int) -> tuple[SearchConfig, ...]:
    """Return the settings over pixels that are worth a trial in so many evaluations, the likeliest first.

    The more images, the less the gradient tells of each, and the more total variation weighs. L-BFGS gets anywhere with
    single images behind smooth networks: of several it finds noise that explains their gradient as well.
    """
    count, relaxed = target.count, min(1.0, (_SHORT / iterations) ** _RELAXED)
    variation = 2.0 if network.normed else min(0.12 * count, 1.0)
    if network.kinked:
        if target.apart and not network.normed:
            left = max(0.5 if count == 1 else 0.25, relaxed) if target.determined else 1.0
            variation = 0.24 * min(count, 8) * left
        return (SearchConfig(variation, True, 0.2),)
    if target.apart and count > 1:
        variation *= relaxed
    slow = SearchConfig(2.0, True, 0.2) if network.large else SearchConfig(variation, False, 0.3)
    if count == 1 and iterations >= (1600 if network.large else 100):
        return SearchConfig(0.0, False, 0.0, curved=True), slow
    return (slow,)


def choose_framed_configs(network: NetworkKind, target: TargetInfo, iterations: int) -> tuple[SearchConfig, ...]:
    """Return the settings in coordinates of a spectrum that are worth a trial, the likeliest first.

    Where the update misleads, what is likely beforehand is nearer and weighs 300 times as much. Where networks have kinks
    total variation weighs as much as what is unlikely.
    """
    short = _SHORT / iterations
    weight = 0.1 * min(target.count, 3) * min(1.0, short) ** _RELAXED
    if target.misled:
        weight *= 300
    elif network.normed:
        weight = 3.0 * min(1.0, short) ** 0.5
    if network.kinked:
        return (SearchConfig(weight, True, 0.3 / max(1.0, short), framed=True, unlikely=weight),)
    if (target.apart or target.count == 1) and not target.misled:
        weight = 0.1 * min(1.0, short) ** 2
    slow = SearchConfig(0.0, False, 0.3 * min(1.5, 1 / short), framed=True, unlikely=weight)
    if target.misled:
        return (slow,)
    if iterations >= (400 if network.large else 60):
        return SearchConfig(0.0, False, 0.0, curved=True, framed=True), slow
    return (SearchConfig(0.5, True, 0.2, framed=True, unlikely=0.5),) if network.large else (slow,)
