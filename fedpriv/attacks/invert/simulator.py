"""Simulators: extractors of the attacker's own that answer as a private one was seen to answer.

An extractor g stays with its client, but representations z_i = g(x_i) of private images, with their classes y_i, were
uploaded. A simulator h is trained so that on the attacker's own images a, of classes b, the pairs (h(a), b) are distributed
as the pairs (z, y) are, and the known head f classifies both alike:

    CE(f(h(a)), b) + mu MMD^2({(h(a), b)}, {(z, y)})

with a kernel over pairs, ``k = (1 + w [y = y']) / (1 + w) mean_s exp(-||z - z'||^2 / (s m))``: m is the mean squared
distance of uploaded representations, which are scaled to unit spread, s = 1/4, 1/2, 1, 2, 4. No pair of an image and its
representation is known. The first term is that of SDAR (Zhu et al. 2025, the simulator's loss), the second, without
classes, that of FORA (Xu et al. 2024, MK-MMD). Neither's discriminator is here: it took away from what came back through
vectors (``docs/attacks/simulator.md``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.attacks.optim.adam import Adam
from fedpriv.datasets.types import Samples
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator, global_seed

LEAST_ROWS = 8
"""Uploaded representations below which a distribution is not worth fitting."""

_SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Widths of the kernels, in the mean squared distance of uploaded representations."""

_SAME_CLASS = 3.0
"""How much more two vectors of one class weigh in the kernel."""

_REACH = 3.0
"""Spreads of the uploaded representations that a unit of a simulator's last layer is worth: how fast it learns."""


@dataclass(frozen=True)
class Answers:
    """Uploads by a private extractor, and the head that classifies them.

    Attributes:
        features: ``(n, d)``, or maps ``(n, c, h, w)``, of n private images.
        labels: ``(n,)`` int64, their classes; None where these are not known.
        head: from features to logits ``(n, C)``, held fixed; None where none was sent.
    """

    features: Tensor
    labels: Tensor | None = None
    head: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class SimulatorTraining:
    """The training of a simulator, by Adam.

    Attributes:
        steps: steps.
        batch_size: uploaded representations, and images of the attacker's own, a step.
        learning_rate: step size.
        matching: mu, the weight of the discrepancy of the distributions.
    """

    steps: int = 600
    batch_size: int = 128
    learning_rate: float = 1e-3
    matching: float = 100.0


def discrepancy(ours: Tensor, theirs: Tensor, our_labels: Tensor | None, their_labels: Tensor | None) -> Tensor:
    """Return the squared maximum mean discrepancy of samples ``(n, d)`` and ``(m, d)``, with classes or without.

    The biased estimate, which is never below zero; gradients go through the first sample.
    """
    both = torch.cat([ours, theirs])
    squares = both.square().sum(1)
    apart = (squares[:, None] + squares - 2 * both @ both.T).clamp_min(0)
    number = len(ours)
    unit = apart[number:, number:].detach().mean().clamp_min(1e-12)
    kernel = torch.stack([torch.exp(-apart / (scale * unit)) for scale in _SCALES]).mean(0)
    if our_labels is not None and their_labels is not None:
        labels = torch.cat([our_labels, their_labels])
        kernel = kernel * (1 + _SAME_CLASS * (labels[:, None] == labels)) / (1 + _SAME_CLASS)
    return kernel[:number, :number].mean() + kernel[number:, number:].mean() - 2 * kernel[:number, number:].mean()


class SimulatorNetwork(nn.Module):
    """Two convolutions that halve the sides, and a linear layer from which deviations of representations come.

    Not the client's architecture, which is not known; only the width, the scale and the sign of its output are. A network
    that begins near the centre of what was uploaded is drawn into place; one that begins far from it is not.

    Args:
        image_shape: (channels, height, width).
        like: ``(n, d)`` uploaded representations. Where none is negative, a ReLU ends the network.
        pooled: whether maxima over 2 x 2 positions halve the sides, or strides: simulators of both kinds err differently.
    """

    def __init__(self, image_shape: tuple[int, int, int], like: Tensor, *, pooled: bool) -> None:
        super().__init__()
        channels, height, side = image_shape
        layers: list[nn.Module] = []
        for before, after in ((channels, 32), (32, 64)):
            layers += [nn.Conv2d(before, after, 3, stride=1 if pooled else 2, padding=1), nn.ReLU()]
            layers += [nn.MaxPool2d(2, ceil_mode=True)] if pooled else []
        size = 64 * math.ceil(math.ceil(height / 2) / 2) * math.ceil(math.ceil(side / 2) / 2)
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(size, like.shape[1]))
        self.centre, self.unit = nn.Buffer(like.mean(0)), nn.Buffer(like.std(0).mean())
        self.rectified = bool((like >= 0).all())

    def forward(self, images: Tensor) -> Tensor:
        """Return representations ``(n, d)`` of images ``(n, c, h, w)``."""
        found: Tensor = self.centre + _REACH * self.unit * self.layers(images)
        return found.relu() if self.rectified else found


