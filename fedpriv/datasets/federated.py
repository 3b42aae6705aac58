"""From a data set to a federation: training and test images of every client, public images, and those of nobody."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from fedpriv.datasets.partition import (
    MAX_SEED,
    Random,
    dirichlet_partition,
    iid_partition,
    least_samples,
    long_tail_partition,
    pathological_partition,
    random_classes_partition,
    split_train_test,
)
from fedpriv.datasets.types import Auxiliary, ClientData, Dataset, FederatedData, Samples, as_unit
from fedpriv.util.errors import UserError, shown, unknown_name
from fedpriv.util.seeds import derive_seed

PARTITIONS = ("dirichlet", "pathological", "iid", "long_tail")
MOST_OWN = 1000
"""Images that an attacker owns at most, the same number of each class as far as it goes."""


@dataclass(frozen=True)
class PartitionOptions:
    """A division of samples among clients.

    Attributes:
        assignment: of classes to clients (pathological): ``in_order`` as PFLlib does, in disjoint groups of clients, or at
            ``random``, for any number of classes and clients.
        least_per_client: least number of samples of a client, training and test together; None for that of
            :func:`fedpriv.datasets.partition.least_samples`.
    """

    name: str = "dirichlet"  # dirichlet, pathological, iid or long_tail
    alpha: float = 0.1  # Dirichlet concentration, above 0 (dirichlet, long_tail)
    classes_per_client: int = 2  # classes that each client holds (pathological)
    imbalance: float = 100.0  # size of the first class over size of the last, at least 1 (long_tail)
    train_fraction: float = 0.75  # share of every client's samples that it trains on, above 0 and below 1
    balanced: bool = False  # equal parts of a class instead of random ones (pathological)
    assignment: Literal["in_order", "random"] = "in_order"
    least_per_client: Annotated[int, Ge(1)] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.train_fraction < 1:
            raise UserError(
                f"train fraction is {self.train_fraction}: it must be above 0 and below 1, for example 0.75",
                keys=("train_fraction",),
            )


def drawn_by_class(options: PartitionOptions) -> bool:
    """True for a division that shuffles the images of every class, so that chance alone decides who holds which."""
    in_order = options.name == "pathological" and options.assignment == "in_order"
    return options.name in PARTITIONS and not in_order


def _divide(labels: np.ndarray, n_clients: int, options: PartitionOptions, rng: Random) -> list[np.ndarray]:
    """Return the positions of every client's samples by the partition that the options name."""
    least, alpha, per_client = options.least_per_client, options.alpha, options.classes_per_client
    if options.name == "iid":
        return iid_partition(labels, n_clients, rng)
    if options.name == "long_tail":
        return long_tail_partition(labels, n_clients, options.imbalance, alpha, rng, options.train_fraction, least)
    if options.name == "pathological" and options.assignment == "random":
        return random_classes_partition(labels, n_clients, per_client, rng, options.balanced)
    if least is None and n_clients >= 1:  # fewer are refused anyway
        least = least_samples(len(labels), n_clients, options.train_fraction)
    if options.name == "dirichlet":
        return dirichlet_partition(labels, n_clients, alpha, rng, least)
    if options.name == "pathological":
        return pathological_partition(labels, n_clients, per_client, rng, options.balanced, least)
    raise unknown_name("partition", options.name, PARTITIONS)


def federate(dataset: Dataset, options: PartitionOptions, n_clients: int, seed: int) -> FederatedData:
    """Divide a data set among clients and every client's share into training and test part.

    One legacy numpy generator seeded with ``seed`` makes the division and then the splits, so that divisions equal
    those of PFLlib with the same seed.
    """
    if not 0 <= seed <= MAX_SEED:
        raise UserError(f"seed is {seed}: it must be 0..{MAX_SEED}")
    rng = np.random.RandomState(seed)
    shares = _divide(dataset.samples.labels.numpy(), n_clients, options, rng)
    smallest, least = min(map(len, shares)), options.least_per_client
    if least is not None and smallest < least:
        raise UserError(
            f"the least client of this {options.name} division holds {smallest} samples, fewer than "
            f"least_per_client={shown(least)}; use least_per_client={shown(smallest)} or fewer clients",
            keys=("least_per_client",),
        )
    clients = tuple(ClientData(*parts) for parts in split_train_test(shares, options.train_fraction, rng))
    for number, client in enumerate(clients):
        train, test = len(client.train_index), len(client.test_index)
        if not train or not test:
            raise UserError(
                f"client {number} would hold {train} training and {test} test images, at least 1 of each is needed; use "
                f"fewer clients, more images per class, another train_fraction or a larger "
                f"least_per_client",
                keys=("clients",),
            )
    return FederatedData(dataset, clients)


def public_split(dataset: Dataset, n_public: int, seed: int) -> tuple[Dataset, Samples]:
    """Set random images aside before anything is divided, independently of the division with the same seed.

    Returns the data set without them, in unchanged order, and the images ``(n_public, c, h, w)`` in [0, 1] with labels.
    """
    total = len(dataset.samples)
    if not 1 <= n_public < total:
        raise UserError(
            f"number of public images is {n_public}: of {total} images it must be 1..{total - 1}", keys=("public",)
        )
    chosen = np.random.default_rng(derive_seed("public images", seed)).permutation(total)[:n_public]
    aside = dataset.samples.subset(np.sort(chosen))
    return _without(dataset, chosen), Samples(as_unit(aside.images), aside.labels)


def set_auxiliary_aside(dataset: Dataset, share: float, seed: int) -> tuple[Dataset, Auxiliary | None]:
    """Keep a share of every class from all clients, half of it for an attacker and half for baselines and decoys.

    The share, in [0, 1), is rounded down to whole images, of which the attacker gets the smaller half; the choice is
    independent of the division with the same seed. Returns the data set without them, in unchanged order, and the images;
    None where there are fewer than one for each part.
    """
    labels = dataset.samples.labels.numpy()
    rng = np.random.default_rng(derive_seed("strangers", seed))
    most = max(1, MOST_OWN // dataset.n_classes)
    group, others = [np.arange(0)], [np.arange(0)]
    for label in range(dataset.n_classes):
        places = rng.permutation(np.flatnonzero(labels == label))
        aside = places[: int(share * len(places))]
        half = min(len(aside) // 2, most)
        group.append(aside[:half])
        others.append(aside[half:])
    attacker, pool = (dataset.samples.subset(np.sort(np.concatenate(part))) for part in (group, others))
    if not len(attacker) or not len(pool):
        return dataset, None
    rest = _without(dataset, np.concatenate([*group, *others]))
    return rest, Auxiliary(Samples(as_unit(attacker.images), attacker.labels), pool)


def _without(dataset: Dataset, taken: np.ndarray) -> Dataset:
    kept = np.setdiff1d(np.arange(len(dataset.samples)), taken)
    kept_train = int((kept < dataset.n_official_train).sum())
    return replace(dataset, samples=dataset.samples.subset(kept), n_official_train=kept_train)
