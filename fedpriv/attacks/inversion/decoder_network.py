"""A learned inverse of several extractors at once: an input layer for each, one body for all.

A client's representation z, standardised by the mean and the spread that its extractor has on the attacker's images, becomes

    D_k(z, y) = m + m_y + W_k (z - z_y) + B(relu(V_k z + v_k)),

with m the mean image. Where the class y of the target is told, m_y and z_y are the means of its images and representations
on the attacker's side, beyond those of all; else they are zero. The readouts W_k come from ridge regression in closed form,
the penalty of each chosen on held-out images; the entries V_k, v_k and the body B, two linear layers that all extractors
share, are trained by Adam on what the readouts leave over. Of a mean of representations the readout gives the mean of the
images, which is what is asked for.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.attacks.search.fit import Adam
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator, global_seed

_CHECK_EVERY = 20
"""Steps between two looks at the held-out pairs."""

_WIDEST, _ITERATIONS = 1024, 2
"""Numbers of a representation that a decoder reads, and products by which the subspace of a wider one is found."""

_BESIDE = 2.0
"""Images of no class in particular that the mean of a class is taken with: of few, it stays near that of all."""

_PENALTIES = tuple(10.0**power for power in (-4, -3, -2, -1, 0, 1))
"""Ridge penalties that are tried, in units of the mean eigenvalue of the second moments."""


@dataclass(frozen=True)
class DecoderTraining:
    """The training of a decoder: Adam on the mean squared error of pixels.

    Attributes:
        iterations: most steps.
        learning_rate: Adam's step size.
        batch_size: pairs a step and extractor.
        width: outputs of the entries; the body is twice as wide.
        patience: steps without a better held-out error after which training ends.
    """

    iterations: int
    learning_rate: float
    batch_size: int
    width: int
    patience: int = 60


@dataclass(frozen=True)
class Pairs:
    """Representations and the images that they should become.

    Attributes:
        features: ``(n, d_k)`` for each of K extractors; widths may differ.
        images: ``(n, c, h, w)`` in [0, 1].
        labels: ``(n,)`` int64 classes of the images, where a decoder is told those of its targets; else None.
    """

    features: Sequence[Tensor]
    images: Tensor
    labels: Tensor | None = None

    def of(self, rows: Tensor) -> Pairs:
        """Return those of some rows (int64 positions)."""
        labels = None if self.labels is None else self.labels[rows]
        return Pairs([part[rows] for part in self.features], self.images[rows], labels)


class _Network(nn.Module):
    """Entries, one an extractor, and the body behind them; starts as zero everywhere."""

    def __init__(self, extractors: int, width_in: int, width: int, pixels: int) -> None:
        super().__init__()
        self.entry = nn.Parameter(torch.randn(extractors, width_in, width) / math.sqrt(width_in))
        self.shift = nn.Parameter(torch.zeros(extractors, 1, width))
        self.body = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, pixels))
        for value in self.body[2].parameters():
            nn.init.zeros_(value)

    def forward(self, scaled: Tensor, which: slice) -> Tensor:
        """Return the correction ``(K, n, pixels)`` for representations ``(K, n, d)`` of the extractors ``which``."""
        correction: Tensor = self.body(torch.baddbmm(self.shift[which], scaled, self.entry[which]).relu())
        return correction


@dataclass(frozen=True)
class ClassMeans:
    """Means by class beyond those of all; the last row, of no class, is zero.

    Attributes:
        images: ``(C + 1, pixels)``.
        codes: ``(K, C + 1, m)``.
    """

    images: Tensor
    codes: Tensor

    @classmethod
    def of(cls, labels: Tensor, wanted: Tensor, known: Tensor) -> ClassMeans:
        """Return the means of images ``(n, pixels)`` and codes ``(K, n, m)``, each class with a few of no class."""
        member = functional.one_hot(labels).to(wanted.dtype)
        shares = (member / (member.sum(0) + _BESIDE)).T
        return cls(functional.pad(shares @ wanted, (0, 0, 0, 1)), functional.pad(shares @ known, (0, 0, 0, 1)))

    def rows(self, labels: Tensor) -> Tensor:
        """Return the row of each class ``(n,)``; the last for -1 and for classes of which there were no images."""
        last = len(self.images) - 1
        return torch.where((labels >= 0) & (labels < last), labels, last)


@dataclass(frozen=True)
class Decoder:
    """A trained decoder of K extractors; those of less width are filled up with zeros."""

    network: _Network
    readout: Tensor  # (K, m, pixels) of codes
    mean_image: Tensor  # (pixels,)
    mean: Tensor  # (K, 1, d) of the training representations
    spread: Tensor  # (K, 1, d)
    basis: Tensor | None  # (K, d, m) leading directions of wide representations; None where codes are all d numbers
    classes: ClassMeans | None  # where it learned with classes
    image_shape: tuple[int, int, int]
    held_out_error: float  # mean squared error on [0, 1]
    settled: bool  # whether training ended by its own rule before the steps were used up
    steps: int

    def __call__(self, features: Tensor, extractor: int, labels: Tensor | None = None) -> Tensor:
        """Return the images ``(n, c, h, w)`` in [0, 1] of representations ``(n, d_k)`` by the k-th extractor.

        ``labels`` ``(n,)`` are known classes, -1 for none.
        """
        which, begin = slice(extractor, extractor + 1), self.mean_image
        with torch.no_grad():
            code = (_filled(features[None], self.mean.shape[2]) - self.mean[which]) / self.spread[which]
            code = code if self.basis is None else code @ self.basis[which]
            linear = code
            if self.classes is not None and labels is not None:
                rows = self.classes.rows(labels.to(begin.device))
                begin, linear = begin + self.classes.images[rows], code - self.classes.codes[which, rows]
            flat = begin + linear @ self.readout[which] + self.network(code, which)
        images: Tensor = flat[0].clamp(0, 1).reshape(-1, *self.image_shape)
        return images


def train_decoder(
    inside: Pairs, outside: Pairs, training: DecoderTraining, seed: int, tick: Callable[[int], None] | None = None
) -> Decoder:
    """Train one decoder for several extractors; penalties and the moment to stop are chosen on the pairs ``outside``."""
    width = max(part.shape[1] for part in inside.features)
    known, kept = (torch.stack([_filled(part, width) for part in pairs.features]) for pairs in (inside, outside))
    mean, spread = known.mean(1, keepdim=True), known.std(1, keepdim=True)
    # A representation may be dead in some coordinates on all of the attacker's images, but alive on the target.
    spread = spread.clamp_min(0.1 * spread.mean(2, keepdim=True).clamp_min(1e-6))
    known, kept = (known - mean) / spread, (kept - mean) / spread
    basis = _leading(known, generator(seed, "leading")) if width > _WIDEST else None
    if basis is not None:
        known, kept, width = known @ basis, kept @ basis, basis.shape[2]
    mean_image = inside.images.flatten(1).mean(0)
    wanted, unseen = (pairs.images.flatten(1) - mean_image for pairs in (inside, outside))
    classes = None if inside.labels is None else ClassMeans.of(inside.labels, wanted, known)
    (apart, wanted), (apart_held, unseen) = (
        _beyond(classes, current.labels, codes, images)
        for current, codes, images in ((inside, known, wanted), (outside, kept, unseen))
    )
    readout = torch.stack([_ridge(z, wanted, h, unseen) for z, h in zip(apart, apart_held, strict=True)])
    left, left_unseen = wanted - apart @ readout, unseen - apart_held @ readout
    with global_seed(derive_seed(seed, "decoder weights")):
        network = _Network(len(known), width, training.width, wanted.shape[1]).to(known.device)
    lowest, settled, steps = _fit(network, known, left, kept, left_unseen, training, generator(seed, "pairs"), tick)
    channels, height, width_ = inside.images.shape[1:]
    shape = (int(channels), int(height), int(width_))
    result = network.requires_grad_(False)
    return Decoder(result, readout, mean_image, mean, spread, basis, classes, shape, lowest, settled, steps)


def _beyond(classes: ClassMeans | None, labels: Tensor | None, codes: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes ``(K, n, m)`` and images ``(n, pixels)`` beyond the means of their classes, where these are known."""
    if classes is None or labels is None:
        return codes, images
    rows = classes.rows(labels)
    return codes - classes.codes[:, rows], images - classes.images[rows]