def known_rows(answers: Answers, own: Samples) -> Tensor:
    """Return the positions of uploaded rows that can be matched: of classes that the attacker has images of.

    Raises:
        UserError: when there are fewer than eight.
    """
    device = own.images.device
    known = torch.arange(len(answers.features), device=device)
    if answers.labels is not None:
        known = known[torch.isin(answers.labels.to(device), own.labels.to(device))]
    if len(known) < LEAST_ROWS:
        raise UserError(
            f"a simulator of an extractor got {len(known)} uploaded representations of classes that the attacker has images "
            f"of; expected at least {LEAST_ROWS}"
        )
    return known


def simulator_network(answers: Answers, own: Samples, seed: int, number: int) -> SimulatorNetwork:
    """Return the untrained simulator of a number, on the device of the attacker's images; pooled where it is odd.

    Raises:
        UserError: as :func:`known_rows`.
    """
    known_rows(answers, own)
    channels, height, side = (int(size) for size in own.images.shape[1:])
    with global_seed(derive_seed(seed, "simulator", number)):
        network = SimulatorNetwork((channels, height, side), answers.features.cpu(), pooled=number % 2 == 1)
    return network.to(own.images.device)


def train_simulator(
    network: nn.Module,
    answers: Answers,
    own: Samples,
    training: SimulatorTraining,
    seed: int,
    tick: Callable[[int], None] | None = None,
) -> None:
    """Train a simulator in place, and leave it in evaluation mode without gradients for its weights.

    Where classes are known, images of the attacker's own are drawn in the proportions in which the uploaded rows have them,
    and rows of classes of which it has no image are left out.

    Args:
        network: from images ``(n, c, h, w)`` in [0, 1] to features of the shape of the uploaded ones.
        answers: what was seen.
        own: the attacker's images ``(p, c, h, w)`` in [0, 1] with labels.
        training: how.
        seed: of the order of images and rows.
        tick: called with the steps done.

    Raises:
        UserError: when fewer than eight uploaded rows are of classes that the attacker has images of.
    """
    device = own.images.device
    rows = answers.features.to(device)
    labels = None if answers.labels is None else answers.labels.to(device)
    known = known_rows(answers, own)
    draw = _Draws(
        len(known), own.labels.to(device), None if labels is None else labels[known], training.batch_size, seed
    )
    flat = rows[known].flatten(1)
    centre, spread = flat.mean(0), flat.std(0)
    spread = spread.clamp_min(0.05 * float(flat.std().clamp_min(1e-12)))
    flat, wanted = (flat - centre) / spread, None if labels is None else labels[known]
    network.train()
    optimiser = Adam(network.parameters(), training.learning_rate)
    for step in range(training.steps):
        theirs, ours = draw()
        features, classes = network(own.images[ours]), own.labels.to(device)[ours]
        apart = discrepancy(
            (features.flatten(1) - centre) / spread, flat[theirs], classes, None if wanted is None else wanted[theirs]
        )
        loss = training.matching * apart
        if answers.head is not None:
            loss = loss + functional.cross_entropy(answers.head(features), classes)
        optimiser.forget_gradients()
        loss.backward()
        optimiser.step()
        if tick is not None:
            tick(step + 1)
    network.eval().requires_grad_(False)


class _Draws:
    """Draws of uploaded rows and of the attacker's images, in equal proportions of classes where those are known."""

    def __init__(self, number: int, own: Tensor, labels: Tensor | None, batch_size: int, seed: int) -> None:
        self._rng = generator(seed, "simulator draws")
        self._number = number
        self._batch_size, self._labels, self._own = batch_size, labels, own
        self._places = {} if labels is None else {int(c): (own == c).nonzero().flatten() for c in labels.unique()}

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Return positions of uploaded rows, none twice, and of images."""
        device = self._own.device
        if self._labels is None:
            theirs = torch.randperm(self._number, generator=self._rng)[: self._batch_size]
            ours = torch.randint(len(self._own), (self._batch_size,), generator=self._rng)
            return theirs.to(device), ours.to(device)
        theirs = torch.randperm(self._number, generator=self._rng)[: self._batch_size].to(device)
        like = torch.randint(self._number, (self._batch_size,), generator=self._rng).to(device)
        at = torch.rand(self._batch_size, generator=self._rng).to(device)
        classes = self._labels[like]
        ours = torch.empty_like(like)
        for label, places in self._places.items():
            mine = classes == label
            ours[mine] = places[(at[mine] * len(places)).long().clamp_max(len(places) - 1)]
        return theirs, ours
