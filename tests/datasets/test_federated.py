"""From data set to federation, public images, and the picture of who holds what."""

import numpy as np
import pytest
import torch
from compare import expect_same
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.datasets import load_dataset
from fedpriv.datasets.partition import (
    PARTITIONS,
    PartitionOptions,
    class_counts,
    federate,
    public_split,
    set_auxiliary_aside,
)
from fedpriv.datasets.types import ClientData, Dataset, FederatedData, Samples
from fedpriv.util.errors import UserError


def made(*counts):
    """Return a data set whose image number i has the value i in its only pixel (as bytes)."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    images = (torch.arange(len(labels)) % 256).to(torch.uint8).view(-1, 1, 1, 1)
    names = tuple(f"class {number}" for number in range(len(counts)))
    return Dataset("made", Samples(images, labels), names)


def indices(federated):
    return np.concatenate([np.concatenate([client.train_index, client.test_index]) for client in federated.clients])


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_every_partition_divides_the_digits(name):
    digits = load_dataset("digits")
    options = PartitionOptions(name, alpha=0.5, imbalance=10)
    federated = federate(digits, options, 10, 3)
    used = indices(federated)
    assert len(used) == len(np.unique(used))
    assert name == "long_tail" or len(used) == len(digits.samples)
    assert all(len(client.train_index) and len(client.test_index) for client in federated.clients)
    again = federate(digits, options, 10, 3)
    assert np.array_equal(used, indices(again))
    assert not np.array_equal(used, indices(federate(digits, options, 10, 4)))
    assert len(federated.train(2)) == len(federated.clients[2].train_index)


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_a_least_size_is_kept_or_refused_by_every_division(name):
    data = made(*[200] * 4)
    options = PartitionOptions(name, alpha=0.5, imbalance=2, classes_per_client=2, least_per_client=20)
    sizes = [len(one.train_index) + len(one.test_index) for one in federate(data, options, 8, 0).clients]
    assert min(sizes) >= 20
    with pytest.raises(UserError, match=r"least_per_client=\d+"):
        federate(data, PartitionOptions(name, alpha=0.5, imbalance=2, least_per_client=101), 8, 0)


@settings(max_examples=40, deadline=None)
@given(n_clients=st.integers(1, 12), fraction=st.floats(0.1, 0.9), seed=st.integers(0, 2**32 - 1))
def test_every_client_trains_and_tests_or_the_division_is_refused(n_clients, fraction, seed):
    dataset, options = made(12, 12), PartitionOptions("iid", train_fraction=fraction)
    if int(fraction * (24 // n_clients)) == 0:
        with pytest.raises(UserError, match="would hold 0 training"):
            federate(dataset, options, n_clients, seed)
        return
    federated = federate(dataset, options, n_clients, seed)
    assert sorted(indices(federated).tolist()) == list(range(24))
    assert all(len(client.train_index) and len(client.test_index) for client in federated.clients)


@pytest.mark.parametrize(
    ("options", "n_clients", "seed", "message"),
    [
        ({"name": "dirichlett"}, 2, 0, "did you mean 'dirichlet'"),
        ({"name": "iid"}, 0, 0, "number of clients is 0"),
        ({"name": "dirichlet"}, 0, 0, "number of clients is 0"),
        ({"name": "pathological"}, 0, 0, "number of clients is 0"),
        ({"name": "iid"}, 2, -1, "seed is -1"),
        ({"name": "iid"}, 2, 2**32, "seed is 4294967296"),
        ({"name": "iid"}, 20, 0, "client 0 would hold 0 training and 1 test images"),
    ],
)
def test_bad_values_are_refused_in_one_line(options, n_clients, seed, message):
    with pytest.raises(UserError, match=message) as caught:
        federate(made(10, 10), PartitionOptions(**options), n_clients, seed)
    assert "\n" not in str(caught.value)


def test_public_images_leave_the_data_set():
    dataset = made(30, 30)
    rest, public = public_split(dataset, 15, 1)
    assert public.images.shape == (15, 1, 1, 1)
    assert public.images.dtype == torch.float32
    taken = (public.images.flatten() * 255).round().long().tolist()
    left = rest.samples.images.flatten().tolist()
    assert sorted(taken + left) == list(range(60))
    assert left == sorted(left)
    assert rest.samples.labels.tolist() == [int(value >= 30) for value in left]
    assert public.labels.tolist() == [int(value >= 30) for value in taken]
    expect_same(public.images, public_split(dataset, 15, 1)[1].images)
    assert not torch.equal(public.images, public_split(dataset, 15, 2)[1].images)


def test_half_of_every_class_stays_with_auxiliary():
    dataset = made(40, 21, 1)
    rest, auxiliary = set_auxiliary_aside(dataset, 0.5, 1)
    own = (auxiliary.attacker.images.flatten() * 255).round().long().tolist()
    others = auxiliary.others.images.flatten().long().tolist()
    left = rest.samples.images.flatten().tolist()
    assert sorted(own + others + left) == list(range(62))
    assert [torch.bincount(part.labels).tolist() for part in (auxiliary.attacker, auxiliary.others)] == [[10, 5]] * 2
    assert left == sorted(left)
    again, other = (set_auxiliary_aside(dataset, 0.5, seed)[1] for seed in (1, 2))
    expect_same(auxiliary.attacker.images, again.attacker.images)
    assert not torch.equal(auxiliary.attacker.images, other.attacker.images)
    assert set_auxiliary_aside(dataset, 0.0, 1) == (dataset, None)
    assert set_auxiliary_aside(made(3, 3), 0.5, 1)[1] is None


def by_hand():
    """Two clients, three classes: client 0 trains on 2 of class 0 and 1 of class 2, client 1 on 1 of class 1."""
    clients = (ClientData(np.array([0, 1, 4]), np.array([2])), ClientData(np.array([3]), np.array([5, 6])))
    return FederatedData(made(3, 1, 3), clients)


def test_counts_by_hand():
    assert class_counts(by_hand()).tolist() == [[2, 0, 1], [0, 1, 0]]