def _leading(known: Tensor, rng: torch.Generator) -> Tensor:
    """Return orthogonal directions ``(K, d, m)`` in which representations ``(K, n, d)`` vary most, of one length.

    By subspace iteration. Their length makes the mean variance along them one at most.
    """
    several, rows, width = known.shape
    number = min(_WIDEST, rows)
    result = torch.randn(several, width, number, generator=rng).to(known)
    for _ in range(_ITERATIONS):
        result = torch.linalg.qr(known.mT @ (known @ result)).Q
    directions: Tensor = result * math.sqrt(number / width)
    return directions


def _fit(
    network: _Network,
    known: Tensor,
    left: Tensor,
    values: Tensor,
    left_unseen: Tensor,
    training: DecoderTraining,
    rng: torch.Generator,
    tick: Callable[[int], None] | None,
) -> tuple[float, bool, int]:
    """Train the network on what the readouts leave over; return the least held-out error, whether it settled, and steps."""
    optimiser = Adam(network.parameters(), training.learning_rate, weight_decay=1e-2)
    everyone, rows = slice(None), torch.arange(len(known), device=known.device)[:, None]
    best, lowest, best_at, step = copy.deepcopy(network.state_dict()), float(left_unseen.square().mean()), 0, 0
    while step < training.iterations and step - best_at < training.patience:
        drawn = torch.randint(known.shape[1], (len(known), training.batch_size), generator=rng).to(known.device)
        loss = functional.mse_loss(network(known[rows, drawn], everyone), left[rows, drawn])
        optimiser.descend(loss)
        step += 1
        if step % _CHECK_EVERY == 0 or step == training.iterations:
            with torch.no_grad():
                error = float(functional.mse_loss(network(values, everyone), left_unseen))
            if error < lowest:
                best, lowest, best_at = copy.deepcopy(network.state_dict()), error, step
            if tick is not None:
                tick(step)
    network.load_state_dict(best)
    return lowest, step < training.iterations, step


