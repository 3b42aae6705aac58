"""Random assignment of classes: the published numbers of classes and clients, equal use of classes, shares, refusals."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.datasets.class_assignment import assign_classes, random_classes_partition
from fedpriv.util.errors import UserError


def labels_of(*counts):
    return np.repeat(np.arange(len(counts)), counts)


def table(labels, parts):
    """Return the samples of every client and class."""
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


@settings(max_examples=80, deadline=None)
@given(
    n_clients=st.integers(1, 30),
    n_classes=st.integers(1, 12),
    per_client=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
    new=st.booleans(),
)
def test_every_client_gets_its_number_and_every_class_is_used_alike(n_clients, n_classes, per_client, seed, new):
    per_client = min(per_client, n_classes)
    chosen = assign_classes(n_clients, per_client, n_classes, np.random.default_rng(seed) if new else seed)
    assert chosen.shape == (n_clients, per_client)
    assert all((np.diff(row) > 0).all() for row in chosen)
    holders = np.bincount(chosen.ravel(), minlength=n_classes)
    assert holders.max() - holders.min() <= 1
    assert (holders > 0).all() or n_clients * per_client < n_classes


PUBLISHED = [
    *((10, 100, per_client) for per_client in (2, 4, 6, 8, 10)),
    *((100, 100, per_client) for per_client in (10, 30, 50, 70, 90, 100)),
    (100, 25, 10),
    (10, 100, 5),
    (10, 500, 2),
    (10, 500, 5),
    (100, 100, 20),
]
"""Classes, clients, classes a client: figure 6 of FedRAL and figure 5 of FedMRL, C.4 of FedRE, table 1 of FedHeNN."""


@pytest.mark.parametrize(("n_classes", "n_clients", "per_client"), PUBLISHED)
@pytest.mark.parametrize("balanced", [True, False])
def test_the_published_numbers_divide_cifar(n_classes, n_clients, per_client, balanced):
    labels = labels_of(*[60_000 // n_classes] * n_classes)
    parts = random_classes_partition(labels, n_clients, per_client, 0, balanced)
    assert sorted(np.concatenate(parts).tolist()) == list(range(60_000))
    held = table(labels, parts)
    assert ((held > 0).sum(1) == per_client).all()
    for shares in (column[column > 0] for column in held.T):
        if balanced:
            assert shares.max() - shares.min() <= 1
        else:  # of a uniform draw from 0.4 to 0.6 each, and one sample before
            assert (shares.min() + 1) / (shares.max() - 1) > 0.4 / 0.6


def test_clients_overlap_partly_as_fedhenns_do():
    chosen = assign_classes(100, 5, 10, 0)
    common = [len(np.intersect1d(one, other)) for one, other in itertools.combinations(chosen, 2)]
    assert set(common) == {0, 1, 2, 3, 4, 5}
    assert 2 < np.mean(common) < 3  # 5 * 5 / 10 for independent draws


def test_unequal_shares_favour_no_place():
    """Unlike PFLlib's rule, whose last taker gets what the others leave."""
    labels = labels_of(*[6000] * 10)
    held = [table(labels, random_classes_partition(labels, 10, 10, seed))[[0, -1]].sum(1) for seed in range(40)]
    first, last = np.mean(held, axis=0)
    assert abs(first - last) < 150
    assert np.std([pair[0] for pair in held]) > 50


def test_balanced_by_hand():
    held = table(labels_of(6, 6, 6, 6), random_classes_partition(labels_of(6, 6, 6, 6), 4, 2, 3, True))
    assert sorted(held.ravel().tolist()) == [0] * 8 + [3] * 8


def test_classes_beyond_all_clients_are_left_out():
    labels = labels_of(*[5] * 10)
    parts = random_classes_partition(labels, 2, 3, 1)
    assert sum(map(len, parts)) == 30
    assert len(np.unique(labels[np.concatenate(parts)])) == 6


def test_a_seed_decides():
    labels = labels_of(*[50] * 6)
    one, again, other = (random_classes_partition(labels, 4, 3, seed) for seed in (1, 1, 2))
    assert [part.tolist() for part in one] == [part.tolist() for part in again]
    assert [part.tolist() for part in one] != [part.tolist() for part in other]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((4, 0), "classes per client is 0: with 3 classes it must be 1..3"),
        ((4, 4), "classes per client is 4"),
        ((0, 1), "number of clients is 0"),
        ((10, 3), "class 2 has 4 samples, too few for 10 clients"),
        ((40, 3), "40 clients cannot share 34 samples"),
    ],
)
def test_numbers_that_cannot_be_are_refused(numbers, message):
    with pytest.raises(UserError, match=message):
        random_classes_partition(labels_of(10, 20, 4), *numbers, 0)
