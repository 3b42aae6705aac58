"""From a data set to a federation: who holds which images, and which are public or nobody's.

``dirichlet`` and ``pathological`` follow the random draws of PFLlib (Zhang et al., JMLR 2025) in number and order, so
that one seed of numpy's legacy generator gives the division behind published tables. Functions take labels ``(n,)``, classes
0..C-1, and a source of randomness, of which an integer seeds that generator. They return one array of positions per client;
nothing is given twice, and nothing is lost but by a long tail and by classes that no client is assigned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Lt

from fedpriv.util.errors import UserError, shown, unknown_name

if TYPE_CHECKING:
    from fedpriv.datasets.types import Auxiliary, Dataset, FederatedData, Samples

Random = np.random.RandomState | int
"""A legacy generator of numpy, or the seed of one."""

PARTITIONS = ("dirichlet", "pathological", "iid", "long_tail")
MAX_SEED = 2**32 - 1
MAX_DRAWS = 10_000
PARITY_BATCH = 10  # PFLlib's smallest client must fill one test batch of this size
LOW_SHARE, HIGH_SHARE = 0.4, 0.6
"""Between these a holder's share of a class is drawn, before shares are divided by their sum."""
MOST_OWN = 1000  # images that an attacker owns at most, the same number of each class as far as it goes


@dataclass(frozen=True)
class PartitionOptions:
    """A partition of samples among clients."""

    name: str = "dirichlet"  # dirichlet, pathological, iid or long_tail
    alpha: Annotated[float, Gt(0)] = 0.1  # Dirichlet concentration, above 0 (dirichlet, long_tail)
    classes_per_client: Annotated[int, Ge(1)] = 2  # classes that each client holds (pathological)
    imbalance: Annotated[float, Ge(1)] = 100.0  # size of the first class over size of the last, at least 1 (long_tail)
    train_fraction: Annotated[float, Gt(0), Lt(1)] = 0.75  # share of every client's samples that it trains on
    assignment: Literal["in_order", "random"] = (
        "in_order"  # of classes: as PFLlib does, or for any numbers (pathological)
    )
    least_per_client: Annotated[int, Ge(1)] | None = (
        None  # samples of a client at least; None for :func:`least_samples`
    )


def source_of(rng: Random) -> np.random.RandomState:
    """Return the generator itself, or the one that an integer seeds."""
    if isinstance(rng, np.random.RandomState):
        return rng
    if not 0 <= rng <= MAX_SEED:
        raise UserError(f"seed is {rng}: it must be 0..{MAX_SEED}")
    return np.random.RandomState(int(rng))


def least_samples(n_samples: int, n_clients: int, train_fraction: float = 0.75) -> int:
    """Return PFLlib's least number of samples of a client: a test batch of 10, or half an equal share."""
    return int(min(PARITY_BATCH / (1 - train_fraction), n_samples / n_clients / 2))


def iid_partition(labels: np.ndarray, n_clients: int, rng: Random) -> list[np.ndarray]:
    """Return a random division into parts whose sizes differ by at most one."""
    _check_clients(labels, n_clients)
    return [np.asarray(part) for part in np.array_split(source_of(rng).permutation(len(labels)), n_clients)]


def dirichlet_partition(
    labels: np.ndarray, n_clients: int, alpha: float, rng: Random, least: int | None = None
) -> list[np.ndarray]:
    """Return a partition in which every class is spread over the clients by a Dirichlet draw.

    Per class in order: shuffle its samples, draw shares from Dirichlet(alpha, ..., alpha), give nothing to clients that
    already hold an equal share n / n_clients or more, renormalise and cut. The whole is drawn again until every client
    holds at least ``least`` samples (None: :func:`least_samples`).
    """
    _check_clients(labels, n_clients)
    wanted = least_samples(len(labels), n_clients) if least is None else least
    source, by_class, best = source_of(rng), _positions_by_class(labels), 0
    for _ in range(MAX_DRAWS):
        kept = np.zeros(n_clients, dtype=np.int64)
        divided: list[tuple[np.ndarray, np.ndarray]] = []
        for positions in by_class:
            shuffled = positions.copy()
            source.shuffle(shuffled)
            shares = source.dirichlet(np.repeat(alpha, n_clients)) * (kept < len(labels) / n_clients)
            total = shares.sum()
            if total > 0:
                cuts = (np.cumsum(shares / total) * len(shuffled)).astype(int)[:-1]
                kept += np.diff(cuts, prepend=0, append=len(shuffled))
                divided.append((shuffled, cuts))
            elif len(positions):  # all clients full, or an alpha so small that every share is 0 or not a number
                break
        else:
            smallest = int(kept.min())
            if smallest >= wanted:  # most draws are cast away where alpha is small: nothing is cut up for them
                pieces = [np.split(*item) for item in divided]
                return [np.concatenate(parts) for parts in zip(*pieces, strict=True)]
            best = max(best, smallest)
    met = f"the best gave {best}: use least_per_client={shown(best)}," if best else "the best gave none: use"
    raise UserError(
        f"no partition of {len(labels)} samples among {n_clients} clients with alpha {alpha:g} gave every client at "
        f"least {wanted} samples in {MAX_DRAWS} draws; {met} a larger alpha or fewer clients",
        keys=("alpha",),
    )


