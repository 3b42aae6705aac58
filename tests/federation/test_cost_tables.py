"""Published communication tables against what the methods' own descriptions of their traffic give, to the scalar.

Table 11 of Yao et al., FedRE: 10 clients, all taking part, thousands of scalars per round over all clients, labels left
out. Sizes: C classes; d = 512, but 2048 in every TinyImageNet cell; P = 61, 502 and 937 (client, class) pairs.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest

from fedpriv.federation.cost import communication, with_models
from fedpriv.methods import METHODS
from fedpriv.uploads.ledger import FederationSizes

K = 10


@dataclass(frozen=True)
class Column:
    """One data set of table 11: sizes, and the four-layer CNN or ResNet-50 of its homogeneous columns."""

    classes: int
    width: int
    pairs: int
    model: str
    side: int

    def facts(self, **more: Any) -> FederationSizes:
        facts = FederationSizes(clients=K, classes=self.classes, width=self.width, pairs=self.pairs, **more)
        return with_models(facts, self.model, (3, self.side, self.side))


COLUMNS = {
    "CIFAR-10": Column(10, 512, 61, "cnn4", 32),
    "CIFAR-100": Column(100, 512, 502, "cnn4", 32),
    "TinyImageNet": Column(200, 2048, 937, "resnet50", 64),
}


@dataclass(frozen=True)
class Cell:
    """A pair of cells of table 11, as printed in thousands, and exact."""

    method: str
    dataset: str
    printed: tuple[str, str]
    exact: tuple[int, int]
    sizes: dict[str, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


HEADS = {"CIFAR-10": ("51.30", 51_300), "CIFAR-100": ("513.00", 513_000), "TinyImageNet": ("4098.00", 4_098_000)}
PROTOTYPES = {"CIFAR-10": ("31.23", 31_232), "CIFAR-100": ("257.02", 257_024), "TinyImageNet": ("1918.98", 1_918_976)}
MODELS = {"CIFAR-10": 8_785_380, "CIFAR-100": 9_247_080, "TinyImageNet": 239_178_320}
MODELS_PRINTED = {"CIFAR-10": "8785.38", "CIFAR-100": "9247.08", "TinyImageNet": "239178.32"}
EVERY_CLASS = {"CIFAR-10": ("51.20", 51_200), "CIFAR-100": ("512.00", 512_000), "TinyImageNet": ("4096.00", 4_096_000)}


def cell(method: str, dataset: str, up: tuple[str, int], down: tuple[str, int], **more) -> Cell:
    return Cell(method, dataset, (up[0], down[0]), (up[1], down[1]), **more)


def models(method: str, dataset: str) -> Cell:
    size = (MODELS_PRINTED[dataset], MODELS[dataset])
    return cell(method, dataset, size, size)


AGREEING = [
    *(cell("lg-fedavg", name, HEADS[name], HEADS[name]) for name in COLUMNS),
    *(cell("fedproto", name, PROTOTYPES[name], EVERY_CLASS[name]) for name in COLUMNS),
    *(cell("fedtgp", name, PROTOTYPES[name], EVERY_CLASS[name]) for name in COLUMNS),
    # Q, the number of clusters, depends on training; each printed cell is 10 d Q for one whole number Q.
    *(
        cell("fpl", name, PROTOTYPES[name], (printed, exact), sizes={"clusters": clusters})
        for name, clusters, printed, exact in (
            ("CIFAR-10", 17, "87.04", 87_040),
            ("CIFAR-10", 22, "112.64", 112_640),
            ("CIFAR-100", 179, "916.48", 916_480),
            ("CIFAR-100", 231, "1182.72", 1_182_720),
            ("TinyImageNet", 477, "9768.96", 9_768_960),
            ("TinyImageNet", 516, "10567.68", 10_567_680),
        )
    ),
    # What a compressed model weighs depends on training; each printed cell is ten times one whole number.
    *(
        cell("fedkd", name, (printed, exact), (printed, exact), sizes={"compressed_scalars": exact // K})
        for name, printed, exact in (
            ("CIFAR-10", "3374.28", 3_374_280),
            ("CIFAR-10", "3353.68", 3_353_680),
            ("CIFAR-100", "4234.28", 4_234_280),
            ("CIFAR-100", "3524.67", 3_524_670),
            ("TinyImageNet", "90503.00", 90_503_000),
            ("TinyImageNet", "57544.97", 57_544_970),
        )
    ),
    # The small model is HtFLlib's: the four-layer CNN at the images' size, its 512 numbers pooled to 128 before the head.
    *(
        cell("fedmrl", name, size, size, options={"narrowing": "htfllib", "small_width": 128})
        for name, size in (
            ("CIFAR-10", ("8746.98", 8_746_980)),
            ("CIFAR-100", ("8863.08", 8_863_080)),
            ("TinyImageNet", ("56178.00", 56_178_000)),
        )
    ),
    *(models(method, name) for method in ("fedavg", "fedala") for name in COLUMNS),
    *(
        cell("fedre", name, (printed, exact), HEADS[name])
        for name, printed, exact in (
            ("CIFAR-10", "5.12", 5_120),
            ("CIFAR-100", "5.12", 5_120),
            ("TinyImageNet", "20.48", 20_480),
        )
    ),
]


def generator(classes: int, width: int, noise: int = 32, hidden: int = 512) -> int:
    """Two linear layers with biases, and batch normalisation between them."""
    return (noise + classes) * hidden + hidden + 2 * hidden + hidden * width + width


GENERATORS = {name: K * generator(column.classes, column.width) for name, column in COLUMNS.items()}

# (cell, the broadcast that the method really sends: a head and not prototypes; the generator, or the global mean too)
DIFFERING = [
    *((cell("fedgh", name, PROTOTYPES[name], EVERY_CLASS[name]), HEADS[name][1]) for name in COLUMNS),
    *((cell("fedgen", name, HEADS[name], HEADS[name]), HEADS[name][1] + GENERATORS[name]) for name in COLUMNS),
    *((models("fedgen-homogeneous", name), MODELS[name] + GENERATORS[name]) for name in COLUMNS),
    *((models("fedavgdbe", name), MODELS[name] + K * COLUMNS[name].width) for name in COLUMNS),
]


def planned(name: str, facts: FederationSizes, options: dict[str, Any]) -> dict[str, Any]:
    return communication(METHODS.load(name), facts, options)


def counted(entry: Cell) -> tuple[int, int]:
    facts = COLUMNS[entry.dataset].facts(**entry.sizes)
    paper = planned(entry.method, facts, entry.options)["paper"]
    return paper["upload_scalars_per_round"], paper["broadcast_scalars_per_round"]


def thousands(scalars: int) -> str:
    return f"{scalars / 1000:.2f}"


def test_table_11():
    assert len(AGREEING) + len(DIFFERING) == 45
    for entry in AGREEING:
        assert counted(entry) == entry.exact, entry
        assert tuple(map(thousands, entry.exact)) == entry.printed, entry
    for entry, sent in DIFFERING:  # something that is sent is left out of the printed cell
        assert tuple(map(thousands, entry.exact)) == entry.printed, entry
        assert counted(entry) == (entry.exact[0], sent), entry
        assert sent > entry.exact[1], entry


# ---------------------------------------------------------------- table 4: TinyImageNet, upload and broadcast together


@pytest.mark.parametrize(
    ("samples", "printed", "consistent"), [(82_176, "42160.39", 43_182_288), (82_368, "42258.88", 43_280_784)]
)
def test_fedallreps_cells_of_table_4(samples, printed, consistent):
    # Samples are those in whole batches of 64. The cell counts their labels, and adds the broadcast of a head of width
    # 2048 in thousands to an upload of width 512 in ones.
    narrow = FederationSizes(clients=K, classes=200, width=512, samples=samples)
    wide = FederationSizes(clients=K, classes=200, width=2048, samples=samples)
    upload = planned("fedallrep", narrow, {})["full"]["upload_scalars_per_round"]
    broadcast = planned("fedallrep", wide, {})["paper"]["broadcast_scalars_per_round"]
    assert upload == samples * 513
    assert broadcast == 4_098_000
    assert f"{(upload + broadcast / 1000) / 1000:.2f}" == printed
    assert upload + planned("fedallrep", narrow, {})["paper"]["broadcast_scalars_per_round"] == consistent


def test_fedres_cell_of_table_4():
    wide = planned("fedre", FederationSizes(clients=K, classes=200, width=2048), {})["paper"]
    assert thousands(sum(wide[f"{way}_scalars_per_round"] for way in ("upload", "broadcast"))) == "4118.48"
    narrow = planned("fedre", FederationSizes(clients=K, classes=200, width=512), {})
    totals = {
        kind: counts["upload_scalars_per_round"] + counts["broadcast_scalars_per_round"]
        for kind, counts in narrow.items()
    }
    assert totals == {"paper": 1_031_120, "full": 1_033_120}


# ---------------------------------------------------------------- FedRAL's table 4: one client's upload in KB, d = 500


def kilobytes(method: str, options: dict[str, Any], classes: int) -> str:
    facts = FederationSizes(clients=1, classes=100, width=500, pairs=classes)
    return f"{planned(method, facts, options)['paper']['upload_bytes_per_round'] / 1024:.2f}"


@pytest.mark.parametrize(("classes", "printed"), [(2, "3.91"), (10, "19.53"), (100, "195.31")])
def test_fedtgp_in_table_4_of_fedral(classes, printed):
    assert kilobytes("fedtgp", {}, classes) == printed


@pytest.mark.parametrize(("blocks", "printed"), [(100, "9.77"), (125, "7.81"), (25, "39.06"), (500, "1.95")])
def test_fedral_in_its_table_4(blocks, printed):  # the 1.56 that it also prints is below the diagonal alone
    assert kilobytes("fedral", {"blocks": [blocks]}, 10) == printed
