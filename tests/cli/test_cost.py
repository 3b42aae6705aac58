"""``fedpriv cost``: the figures it prints, where it takes sizes from, and what it asks for."""

import json

from command_line import done, refused
from looped import each

from fedpriv.datasets.partition import PartitionOptions
from fedpriv.federation.prepared import load_data
from fedpriv.federation.run_directory import RunConfig
from fedpriv.methods import METHODS


def cost(capsys, *arguments):
    return json.loads(done(capsys, "cost", "--json", *arguments))


def test_stated_sizes(capsys):
    found = cost(capsys, "--method", "fedgh", "--clients", "10", "--classes", "100", "--width", "512", "--pairs", "502")
    assert found["sizes"] == {"clients": 10, "classes": 100, "width": 512, "pairs": 502}
    (row,) = found["methods"]
    assert row["method"] == "fedgh"
    assert row["communication"]["paper"] == {
        "upload_scalars_per_round": 502 * 512,
        "broadcast_scalars_per_round": 513_000,
        "upload_bytes_per_round": 4 * 502 * 512,
        "broadcast_bytes_per_round": 2_052_000,
    }
    assert row["communication"]["full"]["upload_scalars_per_round"] == 502 * 513
    assert row["communication"]["full"]["upload_bytes_per_round"] == 502 * (4 * 512 + 8)


@each("partition", ["dirichlet", "iid"])
def test_sizes_from_data_are_those_of_the_division_that_a_run_would_have(capsys, partition):
    found = cost(capsys, "--method", "fedproto,fedallrep", "--partition", partition, "--clients", "7", "--seed", "3")
    data, _ = load_data(RunConfig(partition=PartitionOptions(name=partition), clients=7, seed=3))
    labels = [set(data.train(k).labels.tolist()) for k in range(7)]
    samples = sum(len(data.train(k)) for k in range(7))
    width = found["sizes"]["width"]
    proto, every = (row["communication"]["paper"] for row in found["methods"])
    assert proto["upload_scalars_per_round"] == width * sum(map(len, labels))
    assert proto["broadcast_scalars_per_round"] == 7 * width * len(set.union(*labels))
    assert every["upload_scalars_per_round"] == width * samples
    assert found["sizes"]["dataset"] == "fashion"


def test_heterogeneous_models_are_added_up_and_refused_where_one_is_needed(capsys):
    sizes = ("--classes", "10", "--clients", "3", "--public", "50", "--model")
    one = cost(capsys, "--method", "fedavg", *sizes, "cnn4")["methods"][0]["communication"]["paper"]
    assert one["upload_scalars_per_round"] == 3 * 878_538
    two = cost(capsys, "--method", "fedhenn", *sizes, "cnn4,resnet18")["methods"][0]["communication"]["paper"]
    wide = cost(capsys, "--method", "fedavg", *sizes, "resnet18")["methods"][0]["communication"]["paper"]
    assert 3 * two["upload_scalars_per_round"] == 2 * one["upload_scalars_per_round"] + wide["upload_scalars_per_round"]
    assert "one architecture" in refused(capsys, "cost", "--method", "fedavg", *sizes, "cnn4,resnet18")


def test_pairs_are_explained_by_an_example_that_works(capsys):
    sizes = ("--method", "fedgh", "--classes", "10", "--width", "128", "--clients", "10")
    told = refused(capsys, "cost", *sizes)
    assert "a client and a class that it holds" in told
    assert "10 clients that hold 3 classes each: pairs 30" in told
    counts = cost(capsys, *sizes, "--pairs", "30")["methods"][0]["communication"]["paper"]
    assert counts["upload_scalars_per_round"] == 30 * 128


def test_all_methods_at_once_with_what_is_missing(capsys):
    found = cost(capsys, "--method", "all", "--classes", "10", "--width", "512")
    assert [row["method"] for row in found["methods"]] == list(METHODS)
    missing = {row["method"]: row["missing"] for row in found["methods"] if "missing" in row}
    assert "pairs" in missing["fedgh"]
    assert "samples" in missing["fedallrep"]
    assert "models" in missing["fedavg"]
    assert "fedre" not in missing
    sizes = ("--classes", "10", "--model", "cnn4", "--pairs", "61", "--samples", "3000", "--public", "100")
    whole = cost(capsys, "--method", "all", *sizes, "--clusters", "17", "--compressed-scalars", "337428")
    assert all("communication" in row for row in whole["methods"])
