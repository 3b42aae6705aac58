"""Settings of divisions from the command line: published ones through ``data`` and ``cost``, refusals, a study's axis."""

import json
import re

from command_line import call
from looped import each

DIGITS = ("--dataset", "digits", "--auxiliary", 0)
RANDOM = ("--partition", "pathological", "--assignment", "random")


def clients(capsys, tmp_path, *arguments):
    code, out, err = call(capsys, "data", *DIGITS, *arguments, "--out", tmp_path / "data", "--force", "--json")
    assert code == 0, err
    return json.loads(out)["clients"]


@each("per_client", [2, 4, 6, 8, 10])
def test_any_number_of_classes_at_random(capsys, tmp_path, per_client):
    rows = clients(capsys, tmp_path, *RANDOM, "--classes-per-client", per_client, "--clients", 12, "--balanced")
    assert [row["classes"] for row in rows] == [per_client] * 12
    held = {name for row in rows for name in row["counts"]}
    assert len(held) == 10


def test_the_refusal_of_a_least_size_is_a_command_that_works(capsys, tmp_path):
    arguments = ("--clients", 30, "--alpha", 0.05, "--least-per-client", 29)
    code, _, err = call(capsys, "data", *DIGITS, *arguments, "--out", tmp_path / "data")
    assert code == 2
    assert err.count("\n") == 1
    best = int(re.search(r"use least_per_client[ =]'?(\d+)", err)[1])
    rows = clients(capsys, tmp_path, "--clients", 30, "--alpha", 0.05, "--least-per-client", best)
    assert min(row["train"] + row["test"] for row in rows) == best


def test_a_study_varies_them(capsys, tmp_path):
    study = tmp_path / "study.toml"
    study.write_text(
        'methods = ["fedproto"]\nattacks = ["membership"]\nseeds = [0]\n'
        '[axes]\nclasses_per_client = [2, 5]\nassignment = ["in_order", "random"]\n'
        '[federation]\ndataset = "digits"\nrounds = 1\nclients = 5\nmodels = "small-mlp"\npartition = "pathological"\n'
    )
    code, out, err = call(capsys, "audit", study, "--dry-run", "--out", tmp_path / "out", "--json")
    assert code == 0, err
    trained = {cell["method"] for cell in json.loads(out)["cells"] if cell["method"].startswith("fedproto")}
    assert len(trained) == 4
