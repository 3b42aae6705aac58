"""Counts that papers print are what their sizes give, or a remark says how they come about."""

import numpy as np
from looped import each

import fedpriv
from fedpriv.claims import claims
from fedpriv.datasets.partition import dirichlet_partition, pathological_partition, split_train_test

# ---------------------------------------------------------------- FedMRL and FedRAL: communication


def counted(claim, row, column):
    """What a client sends in a round, in the cell's unit."""
    sizes = {**claim.sizes, **column.sizes, **row.sizes}
    if "option" in column.sizes:
        sizes["option"] = {**column.sizes["option"], **row.sizes.get("option", {})}
    measure = column.measure or claim.measure
    found = fedpriv.cost(row.method or column.method, **sizes).methods[0]["communication"]["paper"]
    unit = "bytes" if measure.bytes else "scalars"
    return found[f"{measure.what}_{unit}_per_round"] / sizes["clients"] / measure.every


@each(
    "name, differing",
    [
        ("fedral-table-4-communication", {"FedRAL, 500 blocks | CIFAR-10, pathological"}),
        ("fedmrl-figure-4-communication", {"until the accuracy is reached | FedMRL, CIFAR-100"}),
    ],
)
def test_counts_are_what_the_sizes_give(name, differing):
    claim, found = claims()[name], set()
    for row in claim.rows:
        for column, value in zip(claim.columns, row.values, strict=True):
            margin = max(claim.tolerance, 0.5 * 10**-claim.digits)
            if value is not None and abs(counted(claim, row, column) - value) > margin:
                found.add(f"{row.name} | {column.name}")
                assert f"{counted(claim, row, column):.2f}" in claim.remarks[f"{row.name} | {column.name}"]
    assert found == differing


# ---------------------------------------------------------------- FedRE

DIFFERING = {
    "fedre-table-2": {("FedGH", "broadcast"), ("FedGen", "upload"), ("FedGen", "broadcast")},
    "fedre-table-4-communication": {
        ("FedAllRep", f"TinyImageNet, {division}") for division in ("practical", "pathological")
    },
    "fedre-table-11-heterogeneous": {
        (method, f"{data}, broadcast")
        for method in ("FedGH", "FedGen")
        for data in ("CIFAR-10", "CIFAR-100", "TinyImageNet")
    },
    "fedre-table-11-homogeneous": {
        (method, f"{data}, broadcast")
        for method in ("FedGH", "FedGen", "FedAvgDBE")
        for data in ("CIFAR-10", "CIFAR-100", "TinyImageNet")
    },
}
"""Entries that do not hold together: a bias, a generator or a global mean is left out, or columns are mixed up."""


def counted_once(claim, row, column):
    found = fedpriv.cost(row.method, **{**claim.sizes, **column.sizes, **row.sizes}).methods[0]["communication"]
    ways = {"both": ("upload", "broadcast")}.get(what := (column.measure or claim.measure).what, (what,))
    return sum(found["paper"][f"{way}_scalars_per_round"] for way in ways) / claim.measure.every


@each("name", DIFFERING)
def test_fedres_counts_are_what_the_sizes_give(name):
    claim = claims()[name]
    differing = set()
    for row in claim.rows:
        for column, value in zip(claim.columns, row.values, strict=True):
            exact, remark = (
                f"{counted_once(claim, row, column):.2f}",
                claim.remarks.get(f"{row.name} | {column.name}", ""),
            )
            if exact != f"{value:.2f}":
                differing.add((row.name, column.name))
                assert exact in remark or row.name == "FedAllRep"
    assert differing == DIFFERING[name]


# ---------------------------------------------------------------- the division behind the counts

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
