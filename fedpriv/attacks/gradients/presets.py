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
    for name in [
        "Relu",
        "LeakyRelu",
        "PreluKernel",
        "Threshold",
        "Hardtanh",
        "Hardswish",
        "Hardsigmoid",
        "RreluWithNoise",
    ]
)
"""Beginnings of the names that autograd gives to activations whose derivative jumps."""

_NORMS = torch.nn.modules.batchnorm._BatchNorm

# In pixels: first weights of total variation.

_VARIATION, _MOST_VARIATION = 0.12, 1.0
"""An image, and the most. The more images, the less the gradient tells of each."""

_APART_VARIATION, _MOST_APART = 0.24, 8
"""The same where images were separated, and of how many of them it grows."""

_LEAST_OF_ONE, _LEAST_OF_SEVERAL = 0.5, 0.25
"""Share of the weight that is left at least where networks have kinks."""

_NORMED_VARIATION, _LARGE = 2.0, 2.0
"""Whatever the number of images: behind batch norms, and of large images behind smooth networks."""

_BESIDE = 0.6
"""Share that is left beside a learned prior."""

_SHORT, _RELAXED, _SMOOTH_RELAXED = 100, 0.75, 2.0
"""Evaluations up to which weights are as they are; power with which they fall with more, and in a frame behind smooth
networks whose images were separated."""

# In a frame: first weights of how unlikely an image is.

_UNLIKELY, _MOST_UNLIKELY = 0.1, 3
"""An image, and of how many images it grows. Where networks have kinks total variation weighs as much."""

_MISLED = 300.0
"""How much more it weighs where the update misleads: then what is likely beforehand is nearer."""

_NORMED_UNLIKELY, _NORMED_RELAXED = 3.0, 0.5
"""Behind batch norms, whatever the number of images, and the power with which it falls with the budget."""

_HELD_LARGE, _LARGE_RATE = 0.5, 0.2
"""Of large images behind smooth networks where L-BFGS gets nowhere yet, and step size with signs."""

_FRAME_RATE, _LONG_RATE = 0.3, 1.5
"""Step size in a frame, in proportion smaller in searches below :data:`_SHORT`, and how much larger it may be in longer ones
of smooth networks."""

# Which search.

_PIXELS_FROM = 200
"""Evaluations from which pixels are nearer, where networks have kinks and what is known determines them."""

_LEAST_CURVED, _LEAST_CURVED_LARGE, _CURVED_FROM, _CURVED_FROM_LARGE = 60, 400, 100, 1600
"""Evaluations from which L-BFGS gets anywhere in a frame, and in pixels, of small and large images. Of several images it
finds noise that explains their gradient as well."""

_SMALL = 48 * 48
"""Pixels of a small image. A larger one's gradient says too little of each pixel: the prior has to say the rest."""


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
        """True where coordinates of a spectrum were measured to bring images nearer than pixels do.

        Where networks have kinks and what is known determines images they serve short searches, and only if the spectrum is
        that of the attacker's own images. Behind batch norms it was measured with kinks alone.
        """
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
        normed = any(isinstance(layer, _NORMS) for layer in model.modules())
        return cls(has_kinks(model, image_shape), normed, image_shape[1] * image_shape[2] > _SMALL)


def has_kinks(model: nn.Module, image_shape: tuple[int, int, int]) -> bool:
    """True where an activation's derivative jumps, as that of ReLU does: the distance of gradients then has cliffs."""
    position = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    images = torch.zeros(2, *image_shape, device=position).requires_grad_()
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
    """Return the settings that are worth a trial in so many evaluations of the gradient, the likeliest first."""
    count, apart = target.count, target.apart
    relaxed = min(1.0, (_SHORT / iterations) ** _RELAXED)
    variation = _NORMED_VARIATION if network.normed else min(_VARIATION * count, _MOST_VARIATION)
    if network.kinked:
        if apart and not network.normed:
            left = max(_LEAST_OF_ONE if count == 1 else _LEAST_OF_SEVERAL, relaxed) if target.determined else 1.0
            variation = _APART_VARIATION * min(count, _MOST_APART) * left
        return (SearchConfig(variation, True, 0.2),)
    if apart and count > 1:
        variation *= relaxed
    slow = SearchConfig(_LARGE, True, 0.2) if network.large else SearchConfig(variation, False, 0.3)
    alone = count == 1 and iterations >= (_CURVED_FROM_LARGE if network.large else _CURVED_FROM)
    return (SearchConfig(0.0, False, 0.0, curved=True), slow) if alone else (slow,)


def choose_framed_configs(network: NetworkKind, target: TargetInfo, iterations: int) -> tuple[SearchConfig, ...]:
    """Return the settings in coordinates of a spectrum that are worth a trial, the likeliest first."""
    short = _SHORT / iterations
    weight = _UNLIKELY * min(target.count, _MOST_UNLIKELY) * min(1.0, short) ** _RELAXED
    if target.misled:
        weight *= _MISLED
    elif network.normed:
        weight = _NORMED_UNLIKELY * min(1.0, short) ** _NORMED_RELAXED
    if network.kinked:
        return (SearchConfig(weight, True, _FRAME_RATE / max(1.0, short), framed=True, unlikely=weight),)
    if (target.apart or target.count == 1) and not target.misled:
        weight = _UNLIKELY * min(1.0, short) ** _SMOOTH_RELAXED
    slow = SearchConfig(0.0, False, _FRAME_RATE * min(_LONG_RATE, 1 / short), framed=True, unlikely=weight)
    curved = SearchConfig(0.0, False, 0.0, curved=True, framed=True)
    alone = not target.misled and iterations >= (_LEAST_CURVED_LARGE if network.large else _LEAST_CURVED)
    if network.large and not target.misled and not alone:
        slow = SearchConfig(_HELD_LARGE, True, _LARGE_RATE, framed=True, unlikely=_HELD_LARGE)
    return (curved, slow) if alone else (slow,)