def pathological_partition(
    labels: np.ndarray,
    n_clients: int,
    classes_per_client: int,
    rng: Random,
    least: int | None = None,
) -> list[np.ndarray]:
    """Return PFLlib's partition in which every client holds exactly ``classes_per_client`` classes.

    Classes are given in order, each to the first n_clients * classes_per_client / C clients (rounded up) that still lack
    classes; a class's samples are given in stored order. Each of its takers but the last draws its number uniformly from a
    tenth of an equal part to an equal part, at least ``least`` / C (None: :func:`least_samples`); the last gets the rest.
    Numbers that do not come out even are refused.
    """
    _check_clients(labels, n_clients)
    by_class = _positions_by_class(labels)
    takers_per_class = _takers_per_class(n_clients, classes_per_client, len(by_class))
    source = source_of(rng)
    lowest = (least_samples(len(labels), n_clients) if least is None else least) / len(by_class)
    parts: list[list[np.ndarray]] = [[] for _ in range(n_clients)]
    for number, positions in enumerate(by_class):
        takers = [client for client in range(n_clients) if len(parts[client]) < classes_per_client][:takers_per_class]
        high = int(len(positions) / len(takers))
        low = int(max(len(positions) / len(takers) / 10, lowest))
        if len(takers) > 1 and low >= high:
            raise _too_few(number, len(positions), len(takers))
        sizes = source.randint(low, high, len(takers) - 1).tolist() if len(takers) > 1 else []
        for client, part in zip(takers, np.split(positions, np.cumsum(sizes, dtype=int)), strict=True):
            parts[client].append(part)
    return [np.concatenate(part) for part in parts]