def _ridge(known: Tensor, wanted: Tensor, kept: Tensor, unseen: Tensor) -> Tensor:
    """Return the readout ``(d, pixels)`` of the penalty that does best on the held-out pairs."""
    values, vectors = _eigenvectors(known.T @ known)
    values, moments = values.clamp_min(0)[:, None], vectors.T @ (known.T @ wanted)
    scale = values.mean().clamp_min(1e-12)
    results = [vectors @ (moments / (values + penalty * scale)) for penalty in _PENALTIES]
    errors = [float((kept @ item - unseen).square().mean()) for item in results]
    best: Tensor = results[errors.index(min(errors))]
    return best


def _eigenvectors(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors, in double precision where equal ones do not come out in single.

    Raises:
        UserError: when the representations are not finite.
    """
    if not bool(gram.isfinite().all()):
        raise UserError(
            "a decoder got representations of the attacker's own images that are not finite; expected numbers"
        )
    try:
        values, vectors = torch.linalg.eigh(gram)
    except RuntimeError:  # of which its LinAlgError is one
        values = torch.full_like(gram[0], torch.nan)
    if not bool(values.isfinite().all()):  # by some numbers of threads they are not, and no error tells
        values, vectors = (part.to(gram.dtype) for part in torch.linalg.eigh(gram.double()))
    return values, vectors


def _filled(features: Tensor, width: int) -> Tensor:
    return functional.pad(features, (0, width - features.shape[-1]))
