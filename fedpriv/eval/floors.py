"""Guesses at images: what scores without the target's upload. Made of auxiliary images, scored by the attack's rule."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedpriv.attacks.observation import TargetId
from fedpriv.eval.records import SHUFFLED as SHUFFLED
from fedpriv.sources.truth import Truth, psnr_optimal
from fedpriv.util.seeds import generator

Guesser = Callable[[Truth, int, torch.Generator], Tensor]
"""(truth, number of guesses M, rng) -> ``(M, c, h, w)`` in [0, 1]."""


def class_mean_image(truth: Truth, n_guesses: int, rng: torch.Generator) -> Tensor:
    """Return class mean images of the auxiliary images ``(M, c, h, w)``; the mean over all where a class has none.

    One guess: class means mixed by the target's shares of classes. Guess j of M: the mean of the class of member j mod m.
    """
    means, shares = truth.pool.class_means, truth.label_weights()
    if n_guesses == 1:
        mixed = [share * means.get(label, truth.pool.mean) for label, share in shares.items()]
        return _times(torch.stack(mixed).sum(0), 1)
    return torch.cat([_times(means.get(label, truth.pool.mean), 1) for label in _classes(truth, n_guesses)])


def optimal_class_image(truth: Truth, n_guesses: int, rng: torch.Generator) -> Tensor:
    """Return images of the highest mean PSNR over auxiliary images of the target's classes ``(M, c, h, w)``.

    Classes as in :func:`class_mean_image`; a mixture's image is the best over auxiliary images that count by its shares.
    """
    pool, shares = truth.pool, truth.label_weights()
    if n_guesses == 1 and len(shares) > 1:
        known = {label: shares.get(label, 0.0) / int((pool.guess_labels == label).sum()) for label in pool.class_means}
        counted = torch.tensor([known[label] for label in pool.guess_labels.tolist()], dtype=torch.float64)
        return _times(psnr_optimal(pool.guesses, counted) if bool(counted.any()) else pool.optimal, 1)
    return torch.cat([_times(pool.class_optimal.get(label, pool.optimal), 1) for label in _classes(truth, n_guesses)])


FLOORS: dict[str, Guesser] = {
    "mean_colour": lambda truth, number, rng: _times(
        truth.pool.mean.mean(dim=(1, 2))[:, None, None].expand(truth.image_shape), number
    ),
    "mean_image": lambda truth, number, rng: _times(truth.pool.mean, number),
    "optimal_image": lambda truth, number, rng: _times(truth.pool.optimal, number),
    "class_mean_image": class_mean_image,
    "optimal_class_image": optimal_class_image,
    "noise": lambda truth, number, rng: torch.rand((number, *truth.image_shape), generator=rng),
    "mid_grey": lambda truth, number, rng: torch.full((number, *truth.image_shape), 0.5),
}
"""Baselines by name. They are told the classes: that an upload discloses these is an endpoint of its own.

Means are of auxiliary images, ``optimal_image`` that of the highest mean PSNR over them
(:func:`fedpriv.sources.truth.psnr_optimal`); noise is uniform in [0, 1].
"""


def guess(name: str, truth: Truth, target: TargetId, n_guesses: int, seed: int) -> Tensor:
    """Return the baselines ``name`` at one target ``(M, c, h, w)``.

    The draw depends on the seed, the floor and the target alone, so neither order nor company of targets matters.
    """
    rng = generator(seed, "floor", name, target.round, target.client, target.index)
    return FLOORS[name](truth, n_guesses, rng)


def _classes(truth: Truth, n_guesses: int) -> list[int]:
    return [int(truth.labels[j % truth.n_c]) for j in range(n_guesses)]


def _times(image: Tensor, n_guesses: int) -> Tensor:
    return image.float().clamp(0, 1).expand(n_guesses, *image.shape).clone()
