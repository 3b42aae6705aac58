"""Claims of FedHeNN, FedMRL and FedRAL hold together: among each other, with what the papers conclude, and with what
sizes, architectures and settings give."""

import math

import numpy as np
import pytest

import fedpriv
from fedpriv.datasets.partition import dirichlet_partition
from fedpriv.experiment.federation_settings import named_config
from fedpriv.experiment.reproduction.settings import places, setting_at
from fedpriv.methods import METHODS
from fedpriv.pages.claims import SCALES, claims
from fedpriv.util.config import parse

CELLS = {
    "fedhenn-table-1": 15,
    "fedhenn-table-2": 15,
    "fedhenn-table-3": 4,
    "fedmrl-figure-4-communication": 4,
    "fedmrl-figure-4-computation": 4,
    "fedmrl-figure-4-rounds": 4,
    "fedmrl-figure-5-classes": 22,
    "fedmrl-figure-5-dirichlet": 20,
    "fedmrl-figure-6-ablation": 20,
    "fedmrl-figure-6-sensitivity": 18,
    "fedmrl-figure-7": 40,
    "fedmrl-table-1": 35,
    "fedmrl-table-3": 43,
    "fedral-figure-6": 4,
    "fedral-figure-7": 4,
    "fedral-table-3": 49,
    "fedral-table-4-communication": 8,
    "fedral-table-4-computation": 8,
    "fedral-table-4-rounds": 8,
    "fedral-table-5": 6,
    "fedral-table-6": 5,
    "fedral-table-7": 12,
}
"""Printed values; a dash is none."""
TRAINED = sorted(name for name in CELLS if not claims()[name].counted)


def cells(name):
    """Printed values by row and column."""
    return {
        (row.name, column.name): value
        for row in claims()[name].rows
        for column, value in zip(claims()[name].columns, row.values, strict=True)
        if value is not None
    }


def test_every_printed_value_is_here():
    assert {name: len(cells(name)) for name in claims() if name.startswith(("fedhenn-", "fedmrl-", "fedral-"))} == CELLS


@pytest.mark.parametrize("name", sorted(CELLS))
def test_the_papers_values_bear_out_what_it_concludes(name):
    values, claim = cells(name), claims()[name]
    for said in claim.statements:
        along, across = (claim.rows, claim.columns) if said.along == "rows" else (claim.columns, claim.rows)
        behind = said.than or [one.name for one in along if one.name != said.better]
        for other in said.within or [one.name for one in across]:
            for name_behind in behind:
                keys = [(one, other) if said.along == "rows" else (other, one) for one in (said.better, name_behind)]
                if not values.keys() >= set(keys):
                    continue
                lead = (values[keys[0]] - values[keys[1]]) * (1 if said.order == "above" else -1)
                assert lead > 0 if said.least == 0 else lead >= said.least - 1e-9, (said.text, keys, lead)


@pytest.mark.parametrize("name", TRAINED)
def test_every_cell_can_be_asked_for_at_every_scale(name):
    claim = claims()[name]
    for place in places(claim):
        for scale in SCALES:
            config = named_config(place.method, setting_at(claim, place, scale), 0)
            parse(METHODS.load(place.method).options, config.options, name)
            assert config.strangers == (0.5 if claim.quantity == "inversion" else 0)


@pytest.mark.parametrize("name", TRAINED)
def test_what_rows_and_columns_vary_is_varied_on_a_small_machine(name):
    """Two cells of one method that differ in the paper's setting differ in more than their seed at the scale ``cpu``."""
    claim = claims()[name]
    for scale in ("paper", "cpu"):
        tried = claim.scales[scale].rows if scale in claim.scales else ()
        found = [
            (place.method, repr(sorted(setting_at(claim, place, scale).items(), key=str)))
            for place in places(claim)
            if not tried or place.row.name in tried
        ]
        assert len(set(found)) == len(found)


# ---------------------------------------------------------------- among each other


def test_fedrals_baselines_are_fedmrls():
    fedmrl, fedral = cells("fedmrl-table-1"), cells("fedral-table-3")
    for method in ("Standalone", "LG-FedAvg", "FedKD", "FedProto"):
        for data in ("CIFAR-10", "CIFAR-100"):
            assert fedral[method, f"{data}, pathological"] == fedmrl[method, f"{data}, 100 clients"]
            assert claims()["fedral-table-3"].remarks[f"{method} | {data}, pathological"]


@pytest.mark.parametrize("name", ["fedmrl-table-1", "fedmrl-table-3"])
def test_leads_that_fedmrl_prints(name):
    best = {
        "fedmrl-table-1": (0.10, 1.78, 0.22, 3.33, 3.36, 8.48),
        "fedmrl-table-3": (0.24, 0.20, 0.51, 3.91, 2.94, 5.71),
    }
    same = {
        "fedmrl-table-1": (16.43, 21.14, 18.33, 21.77, 22.64, 24.94),
        "fedmrl-table-3": (1.33, 3.04, 2.45, 8.84, 5.29, 9.65),
    }
    values = cells(name)
    for column, lead, over_kin in zip(claims()[name].columns, best[name], same[name], strict=True):
        own = {row: value for (row, other), value in values.items() if other == column.name}
        fedmrl = own.pop("FedMRL")
        assert fedmrl - max(own.values()) == pytest.approx(lead)
        kin = [own[row] for row in ("FML", "FedKD", "FedAPEN") if row in own]
        assert fedmrl - max(kin) == pytest.approx(over_kin)


