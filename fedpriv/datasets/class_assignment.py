"""A random assignment of classes to clients, any number of classes each, and a division of the samples by it.

FedMRL and FedHeNN say that classes are assigned to clients at random, FedRAL varies their number over 2, 4, 6, 8, 10 of 10
and 10, 30, 50, 70, 90, 100 of 100, and FedRE has 25 clients with 10 of 100 classes: divisions that PFLlib's rule, which
:func:`fedpriv.datasets.partition.pathological_partition` follows, cannot make. The papers leave unsaid whether every class
is held by as many clients as another, and how the holders of a class share it. Here numbers of holders differ by at most
one, so that every class is held by somebody where there are enough clients; shares are equal, or proportional to draws
from 0.4 to 0.6, which is how the public code of FedMRL and FedRAL does it.
"""

from __future__ import annotations

import numpy as np

from fedpriv.datasets.partition import check_classes_per_client, check_clients, positions_by_class
from fedpriv.datasets.streams import Random, Source, source_of
from fedpriv.util.errors import UserError

LOW_SHARE, HIGH_SHARE = 0.4, 0.6
"""Between these a holder's share of a class is drawn, before shares are divided by their sum."""


def assign_classes(n_clients: int, classes_per_client: int, n_classes: int, rng: Random) -> np.ndarray:
    """Return the classes of every client, ``(n_clients, classes_per_client)``, ascending in each row.

    Clients choose in order, each the classes that the fewest have chosen before it; ties are drawn. So the numbers of
    clients that hold a class differ by at most one.

    >>> assign_classes(2, 2, 4, 0).tolist()
    [[2, 3], [0, 1]]
    """
    check_classes_per_client(classes_per_client, n_classes)
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
    labels: np.ndarray, n_clients: int, classes_per_client: int, rng: Random, balanced: bool = False
) -> list[np.ndarray]:
    """Return a division in which every client holds exactly ``classes_per_client`` classes, assigned at random.

    A class's samples are shuffled and cut among its holders: into parts whose sizes differ by at most one if
    ``balanced``, else in proportion to one draw a holder from U(0.4, 0.6), at least one sample each. Samples of a class
    that nobody is assigned, where clients are too few for all, are left out.

    Args:
        labels: ``(n,)``, 0..C-1.
        n_clients: at least 1.
        classes_per_client: 1..C.
        rng: of the assignment, then, class by class, of the shuffle and the shares.
        balanced: equal shares.

    Raises:
        UserError: for numbers that cannot be, and a class with fewer samples than holders.
    """
    check_clients(labels, n_clients)
    by_class = positions_by_class(labels)
    source = source_of(rng)
    chosen = assign_classes(n_clients, classes_per_client, len(by_class), source)
    parts: list[list[np.ndarray]] = [[] for _ in range(n_clients)]
    for number, positions in enumerate(by_class):
        holders = np.flatnonzero((chosen == number).any(1))
        if not len(holders):
            continue
        if len(positions) < len(holders):
            raise UserError(
                f"class {number} has {len(positions)} samples, too few for {len(holders)} clients; use fewer clients or "
                "classes per client",
                keys=("clients",),
            )
        shuffled = positions[source.permutation(len(positions))]
        for client, part in zip(holders, _cut(shuffled, len(holders), balanced, source), strict=True):
            parts[client].append(part)
    return [np.concatenate(part) for part in parts]


def _cut(samples: np.ndarray, holders: int, balanced: bool, source: Source) -> list[np.ndarray]:
    """Return a class's samples cut for its holders."""
    if balanced:
        return [np.asarray(part) for part in np.array_split(samples, holders)]
    shares = np.asarray(source.uniform(LOW_SHARE, HIGH_SHARE, holders))
    spare = len(samples) - holders  # one each is given before shares count
    ends = np.floor(np.cumsum(shares / shares.sum()) * spare).astype(int) + np.arange(1, holders + 1)
    return [np.asarray(part) for part in np.split(samples, ends[:-1])]
