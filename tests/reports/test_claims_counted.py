"""Counts that papers print are what their sizes give, or a remark says how they come about."""

import numpy as np
from looped import each

import fedpriv
from fedpriv.claims import claims
from fedpriv.datasets.partition import dirichlet_partition, pathological_partition, split_train_test

DATA = ("CIFAR-10", "CIFAR-100", "TinyImageNet")
DIFFERING = {
    "fedral-table-4-communication": {"FedRAL, 500 blocks | CIFAR-10, pathological"},
    "fedmrl-figure-4-communication": {"until the accuracy is reached | FedMRL, CIFAR-100"},
    "fedre-table-2": {"FedGH | broadcast", "FedGen | upload", "FedGen | broadcast"},
    "fedre-table-4-communication": {f"FedAllRep | TinyImageNet, {way}" for way in ("practical", "pathological")},
    "fedre-table-11-heterogeneous": {
        f"{method} | {data}, broadcast" for method in ("FedGH", "FedGen") for data in DATA
    },
    "fedre-table-11-homogeneous": {
        f"{method} | {data}, broadcast" for method in ("FedGH", "FedGen", "FedAvgDBE") for data in DATA
    },
}
"""Entries that do not hold together: a bias, a generator or a global mean is left out, or columns are mixed up."""


@each("name", DIFFERING)
def test_counts_are_what_the_sizes_give_or_a_remark_has_ours(name, tmp_path_factory):
    card = fedpriv.reproduce(name, out=tmp_path_factory.mktemp("counted") / "out").card
    differing = {f"{cell.row} | {cell.column}": cell for cell in card.cells if cell.verdict == "does not hold"}
    assert set(differing) == DIFFERING[name]
    assert all(f"{one.measured.mean:.2f}" in one.remark or one.row == "FedAllRep" for one in differing.values())
    assert all(cell.verdict in (None, "holds") or cell.remark for cell in card.cells if cell.measured)
    assert card.verdict == "holds", "what is concluded from the counts holds"


IMAGES = {"CIFAR-10": [6000] * 10, "CIFAR-100": [600] * 100, "TinyImageNet": [10_500] + [500] * 199}
"""Images of a class; TinyImageNet's validation part, which lies in one folder, counts as its first class."""


def training_parts(data, division):
    labels = np.repeat(np.arange(len(IMAGES[data])), IMAGES[data])
    rng = np.random.RandomState(0)
    if division == "practical":
        parts = dirichlet_partition(labels, 10, 0.1, rng)
    else:
        parts = pathological_partition(labels, 10, len(IMAGES[data]) // 10, rng)
    return labels, [train for train, _ in split_train_test(parts, 0.75, rng)]


@each("data", IMAGES)
def test_pairs_are_those_of_the_reference_librarys_division(data):
    labels, parts = training_parts(data, "practical")
    for setting in ("homogeneous", "heterogeneous"):
        for column in claims()[f"fedre-table-11-{setting}"].columns:
            if column.data == data:
                assert column.sizes["pairs"] == sum(len(np.unique(labels[part])) for part in parts)
                assert column.sizes["classes"] == len(IMAGES[data])


@each("division", ["practical", "pathological"])
def test_images_of_table_4_are_those_in_whole_batches_of_64(division):
    _, parts = training_parts("TinyImageNet", division)
    sizes = {column.name: column.sizes for column in claims()["fedre-table-4-communication"].columns}
    assert sizes[f"TinyImageNet, {division}"]["samples"] == sum(len(part) // 64 * 64 for part in parts)
