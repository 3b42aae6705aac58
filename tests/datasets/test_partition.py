"""Divisions: published vectors, laws, and refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from fedpriv.datasets.partition import (
    assign_classes,
    dirichlet_partition,
    iid_partition,
    least_samples,
    long_tail_partition,
    long_tail_subset,
    pathological_partition,
    random_classes_partition,
    split_train_test,
)
from fedpriv.util.errors import UserError

SEEDS = st.integers(0, 2**32 - 1)


def labels_of(*counts):
    return np.repeat(np.arange(len(counts)), counts)


def classes_in(labels, parts):
    return [len(np.unique(labels[part])) for part in parts]


def published_split(labels, alpha=0.1):
    """Division and training parts as PFLlib makes them with numpy seed 0, ten clients and 75 % for training."""
    rng = np.random.RandomState(0)
    parts = dirichlet_partition(labels, 10, alpha, rng)
    return parts, [train for train, _ in split_train_test(parts, 0.75, rng)]


def assert_each_once(parts, positions):
    assert sorted(np.concatenate(parts).tolist()) == sorted(positions)


def test_dirichlet_gives_the_published_cifar10_division():
    labels = labels_of(*[6000] * 10)
    parts, train = published_split(labels)
    assert [len(part) for part in parts] == [2941, 5107, 8276, 9264, 5149, 6411, 7775, 5903, 6122, 3052]
    assert sum(classes_in(labels, parts)) == 62
    assert classes_in(labels, train) == [5, 7, 6, 4, 7, 6, 4, 8, 4, 10]
    classes, counts = np.unique(labels[parts[0]], return_counts=True)
    assert dict(zip(classes.tolist(), counts.tolist(), strict=True)) == {0: 1176, 1: 3, 3: 1553, 6: 5, 7: 204}


@pytest.mark.parametrize(
    ("counts", "before", "after"),
    [([600] * 100, 533, 502), ([10_500] + [500] * 199, 982, 937)],
    ids=["cifar100", "tiny-imagenet-with-its-validation-part-in-class-0"],
)
def test_dirichlet_gives_the_published_numbers_of_pairs(counts, before, after):
    labels = labels_of(*counts)
    parts, train = published_split(labels)
    assert (sum(classes_in(labels, parts)), sum(classes_in(labels, train))) == (before, after)


def test_pathological_gives_the_published_divisions():
    cifar10 = labels_of(*[6000] * 10)
    rng = np.random.RandomState(0)
    parts = pathological_partition(cifar10, 10, 2, rng)
    assert [len(part) for part in parts] == [4860, 7140, 2198, 9802, 3364, 8636, 2655, 9345, 5075, 6925]
    assert sum(classes_in(cifar10, [train for train, _ in split_train_test(parts, 0.75, rng)])) == 20
    for counts, per_client, pairs in (([600] * 100, 10, 100), ([550] * 200, 20, 200)):
        labels = labels_of(*counts)
        parts = pathological_partition(labels, 10, per_client, 0)
        assert sum(classes_in(labels, parts)) == pairs
        assert {len(part) for part in parts} == {len(labels) // 10}


def test_pathological_hands_out_classes_in_order_and_samples_in_stored_order():
    labels = labels_of(10, 10, 10, 10)
    parts = pathological_partition(labels, 4, 2, 3)
    assert [np.unique(labels[part]).tolist() for part in parts] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    for first, second in (parts[:2], parts[2:]):
        for label in labels[first]:
            assert np.concatenate([first, second])[labels[np.concatenate([first, second])] == label].tolist() == list(
                range(10 * label, 10 * label + 10)
            )


def test_split_equals_scikit_learn_under_the_global_generator():
    parts = [np.arange(7), np.arange(100, 153), np.arange(200, 204)]
    ours = split_train_test(parts, 0.75, 11)
    shared = np.random.RandomState(11)
    for part, (train, test) in zip(parts, ours, strict=True):
        their_train, their_test = train_test_split(part, train_size=0.75, shuffle=True, random_state=shared)
        assert train.tolist() == their_train.tolist()
        assert test.tolist() == their_test.tolist()


def test_long_tail_profile_by_hand():
    labels = labels_of(1000, 1000, 1000)
    kept = labels[long_tail_subset(labels, 100, 0)]
    assert np.bincount(kept).tolist() == [1000, 100, 10]
    even = long_tail_subset(labels, 1, 0)
    assert even.tolist() == list(range(3000))


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    n_clients=st.integers(1, 5),
    alpha=st.floats(0.3, 50),
    seed=SEEDS,
)
def test_dirichlet_gives_every_position_once_and_the_least_to_all(counts, n_clients, alpha, seed):
    labels = np.random.default_rng(seed).permutation(labels_of(*counts, 20))
    parts = dirichlet_partition(labels, n_clients, alpha, seed)
    assert_each_once(parts, range(len(labels)))
    assert min(map(len, parts)) >= least_samples(len(labels), n_clients)


@settings(max_examples=60, deadline=None)
@given(n_clients=st.integers(1, 16), n_classes=st.integers(1, 8), per_client=st.integers(1, 8), seed=SEEDS)
def test_pathological_fills_every_quota_or_refuses(n_clients, n_classes, per_client, seed):
    labels = np.random.default_rng(seed).permutation(labels_of(*range(100, 100 + n_classes)))
    even = n_classes % per_client == 0 and n_clients % (n_classes // per_client) == 0
    try:
        parts = pathological_partition(labels, n_clients, per_client, seed)
    except UserError:
        assert not even
        return
    assert_each_once(parts, range(len(labels)))
    assert classes_in(labels, parts) == [per_client] * n_clients


LABELS = labels_of(*[30] * 4)


def test_bad_values_are_refused_in_one_line():
    for call, message in (
        (lambda: dirichlet_partition(LABELS, 121, 1.0, 0), "121 clients cannot share 120 samples"),
        (lambda: pathological_partition(LABELS, 4, 0, 0), "classes per client is 0"),
        (lambda: pathological_partition(LABELS, 4, 5, 0), "classes per client is 5"),
        (lambda: pathological_partition(LABELS, 3, 1, 0), "multiple of 4; change it, or use assignment='random'"),
        (
            lambda: pathological_partition(LABELS, 4, 3, 0),
            "must divide the number of classes, which is 4; change it, or",
        ),
        (lambda: pathological_partition(LABELS, 120, 4, 0), "class 0 has 30 samples, too few for 120 clients"),
        (lambda: iid_partition(LABELS[:0], 1, 0), "1 clients cannot share 0 samples"),
        (lambda: long_tail_subset(LABELS, 31, 0), "leaves class 3 without samples"),
        (lambda: long_tail_partition(LABELS, 100, 30, 1.0, 0), "100 clients cannot share"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- classes assigned at random


def table(labels, parts):
    """Return the samples of every client and class."""
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


@settings(max_examples=80, deadline=None)
@given(n_clients=st.integers(1, 30), n_classes=st.integers(1, 12), per_client=st.integers(1, 12), seed=SEEDS)
def test_every_client_gets_its_number_and_every_class_is_used_alike(n_clients, n_classes, per_client, seed):
    per_client = min(per_client, n_classes)
    chosen = assign_classes(n_clients, per_client, n_classes, seed)
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


def test_the_published_numbers_divide_cifar():
    for n_classes, n_clients, per_client in PUBLISHED:
        labels = labels_of(*[60_000 // n_classes] * n_classes)
        parts = random_classes_partition(labels, n_clients, per_client, 0)
        case = (n_classes, n_clients, per_client)
        assert sorted(np.concatenate(parts).tolist()) == list(range(60_000)), case
        held = table(labels, parts)
        assert ((held > 0).sum(1) == per_client).all(), case
        for shares in (column[column > 0] for column in held.T):
            # of a uniform draw from 0.4 to 0.6 each, and one sample before
            assert (shares.min() + 1) / (shares.max() - 1) > 0.4 / 0.6, case
