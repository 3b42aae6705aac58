"""Blind guesses: what scores without the upload. Each is made of non-members alone, and scored by the attack's rule."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedpriv.attacks.observation import TargetId
from fedpriv.evidence.truth import Truth
from fedpriv.util.seeds import generator

PERMUTED = "permuted"


def mean_colour(truth: Truth, n_guesses: int, rng: torch.Generator) -> Tensor:
    """Return the non-members' mean of each channel as flat images ``(M, c, h, w)``."""
    colour = truth.pool_mean.mean(dim=(1, 2)).float().clamp(0, 1)
    return colour[None, :, None, None].expand(n_guesses, *truth.image_shape).clone()


def mean_image(truth: Truth, n_guesses: int, rng: torch.Generator) -> Tensor:
    """Return the non-members' mean image, M times."""
    return truth.pool_mean.float().clamp(0, 1).expand(n_guesses, *truth.image_shape).clone()


def class_mean_image(truth: Truth, n_guesses: int, rng: torch.Generator) -> Tensor:
    """Return class mean images of the non-members ``(M, c, h, w)``.

    One guess: the class means mixed by the target's shares of classes (one class for a prototype, the label encoding
    for an entangled upload). M guesses: guess j is the mean of the class of member j mod m. A class without non-members
    is stood in for by the mean over all.
    """
    means = {label: _class_mean(truth, label) for label in truth.label_weights()}
    if n_guesses == 1:
        mixture = sum(
            (weight * means[label].double() for label, weight in truth.label_weights().items()), torch.zeros(())
        )
        return torch.as_tensor(mixture).float().clamp(0, 1).reshape(1, *truth.image_shape)
    return torch.stack([means[int(truth.labels[j % truth.n_c])] for j in range(n_guesses)])


def random_same_class(truth: Truth, n_guesses: int, rng: torch.Generator) -> Tensor:
    """Return M non-members of the target's classes, distinct while they last ``(M, c, h, w)``.

    The class of guess j is that of member j mod m; for a single guess at several members it is drawn by their weights.
    """
    if n_guesses == 1:
        first = int(torch.multinomial(truth.weights.double(), 1, generator=rng))
        wanted = [int(truth.labels[first])]
    else:
        wanted = [int(truth.labels[j % truth.n_c]) for j in range(n_guesses)]
    order = torch.randperm(len(truth.nonmembers), generator=rng)
    queues: dict[int, list[int]] = {}
    for label in dict.fromkeys(wanted):
        of_class = order[truth.nonmember_labels[order] == label]
        queues[label] = (of_class if len(of_class) else order).tolist()
    used = dict.fromkeys(queues, 0)
    chosen = []
    for label in wanted:
        chosen.append(queues[label][used[label] % len(queues[label])])
        used[label] += 1
    return truth.nonmembers[torch.tensor(chosen)].clone()


def noise(truth: Truth, n_guesses: int, rng: torch.Generator) -> Tensor:
    """Return M images of uniform noise in [0, 1]."""
    return torch.rand((n_guesses, *truth.image_shape), generator=rng)


def mid_grey(truth: Truth, n_guesses: int, rng: torch.Generator) -> Tensor:
    """Return M flat images of value 0.5."""
    return torch.full((n_guesses, *truth.image_shape), 0.5)


FLOORS: dict[str, Callable[[Truth, int, torch.Generator], Tensor]] = {
    "mean_colour": mean_colour,
    "mean_image": mean_image,
    "class_mean_image": class_mean_image,
    "random_same_class": random_same_class,
    "noise": noise,
    "mid_grey": mid_grey,
}
"""Blind guesses by name: (truth, number of guesses, rng) -> ``(M, c, h, w)`` in [0, 1]."""

LABELS = {
    "mean_colour": "mean colour",
    "mean_image": "mean image",
    "class_mean_image": "class mean image",
    "random_same_class": "random image of the class",
    "noise": "uniform noise",
    "mid_grey": "mid-grey",
    "random_image": "random image of any class",
    PERMUTED: "permuted uploads",
}
"""Floors as a reader sees them."""

FLOOR, CONTROL = "floor (best blind guess)", "permuted uploads (negative control)"
"""What tables call the strongest guess made without the upload, and the attack itself on other clients' uploads."""


def floor_words(name: str) -> str:
    """Return what the floor of an attack is: a blind guess, unless its negative control scores higher than all of them.

    >>> floor_words("mean_image")
    'the floor (best blind guess: mean image)'
    """
    return "the floor (" + (CONTROL if name == PERMUTED else f"best blind guess: {LABELS.get(name, name)}") + ")"


def guess(name: str, truth: Truth, target: TargetId, n_guesses: int, seed: int) -> Tensor:
    """Return the blind guesses ``name`` at one target ``(M, c, h, w)``.

    The draw depends on the seed, the floor and the target alone, so neither order nor company of targets matters.
    """
    rng = generator(seed, "floor", name, target.round, target.client, target.index)
    return FLOORS[name](truth, n_guesses, rng)


def _class_mean(truth: Truth, label: int) -> Tensor:
    of_class = truth.nonmembers[truth.nonmember_labels == label]
    return (of_class.mean(dim=0, dtype=torch.float64) if len(of_class) else truth.pool_mean).float().clamp(0, 1)
