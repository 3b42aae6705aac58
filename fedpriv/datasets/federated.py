"""From a data set to a federation: who trains on what, who tests on what, and what is public."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from fedpriv.datasets import PARTITIONS
from fedpriv.datasets.partition import (
    Random,
    dirichlet_partition,
    iid_partition,
    least_samples,
    long_tail_partition,
    pathological_partition,
    random_classes_partition,
    split_train_test,
)
from fedpriv.datasets.types import ClientData, Dataset, FederatedData, Samples, Strangers, as_unit
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed

MAX_LEGACY_SEED = 2**32 - 1

MOST_OWN = 1000
"""Images that an attacker owns at most, the same number of each class as far as it goes."""


@dataclass(frozen=True)
class PartitionOptions:
    """A division of samples among clients.

    Attributes:
        name: a key of ``fedpriv.datasets.PARTITIONS``: dirichlet, pathological, iid or long_tail.
        alpha: Dirichlet concentration, above 0 (dirichlet, long_tail).
        classes_per_client: classes that each client holds (pathological).
        imbalance: size of the first class over size of the last, at least 1 (long_tail).
        train_fraction: share of every client's samples that it trains on, above 0 and below 1.
        balanced: equal parts of a class instead of random ones (pathological).
        assignment: of classes to clients (pathological): ``in_order`` as PFLlib does, in disjoint groups of clients, or at
            ``random``, for any number of classes and clients, so that clients overlap partly.
        least_per_client: least number of samples of a client, training and test together; None for the reference
            library's, :func:`fedpriv.datasets.partition.least_samples`, which is 40 of CIFAR-10's.
        halved_clients: share of clients, in [0, 1], that lose half of their training samples (FedHeNN, figure 3).
    """

    name: str = "dirichlet"
    alpha: float = 0.1
    classes_per_client: int = 2
    imbalance: float = 100.0
    train_fraction: float = 0.75
    balanced: bool = False
    assignment: Literal["in_order", "random"] = "in_order"
    least_per_client: Annotated[int, Ge(1)] | None = None
    halved_clients: Annotated[float, Ge(0), Le(1)] = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.train_fraction < 1:
            raise UserError(
                f"train fraction is {self.train_fraction}: it must be above 0 and below 1, for example 0.75",
                keys=("train_fraction",),
            )


def drawn_by_class(options: PartitionOptions) -> bool:
    """Return True for a division that shuffles the images of every class: chance alone decides which ones a client holds.

    ``pathological`` in order gives the images of a class as they are stored.
    """
    return options.name in ("dirichlet", "iid", "long_tail") or (
        options.name == "pathological" and options.assignment == "random"
    )


def by_dirichlet(labels: np.ndarray, n_clients: int, options: PartitionOptions, rng: Random) -> list[np.ndarray]:
    """Divide with :func:`fedpriv.datasets.partition.dirichlet_partition`."""
    least = _least(labels, n_clients, options)
    return dirichlet_partition(labels, n_clients, options.alpha, rng, least)


def by_pathology(labels: np.ndarray, n_clients: int, options: PartitionOptions, rng: Random) -> list[np.ndarray]:
    """Divide with :func:`fedpriv.datasets.partition.pathological_partition`, or with classes assigned at random.

    The latter is :func:`fedpriv.datasets.partition.random_classes_partition`.
    """
    if options.assignment == "random":
        return random_classes_partition(labels, n_clients, options.classes_per_client, rng, options.balanced)
    least = _least(labels, n_clients, options)
    return pathological_partition(labels, n_clients, options.classes_per_client, rng, options.balanced, least)


def by_chance(labels: np.ndarray, n_clients: int, options: PartitionOptions, rng: Random) -> list[np.ndarray]:
    """Divide with :func:`fedpriv.datasets.partition.iid_partition`."""
    return iid_partition(labels, n_clients, rng)


def by_long_tail(labels: np.ndarray, n_clients: int, options: PartitionOptions, rng: Random) -> list[np.ndarray]:
    """Divide with :func:`fedpriv.datasets.partition.long_tail_partition`."""
    return long_tail_partition(
        *(labels, n_clients, options.imbalance, options.alpha, rng, options.train_fraction, options.least_per_client)
    )


def _least(labels: np.ndarray, n_clients: int, options: PartitionOptions) -> int | None:
    """Return the least number of samples of a client; None for a number of clients that is refused anyway."""
    if options.least_per_client is not None:
        return options.least_per_client
    return least_samples(len(labels), n_clients, options.train_fraction) if n_clients > 0 else None


def federate(dataset: Dataset, options: PartitionOptions, n_clients: int, seed: int) -> FederatedData:
    """Divide a data set among clients and every client's share into training and test part.

    One legacy numpy generator seeded with ``seed`` makes the division and then the splits, so that divisions equal
    those of PFLlib with the same seed.
    """
    if not 0 <= seed <= MAX_LEGACY_SEED:
        raise UserError(f"seed is {seed}: it must be 0..{MAX_LEGACY_SEED}")
    divide = PARTITIONS.load(options.name)
    rng = np.random.RandomState(seed)
    shares = divide(dataset.samples.labels.numpy(), n_clients, options, rng)
    _refuse_less(shares, options)
    clients = []
    for number, (train, test) in enumerate(split_train_test(shares, options.train_fraction, rng)):
        if len(train) == 0 or len(test) == 0:
            raise UserError(
                f"client {number} would hold {len(train)} training and {len(test)} test images, at least 1 of each is "
                f"needed; use fewer clients, more images per class, another {argument('train_fraction')} or a larger "
                f"{argument('least_per_client')}",
                keys=("clients",),
            )
        clients.append(ClientData(train, test))
    return FederatedData(dataset, halved(clients, options.halved_clients, seed))


def _refuse_less(shares: list[np.ndarray], options: PartitionOptions) -> None:
    """Check that a division without draws of its own to repeat keeps a least size that was asked for."""
    smallest = min(map(len, shares))
    if options.least_per_client is not None and smallest < options.least_per_client:
        raise UserError(
            f"the least client of this {options.name} division holds {smallest} samples, fewer than "
            f"{argument('least_per_client', options.least_per_client)}; use {argument('least_per_client', smallest)} or "
            "fewer clients",
            keys=("least_per_client",),
        )


def halved(clients: list[ClientData], share: float, seed: int) -> tuple[ClientData, ...]:
    """Take half of their training samples from a share of the clients.

    FedHeNN's figure 3 halves the data "on a fraction of clients", drawn at random, and trains on what is left. It leaves
    unsaid which half, and whether test samples go too: here a random half of the training samples stays, half rounded up,
    and every test sample does, so that accuracies over shares are of the same images. A larger share halves the clients of
    a smaller one and others.

    Args:
        clients: everybody's share of the data.
        share: of the clients, in [0, 1]; ``round(share * clients)`` of them.
        seed: any integer; the choice is independent of the division with the same seed.
    """
    rng = np.random.default_rng(derive_seed("halved clients", seed))
    chosen = rng.permutation(len(clients))[: round(share * len(clients))]
    found = list(clients)
    for number in chosen.tolist():
        train = clients[number].train_index
        kept = np.sort(rng.permutation(len(train))[: math.ceil(len(train) / 2)])
        found[number] = replace(clients[number], train_index=train[kept])
    return tuple(found)


def public_split(dataset: Dataset, n_public: int, seed: int) -> tuple[Dataset, Samples]:
    """Set random images aside before anything is divided. Their labels are for methods that say they need them.

    Args:
        dataset: what images are taken from.
        n_public: how many, at least 1 and fewer than there are.
        seed: any integer; the choice is independent of the division with the same seed.

    Returns:
        The data set without them, in unchanged order, and the images ``(n_public, c, h, w)`` as float in [0, 1] with
        their labels.
    """
    return _set_aside(dataset, n_public, seed, "public")


def validation_split(dataset: Dataset, n_validation: int, seed: int) -> tuple[Dataset, Samples]:
    """Set random images aside to choose hyperparameters by: no client trains on them or is tested on them.

    Arguments and results are those of :func:`public_split`; the choice is another one.
    """
    return _set_aside(dataset, n_validation, seed, "validation")


def _set_aside(dataset: Dataset, number: int, seed: int, what: str) -> tuple[Dataset, Samples]:
    total = len(dataset.samples)
    if not 1 <= number < total:
        raise UserError(
            f"number of {what} images is {number}: of {total} images it must be 1..{total - 1}", keys=(what,)
        )
    order = np.random.default_rng(derive_seed(f"{what} images", seed)).permutation(total)
    aside = dataset.samples.subset(np.sort(order[:number]))
    return _without(dataset, order[:number]), Samples(as_unit(aside.images), aside.labels)


def set_strangers_aside(dataset: Dataset, share: float, seed: int) -> tuple[Dataset, Strangers | None]:
    """Keep a share of every class from all clients, half of it for an attacker and half for blind guesses and decoys.

    Args:
        dataset: what images are taken from.
        share: of every class, in [0, 1); rounded down to whole images, of which the attacker gets the smaller half.
        seed: any integer; the choice is independent of the division with the same seed.

    Returns:
        The data set without them, in unchanged order, and the strangers; None where there are fewer than one for each part.
    """
    labels = dataset.samples.labels.numpy()
    rng = np.random.default_rng(derive_seed("strangers", seed))
    most = max(1, MOST_OWN // dataset.n_classes)
    own, others = [np.arange(0)], [np.arange(0)]
    for label in range(dataset.n_classes):
        places = rng.permutation(np.flatnonzero(labels == label))
        aside = places[: int(share * len(places))]
        half = min(len(aside) // 2, most)
        own.append(aside[:half])
        others.append(aside[half:])
    attacker, pool = (dataset.samples.subset(np.sort(np.concatenate(part))) for part in (own, others))
    if not len(attacker) or not len(pool):
        return dataset, None
    rest = _without(dataset, np.concatenate([*own, *others]))
    return rest, Strangers(Samples(as_unit(attacker.images), attacker.labels), pool)


def _without(dataset: Dataset, taken: np.ndarray) -> Dataset:
    """Return the data set without the samples at ``taken``, in unchanged order."""
    kept = np.setdiff1d(np.arange(len(dataset.samples)), taken)
    kept_train = int((kept < dataset.n_official_train).sum())
    return replace(dataset, samples=dataset.samples.subset(kept), n_official_train=kept_train)
