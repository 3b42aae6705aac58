"""Decision regions over the plane: the grid and its orientation, what a run keeps, its page, attacks that need images."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command_line import run as command

import fedpriv
from fedpriv.datasets import SourceOptions, load_dataset
from fedpriv.datasets.federated import PartitionOptions, federate
from fedpriv.federation.regions import FILE, MOST_CLIENTS, SIDE, load_regions, of_points, save_regions
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.pages.region_map import mean_confidence, region_map
from fedpriv.util.errors import UserError

PAPER = {"dataset": "plane", "models": "plane-mlp", "partition": "pathological", "clients": 2, "train_fraction": 0.6}
"""FedRE's figure 2, as far as the paper says what it was."""


def predict(setup, state, images):
    """Class 0 to the lower left of a line through the plane, surer farther from it; client 1 the other way round."""
    side = 5 * (images[:, 0, 0, 0] + 2 * images[:, 0, 0, 1] - 1.5) * state["sign"]
    return torch.stack([-side, side, torch.full_like(side, -50.0), torch.full_like(side, -50.0)], 1)


@pytest.fixture
def kept(tmp_path):
    data = federate(load_dataset("plane", SourceOptions()), PartitionOptions("pathological", train_fraction=0.6), 2, 0)
    setups = [SimpleNamespace(train=data.train(k)) for k in range(2)]
    method = SimpleNamespace(
        predict=predict, apply_broadcast=lambda setup, state, broadcast: {"sign": state["sign"] * broadcast}
    )
    states = [{"sign": torch.tensor(1.0)}, {"sign": torch.tensor(-1.0)}]
    run = RunDirectory(tmp_path)
    save_regions(run, data, method, setups, states, torch.tensor(1.0))
    return run, data


def test_regions_say_what_the_classifier_says_where(kept):
    found = load_regions(kept[0])
    axis = np.linspace(0, 1, SIDE)
    beyond = (
        axis[None, :] + 2 * axis[:, None] - 1.5
    )  # columns go along the first number of a point, rows along the second
    clear = np.abs(beyond) > 1e-6
    assert ((found.classes[0] == 1) == (beyond > 0))[clear].all()
    assert ((found.classes[1] == 1) == (beyond < 0))[clear].all()
    np.testing.assert_allclose(found.confidence[0], 1 / (1 + np.exp(-10 * np.abs(beyond))), atol=1e-6)
    assert mean_confidence(found) == pytest.approx(found.confidence.mean())


def test_samples_are_the_clients(kept):
    run, data = kept
    found = load_regions(run)
    assert (len(found.points), found.tests.sum(), found.n_classes) == (500, 200, 4)
    for k, client in enumerate(data.clients):
        for index, test in ((client.train_index, False), (client.test_index, True)):
            some = (found.holders == k) & (found.tests == test)
            assert (found.points[some] == data.dataset.samples.images[index].flatten(1).numpy()).all()
            assert (found.labels[some] == data.dataset.samples.labels[index].numpy()).all()


def test_the_picture_has_a_panel_for_each_client_and_is_the_same_again(kept):
    found = load_regions(kept[0])
    picture = region_map(found, "two clients")
    assert picture == region_map(found, "two clients")
    assert picture.count("<image") == 2


def test_damaged_regions_are_refused(kept):
    path = kept[0].path / FILE
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"regions.safetensors: damaged"):
        load_regions(kept[0])


def test_images_are_no_points():
    assert of_points(load_dataset("plane"))
    assert not of_points(load_dataset("digits"))


@pytest.fixture(scope="module")
def run():
    return fedpriv.train("fedre", **PAPER, strangers=0, rounds=3, lr=0.03)


def test_a_run_on_points_uploads_what_the_paper_says(run):
    """Figure 2: FedAllRep uploads all 300 representations, FedGH 4 prototypes, FedRE 2 entangled representations."""
    for method, vectors in (("fedallrep", 300), ("fedgh", 4), ("fedre", 2)):
        trained = run if method == "fedre" else fedpriv.train(method, **PAPER, strangers=0, rounds=1, lr=0.03)
        sent = trained.summary.communication.paper.upload_scalars_per_round
        assert sent == vectors * 16
        assert sum(total for _, total in trained.summary.accuracy["after_broadcast"].clients) == 200


def test_the_regions_of_a_run_are_those_of_its_last_state(run):
    """Taken at the test samples, nearest point of the grid, they agree with the accuracy after broadcast."""
    found = load_regions(RunDirectory.open(run.path))
    assert found.classes.shape == (2, SIDE, SIDE)
    columns, rows = np.rint(found.points[found.tests] * (SIDE - 1)).astype(int).T
    said = found.classes[found.holders[found.tests], rows, columns]
    right = (said == found.labels[found.tests]).mean()
    assert right == pytest.approx(run.summary.accuracy["after_broadcast"].final, abs=0.02)


def test_the_page_of_a_run_draws_its_regions(run, tmp_path):
    fedpriv.report(run, out=tmp_path / "page")
    assert (tmp_path / "page" / "regions-1-fedre.svg").is_file()
    for page in ("runs.html", "runs.md"):
        assert "Mean confidence over the plane" in (tmp_path / "page" / page).read_text()
    digits = fedpriv.train("local", dataset="digits", rounds=1, clients=2, models="small-mlp", per_class=20)
    fedpriv.report(digits, out=tmp_path / "other")
    assert not list((tmp_path / "other").glob("regions*"))
    assert not (digits.path / FILE).exists()


def test_many_clients_share_a_picture():
    run = fedpriv.train("local", **{**PAPER, "clients": 6, "partition": "iid"}, strangers=0, rounds=1)
    assert len(load_regions(RunDirectory.open(run.path)).classes) == MOST_CLIENTS


def test_attacks_that_return_images_are_left_out_and_inferences_stay(run, tmp_path, capsys):
    arguments = ["attack", "--run", str(run.path), "--target", "entangled", "--out", str(tmp_path / "out")]
    assert command(arguments) == 0
    assert "left out: attack 'unmix' returns images" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == ["membership", "property"]


def test_a_named_attack_that_returns_images_is_refused_in_one_line(run, tmp_path, capsys):
    arguments = [
        "attack",
        "--run",
        str(run.path),
        "--target",
        "entangled",
        "--attack",
        "dip",
        "--out",
        str(tmp_path / "out"),
    ]
    assert command(arguments) == 2
    line = "fedpriv: attack 'dip' returns images, and data set 'plane' has none: its samples are points of the plane"
    assert capsys.readouterr().err.strip() == line
    assert not (tmp_path / "out").exists()