def test_fedrals_lead_and_its_second_best():
    values = cells("fedral-table-3")
    leads, second = {}, {}
    for column in claims()["fedral-table-3"].columns:
        own = {row: value for (row, other), value in values.items() if other == column.name}
        fedral = own.pop("FedRAL")
        leads[column.name] = round(fedral - max(own.values()), 2)
        second[column.name] = max(own, key=own.get)
    assert max(leads.values()) == leads["CIFAR-100, pathological"] == 5.03  # the abstract's
    elsewhere = {name for name, method in second.items() if method != "FedTGP"}
    remarks = claims()["fedral-table-3"].remarks
    assert elsewhere == {key.split(" | ")[1] for key in remarks if key.startswith("FedTGP")}


def test_ablation_and_figures_take_up_table_3():
    table = {column: value for (row, column), value in cells("fedral-table-3").items() if row == "FedRAL"}
    taken = {column: value for (row, column), value in cells("fedral-table-7").items() if row == "A"}
    assert taken.items() <= table.items()
    for figure, points in (
        (
            "fedral-figure-6",
            {"CIFAR-10, 2 classes": "CIFAR-10, pathological", "CIFAR-100, 10 classes": "CIFAR-100, pathological"},
        ),
        (
            "fedral-figure-7",
            {"CIFAR-10, alpha 0.4": "CIFAR-10, practical", "CIFAR-100, alpha 0.4": "CIFAR-100, practical"},
        ),
    ):
        for (method, column), value in cells(figure).items():
            assert value == cells("fedral-table-3")[method, points[column]]


def test_fedhenns_third_table_is_of_two_settings_of_cifar10():
    linear, personal = cells("fedhenn-table-3"), cells("fedhenn-table-2")
    assert linear["Linear CKA", "CIFAR-100"] == personal["FedHeNN, homogeneous", "CIFAR-10, 100 clients, 5 classes"]
    assert linear["Linear CKA", "CIFAR-100"] != personal["FedHeNN, homogeneous", "CIFAR-100, 100 clients, 20 classes"]
    assert "5 classes" in claims()["fedhenn-table-3"].remarks["Linear CKA | CIFAR-100"]


def test_psnr_under_dlg_is_that_of_no_attack():
    claim = claims()["fedral-table-5"]
    noise = next(guess for guess in claim.floors[0].guesses if guess.name == "uniform noise")
    assert all(row.values[0] < noise.psnr_db for row in claim.rows)
    attacked = {row.name: row.target for row in claim.rows}
    assert all(
        target in METHODS.load(row.method).uploads for row, target in zip(claim.rows, attacked.values(), strict=True)
    )
    # DLG itself needs all that an image's gradient passes through.
    assert {name for name, target in attacked.items() if target.endswith("model")} == {"FedKD", "FedAPEN"}


# ---------------------------------------------------------------- communication

RAL_COLUMNS = ("CIFAR-10, pathological", "CIFAR-100, pathological", "CIFAR-10, practical", "CIFAR-100, practical")


def counted(claim, row, column):
    """What a client sends in a round, in the cell's unit."""
    sizes = {**claim.sizes, **column.sizes, **row.sizes}
    if "option" in column.sizes:
        sizes["option"] = {**column.sizes["option"], **row.sizes.get("option", {})}
    measure = column.measure or claim.measure
    found = fedpriv.cost(row.method or column.method, **sizes).methods[0]["communication"]["paper"]
    unit = "bytes" if measure.bytes else "scalars"
    return found[f"{measure.what}_{unit}_per_round"] / sizes["clients"] / measure.every