def _takers_per_class(n_clients: int, classes_per_client: int, n_classes: int) -> int:
    """Return the number of clients that share a class: groups of so many clients must take all classes."""
    _check_classes(classes_per_client, n_classes)
    takers = -(-n_clients * classes_per_client // n_classes)
    if -(-n_clients // takers) * classes_per_client == n_classes:
        return takers
    remedy = "or use assignment='random', which takes any number"
    if n_classes % classes_per_client:
        raise UserError(
            f"classes per client is {classes_per_client}: handed out in order, it must divide the number of classes, "
            f"which is {n_classes}; change it, {remedy}",
            keys=("classes_per_client",),
        )
    raise UserError(
        f"{n_clients} clients cannot share {n_classes} classes with {classes_per_client} each, handed out in order: the "
        f"number of clients must be a multiple of {n_classes // classes_per_client}; change it, {remedy}",
        keys=("clients",),
    )


def assign_classes(n_clients: int, classes_per_client: int, n_classes: int, rng: Random) -> np.ndarray:
    """Return the classes of every client, ``(n_clients, classes_per_client)``, ascending in each row.

    Clients choose in order, each the classes that the fewest have chosen before it; ties are drawn.

    >>> assign_classes(2, 2, 4, 0).tolist()
    [[2, 3], [0, 1]]
    """
    _check_classes(classes_per_client, n_classes)
    source = source_of(rng)
    holders = np.zeros(n_classes, dtype=np.int64)
    chosen = np.empty((n_clients, classes_per_client), dtype=np.int64)
    for client in range(n_clients):
        order = np.asarray(source.permutation(n_classes))
        fewest = order[np.argsort(holders[order], kind="stable")][:classes_per_client]
        holders[fewest] += 1
        chosen[client] = np.sort(fewest)
    return chosen


def random_classes_partition(
    labels: np.ndarray, n_clients: int, classes_per_client: int, rng: Random
) -> list[np.ndarray]:
    """Return a partition in which every client holds exactly ``classes_per_client`` classes, assigned at random.

    For numbers that PFLlib's rule cannot divide (FedMRL, FedHeNN, FedRAL, FedRE), with shares as in the public code
    of FedMRL and FedRAL: a class's samples are shuffled and cut among its holders in proportion to one draw a holder from
    U(0.4, 0.6), at least one sample each.
    """
    _check_clients(labels, n_clients)
    source, by_class = source_of(rng), _positions_by_class(labels)
    chosen = assign_classes(n_clients, classes_per_client, len(by_class), source)
    parts: list[list[np.ndarray]] = [[] for _ in range(n_clients)]
    for number, positions in enumerate(by_class):
        holders = np.flatnonzero((chosen == number).any(1))
        if not len(holders):
            continue
        if len(positions) < len(holders):
            raise _too_few(number, len(positions), len(holders))
        shuffled = positions[source.permutation(len(positions))]
        shares = np.asarray(source.uniform(LOW_SHARE, HIGH_SHARE, len(holders)))
        spare = len(shuffled) - len(holders)  # one each is given before shares count
        ends = np.floor(np.cumsum(shares / shares.sum()) * spare).astype(int) + np.arange(1, len(holders) + 1)
        for client, part in zip(holders, np.split(shuffled, ends[:-1]), strict=True):
            parts[client].append(part)
    return [np.concatenate(part) for part in parts]


def long_tail_subset(labels: np.ndarray, imbalance: float, rng: Random) -> np.ndarray:
    """Return the ascending positions of a subset whose class sizes fall exponentially.

    Class c of C keeps floor(n_max * imbalance^(-c / (C - 1))) samples drawn without replacement, n_max the size of the
    largest class, or all it has if that is fewer. ``imbalance`` is at least 1.
    """
    source, by_class = source_of(rng), _positions_by_class(labels)
    largest, kept = max(map(len, by_class)), []
    for number, positions in enumerate(by_class):
        # the small term keeps powers that are whole numbers from falling below them by rounding
        size = math.floor(largest * imbalance ** (-number / max(len(by_class) - 1, 1)) + 1e-9)
        if size < 1:
            raise UserError(
                f"imbalance {imbalance:g} leaves class {number} without samples: the largest class has {largest}, so "
                f"it must be at most {largest}",
                keys=("imbalance",),
            )
        kept.append(positions[source.permutation(len(positions))[:size]])
    return np.sort(np.concatenate(kept))


def long_tail_partition(
    labels: np.ndarray,
    n_clients: int,
    imbalance: float,
    alpha: float,
    rng: Random,
    train_fraction: float = 0.75,
    least: int | None = None,
) -> list[np.ndarray]:
    """Return a Dirichlet division of a long-tailed subset; ``least`` None means :func:`least_samples` of the subset."""
    _check_clients(labels, n_clients)
    source = source_of(rng)
    kept = long_tail_subset(labels, imbalance, source)
    wanted = least_samples(len(kept), n_clients, train_fraction) if least is None else least
    return [kept[part] for part in dirichlet_partition(labels[kept], n_clients, alpha, source, wanted)]


def split_train_test(
    index_per_client: Sequence[np.ndarray], train_fraction: float, rng: Random
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (train, test) positions of every client, drawn without regard to class; the train fraction is in (0, 1).

    One permutation per client in order; its head is the test part and the rest, floor(train_fraction * n) long, the
    training part, as scikit-learn's ``train_test_split(train_size=...)`` does.
    """
    source, parts = source_of(rng), []
    for index in index_per_client:
        shuffled = index[source.permutation(len(index))]
        n_test = len(index) - math.floor(train_fraction * len(index))
        parts.append((shuffled[n_test:], shuffled[:n_test]))
    return parts


def _too_few(number: int, samples: int, clients: int) -> UserError:
    text = (
        f"class {number} has {samples} samples, too few for {clients} clients; use fewer clients or classes per client"
    )
    return UserError(text, keys=("clients",))


def _check_classes(classes_per_client: int, n_classes: int) -> None:
    if not 1 <= classes_per_client <= n_classes:
        text = f"classes per client is {classes_per_client}: with {n_classes} classes it must be 1..{n_classes}"
        raise UserError(text, keys=("classes_per_client",))


def _check_clients(labels: np.ndarray, n_clients: int) -> None:
    if n_clients < 1:
        raise UserError(f"number of clients is {n_clients}: it must be at least 1", keys=("clients",))
    if n_clients > len(labels):
        text = f"{n_clients} clients cannot share {len(labels)} samples; use at most {len(labels)} clients"
        raise UserError(text, keys=("clients",))


def _positions_by_class(labels: np.ndarray) -> list[np.ndarray]:
    """Return the ascending positions of every class 0..C-1, C being the largest label plus one."""
    return [np.flatnonzero(labels == label) for label in range(int(labels.max()) + 1)]


def _divide(labels: np.ndarray, n_clients: int, options: PartitionOptions, rng: Random) -> list[np.ndarray]:
    """Return the positions of every client's samples by the partition that the options name."""
    least, alpha, per_client = options.least_per_client, options.alpha, options.classes_per_client
    if options.name == "iid":
        return iid_partition(labels, n_clients, rng)
    if options.name == "long_tail":
        return long_tail_partition(labels, n_clients, options.imbalance, alpha, rng, options.train_fraction, least)
    if options.name == "pathological" and options.assignment == "random":
        return random_classes_partition(labels, n_clients, per_client, rng)
    if least is None and n_clients >= 1:  # fewer are refused anyway
        least = least_samples(len(labels), n_clients, options.train_fraction)
    if options.name == "dirichlet":
        return dirichlet_partition(labels, n_clients, alpha, rng, least)
    if options.name == "pathological":
        return pathological_partition(labels, n_clients, per_client, rng, least)
    raise unknown_name("partition", options.name, PARTITIONS)


def federate(dataset: Dataset, options: PartitionOptions, n_clients: int, seed: int) -> FederatedData:
    """Divide a data set among clients and every client's share into training and test part.

    One legacy numpy generator seeded with ``seed`` makes the partition and then the splits, as PFLlib does.
    """
    from fedpriv.datasets.types import ClientData, FederatedData

    rng = source_of(seed)
    shares = _divide(dataset.samples.labels.numpy(), n_clients, options, rng)
    smallest, least = min(map(len, shares)), options.least_per_client
    if least is not None and smallest < least:
        raise UserError(
            f"the smallest client of this {options.name} partition has {smallest} samples, fewer than "
            f"least_per_client={shown(least)}; use least_per_client={shown(smallest)} or fewer clients",
            keys=("least_per_client",),
        )
    clients = tuple(ClientData(*parts) for parts in split_train_test(shares, options.train_fraction, rng))
    for number, client in enumerate(clients):
        train, test = len(client.train_index), len(client.test_index)
        if not train or not test:
            raise UserError(
                f"client {number} would hold {train} training and {test} test images, at least 1 of each is needed; use "
                "fewer clients, more images per class, another train_fraction or a larger least_per_client",
                keys=("clients",),
            )
    return FederatedData(dataset, clients)


def public_split(dataset: Dataset, n_public: int, seed: int) -> tuple[Dataset, Samples]:
    """Set random images aside before anything is divided, independently of the partition with the same seed.

    Returns the data set without them, in unchanged order, and the images ``(n_public, c, h, w)`` in [0, 1] with labels.
    """
    from fedpriv.datasets.types import Samples, as_unit
    from fedpriv.util.seeds import derive_seed

    total = len(dataset.samples)
    if not 1 <= n_public < total:
        text = f"number of public images is {n_public}: of {total} images it must be 1..{total - 1}"
        raise UserError(text, keys=("public",))
    chosen = np.random.default_rng(derive_seed("public images", seed)).permutation(total)[:n_public]
    aside = dataset.samples.subset(np.sort(chosen))
    return dataset.without(chosen), Samples(as_unit(aside.images), aside.labels)


def set_auxiliary_aside(dataset: Dataset, share: float, seed: int) -> tuple[Dataset, Auxiliary | None]:
    """Keep a share of every class from all clients, half of it for an attacker and half for baselines and decoys.

    The share, in [0, 1), is rounded down to whole images, of which the attacker gets the smaller half; the choice is
    independent of the partition with the same seed. Returns the data set without them, in unchanged order, and the images;
    None where there are fewer than one for each part.
    """
    from fedpriv.datasets.types import Auxiliary, Samples, as_unit
    from fedpriv.util.seeds import derive_seed

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
    rest = dataset.without(np.concatenate([*group, *others]))
    return rest, Auxiliary(Samples(as_unit(attacker.images), attacker.labels), pool)


def class_counts(federated: FederatedData) -> np.ndarray:
    """Return the number of training images of every client and class, ``(clients, classes)`` int64."""
    labels = federated.dataset.samples.labels.numpy()
    n_classes = federated.dataset.n_classes
    return np.stack([np.bincount(labels[client.train_index], minlength=n_classes) for client in federated.clients])
