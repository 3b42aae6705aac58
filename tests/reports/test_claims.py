"""Claims of papers are whole, say what is not known of them, and are found beside results on the same data alone."""

import copy
import tomllib
from importlib import resources

import numpy as np
import pytest
from looped import each

import fedpriv
from fedpriv.api.federations import CostSettings
from fedpriv.claims import claims, find_claim, parsed
from fedpriv.datasets import DATASETS
from fedpriv.datasets.partition import dirichlet_partition, pathological_partition, split_train_test
from fedpriv.methods import METHODS
from fedpriv.study.claim_plan import measure_of, places, setting_at, sizes_of
from fedpriv.study.settings import run_config
from fedpriv.uploads import PAYLOADS
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError

FILES = sorted(claims())


def raw(name):
    return tomllib.loads((resources.files("fedpriv.claims") / f"{name}.toml").read_text("utf-8"))


@pytest.mark.parametrize("name", FILES)
def test_every_claim_is_whole(name):
    claim = claims()[name]
    assert claim.paper
    assert claim.where
    assert claim.known
    assert claim.unknown
    assert any(value is not None for row in claim.rows for value in row.values)
    for place in places(claim):
        # A method that this package has no name for could neither be run nor stand beside a result.
        assert place.method in (None, *METHODS)
        assert place.target in (None, *PAYLOADS)
        if claim.counted:
            assert set(sizes_of(claim, place)) <= CostSettings.__optional_keys__
        for scale in ("cpu", "paper") if place.method and not claim.counted else ():
            setting, method = dict(setting_at(claim, place, scale)), METHODS.load(place.method)
            parse(method.options, setting.pop("option", {}), f"options of {method.name}")
            assert run_config(place.method, setting, 0).dataset in DATASETS
        assert (measure_of(claim, place).what == "rounds") == (measure_of(claim, place).reach is not None)
    if claim.quantity == "accuracy":
        assert claim.tolerance > 0
        assert claim.tolerance_because


@pytest.mark.parametrize("name", FILES)
def test_what_a_paper_concludes_is_what_its_own_values_say(name):
    claim = claims()[name]
    rows, columns = [row.name for row in claim.rows], [column.name for column in claim.columns]
    values = {(row.name, columns[n]): value for row in claim.rows for n, value in enumerate(row.values)}
    for statement in claim.statements:
        along, across = (rows, columns) if statement.along == "rows" else (columns, rows)
        compared = 0
        for where in statement.within or across:
            for other in statement.than or [one for one in along if one != statement.better]:
                pair = [
                    (one, where) if statement.along == "rows" else (where, one) for one in (statement.better, other)
                ]
                ahead, behind = (values[place] for place in pair)
                if ahead is None or behind is None:
                    compared += claim.dash == "not printed"
                    continue
                compared += 1
                assert (ahead > behind) if statement.order == "above" else (ahead < behind), (
                    statement.text,
                    where,
                    other,
                )
        assert compared


AVERAGES = {
    "fedre-table-1": (53.98, 53.35, 53.15, 53.80, 50.28, 50.49, 50.26, 53.48, 54.04, 57.79),
    "fedre-table-12": (60.63, 58.54, 60.03, 59.98, 58.40, 57.99, 60.40, 60.37, 63.21),
    "fedre-table-12-global": (31.14, 31.16, 44.09, 31.12),
}
"""Averages of rows over six columns that the paper prints beside them."""


def test_averages_of_rows_are_those_of_the_papers():
    for name, averages in AVERAGES.items():
        for row, average in zip(claims()[name].rows, averages, strict=True):
            assert sum(row.values) / 6 == pytest.approx(average, abs=0.0051)


def test_a_damaged_claim_is_named():
    whole = raw("fedre-table-5")

    def but(change):
        values = copy.deepcopy(whole)
        change(values)
        return values

    def refused(change, match):
        with pytest.raises(UserError, match=match):
            parsed(but(change), "x.toml")

    assert parsed(whole, "x.toml")
    refused(lambda v: v["rows"][0].update(values=[7.83]), r"x\.toml: row 'AP': 1 values for 2 columns")
    refused(lambda v: v.update(tabel=5), "unknown key 'tabel'")
    refused(lambda v: v["rows"].append(v["rows"][0]), r"x\.toml: rows: 'AP' is there twice")
    refused(lambda v: v["statements"][0].update(better="XX"), "unknown name .*XX")
    refused(lambda v: v.update(remarks={"AP": "odd"}), "'AP' is no 'ROW | COLUMN'")
    refused(lambda v: v.update(scales={"huge": {}}), "unknown scale .*huge")
    with pytest.raises(UserError, match="unknown claim 'fedre-table-55'; did you mean 'fedre-table-5'"):
        find_claim("fedre-table-55")


def test_every_printed_value_is_here():
    values = [value for name in FILES for row in claims()[name].rows for value in row.values if value is not None]
    assert (len(FILES), len(values), round(sum(values), 2)) == (38, 709, 2970409.11)


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