@pytest.mark.parametrize(
    ("name", "differing"),
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


def test_fedral_sends_at_least_its_diagonal():
    """400 numbers are the printed cell; no number of blocks of a 500 x 500 matrix gives so few."""
    printed = cells("fedral-table-4-communication")["FedRAL, 500 blocks", RAL_COLUMNS[0]]
    assert f"{400 * 4 / 1024:.2f}" == f"{printed:.2f}"
    least = min(500 * 500 // blocks for blocks in range(1, 501) if 500 % blocks == 0)
    assert least == 500


def test_totals_of_fedrals_table_4():
    rounds = cells("fedral-table-4-rounds")
    sent = {(key[0].split(",")[0], key[1]): value for key, value in cells("fedral-table-4-communication").items()}
    computed = cells("fedral-table-4-computation")
    totals = {
        "FedTGP": ((1.15, 16.08), (6.75, 18.85), (6.64, 18.65), (69.24, 19.45)),
        "FedRAL": ((0.31, 5.54), (1.37, 3.97), (0.79, 2.87), (5.57, 4.07)),
    }
    for method, printed in totals.items():
        for column, (megabytes, gigabytes) in zip(RAL_COLUMNS, printed, strict=True):
            key = (method, column)
            assert sent[key] * rounds[key] / 1024 == pytest.approx(megabytes, abs=0.0051)
            assert computed[key] * rounds[key] / 1024 == pytest.approx(gigabytes, abs=0.0051)
    assert pytest.approx(12.43, abs=0.005) == 69.24 / 5.57
    assert math.floor(18.65 / 2.87 * 100) / 100 == 6.49


@pytest.mark.parametrize(("classes", "pairs", "kilobytes"), [(10, 789, "15.4"), (100, 6887, "134.5")])
def test_classes_that_clients_of_a_dirichlet_division_lack(classes, pairs, kilobytes):
    """FedTGP's practical cells count every class of every client; a real division has fewer."""
    labels = np.repeat(np.arange(classes), 60_000 // classes)
    parts = dirichlet_partition(labels, 100, 0.4, 0)
    assert sum(len(np.unique(labels[part])) for part in parts) == pairs
    assert f"{pairs * 500 * 4 / 100 / 1024:.1f}" == kilobytes
    remark = claims()["fedral-table-4-communication"].remarks[f"FedTGP | CIFAR-{classes}, practical"]
    assert f"{pairs:,} of {classes * 100:,}" in remark
    assert kilobytes in remark


# ---------------------------------------------------------------- computation


def forward(classes, *, head=True):
    """Operations of one image's forward pass, mean over CNN-1 to CNN-5, from the sizes in FedMRL's table 2."""
    each = []
    for channels, units in ((32, 2000), (16, 2000), (32, 1000), (32, 800), (32, 500)):
        convolutions = 28 * 28 * 16 * 75 + 10 * 10 * channels * 400
        linear = 25 * channels * units + units * 500 + (500 * classes if head else 0)
        each.append(2 * (convolutions + linear))
    return sum(each) / 5


def operations(method, classes, **more):
    sizes = {"clients": 5, "samples": 5, "models": "fedmrl-5", "operations": True, "classes": classes}
    return fedpriv.cost(method, **sizes, **more).methods[0]["operations"]


def test_fedrals_megabytes_are_four_times_a_forward_pass():
    """To the last digit, if the two middle columns are exchanged."""
    exchanged = dict(zip(RAL_COLUMNS, (10, 10, 100, 100), strict=True))
    for (method, column), printed in cells("fedral-table-4-computation").items():
        classes = exchanged[column]
        more = 500 * 500 if method == "FedRAL" else forward(classes, head=False)
        assert f"{4 * (forward(classes) + more) / 2**20:.2f}" == f"{printed:.2f}"
    named = {key for key, remark in claims()["fedral-table-4-computation"].remarks.items() if "exchanged" in remark}
    assert {key.split(" | ")[1] for key in named} == set(RAL_COLUMNS[1:3])


@pytest.mark.parametrize("classes", [10, 100])
def test_with_the_backward_pass_the_order_stays_and_the_ratio_does_not(classes):
    assert operations("local", classes)["prediction_per_image"] == forward(classes)
    fedtgp = operations("fedtgp", classes, pairs=10)["per_client_round"]
    fedral = operations("fedral", classes)["per_client_round"]
    assert 1.25 < fedtgp / fedral < 1.3
    assert 54.52 / 28.23 > 1.9
    remarks = claims()["fedral-table-4-computation"].remarks
    column = RAL_COLUMNS[0 if classes == 10 else 3]
    for name, found in (("FedTGP", fedtgp), ("FedRAL", fedral)):
        assert f"{found * 4 / 2**20:.1f}" in remarks[f"{name} | {column}"]


@pytest.mark.parametrize(("data", "classes", "pairs"), [("CIFAR-10", 10, 10), ("CIFAR-100", 100, 50)])
def test_fedmrls_operations_are_a_forward_pass_too(data, classes, pairs):
    """FedProto passes once more through its extractor; so a round of FedMRL costs less, though the text says more."""
    rounds, read_off = cells("fedmrl-figure-4-rounds"), cells("fedmrl-figure-4-computation")
    option = {"small_model": "cnn-5", "small_width": 100}
    fedmrl = operations("fedmrl", classes, option=option)
    passes = {"FedProto": forward(classes) + forward(classes, head=False), "FedMRL": fedmrl["prediction_per_image"]}
    for method, own in passes.items():
        printed = read_off["until the accuracy is reached", f"{method}, {data}"]
        assert own * rounds[method, data] / 1e9 == pytest.approx(printed, abs=0.1)
        remark = claims()["fedmrl-figure-4-computation"].remarks[f"until the accuracy is reached | {method}, {data}"]
        assert f"{own / 1e6:.2f} million" in remark
    assert passes["FedMRL"] < passes["FedProto"]
    assert fedmrl["per_client_round"] > operations("fedproto", classes, pairs=pairs)["per_client_round"]
