"""Validation images: set aside before anybody gets some, judged class by class, in lines, summary and page."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command_line import call

import fedpriv
from fedpriv.datasets import load_dataset
from fedpriv.datasets.federated import public_split, validation_split
from fedpriv.datasets.types import Samples
from fedpriv.federation.evaluate import validate
from fedpriv.federation.prepared import load_data, places, refuse_useless
from fedpriv.federation.run_directory import RunConfig, RunDirectory
from fedpriv.util.errors import UserError


@dataclass(frozen=True)
class Client:
    """What validation takes of a client."""

    client: int
    train: Samples
    options: object = None
    representation_cache: object = None


def client(number, *labels):
    return Client(number, Samples(torch.zeros(len(labels), 1, 1, 1), torch.tensor(labels)))


VALIDATION = Samples(torch.arange(6.0).view(6, 1, 1, 1), torch.tensor([0, 1, 2, 0, 1, 0]))


def test_a_client_is_judged_on_the_images_of_its_classes():
    assert places(VALIDATION, client(0, 1, 1, 0)).tolist() == [0, 1, 3, 4, 5]
    assert places(VALIDATION, client(0, 2)).tolist() == [2]
    assert places(VALIDATION, client(0, 7)).tolist() == []


def test_accuracy_by_hand():
    """A method that says class 0, and after the broadcast class 1; client 2 has no validation image and does not count."""

    def predict(setup, state, images):
        return torch.nn.functional.one_hot(torch.full((len(images),), state["says"]), 8).float()

    method = SimpleNamespace(
        predict=predict,
        extra_predictors={},
        further_predictors=lambda options: {},
        apply_broadcast=lambda setup, state, broadcast: {"says": broadcast},
    )
    clients = [client(0, 0, 1), client(1, 1, 2), client(2, 7)]
    found = validate(method, clients, VALIDATION, [{"says": 0}] * 3, 1)
    assert set(found) == {"after_training", "after_broadcast"}
    assert found["after_training"].pooled == 3 / 8
    assert found["after_training"].mean_over_clients == pytest.approx((3 / 5 + 0 / 3) / 2)
    assert found["after_broadcast"].pooled == 4 / 8
    assert found["after_broadcast"].mean_over_clients == pytest.approx((2 / 5 + 2 / 3) / 2)


def test_images_that_no_client_can_be_judged_on_are_refused():
    refuse_useless(VALIDATION, [client(0, 7), client(1, 2)])
    with pytest.raises(UserError, match="validation=6: none of these images is of a class that a client trains on"):
        refuse_useless(VALIDATION, [client(0, 7)])


def test_nobody_else_has_them_and_the_rest_is_divided_as_if_they_had_never_been():
    config = RunConfig(dataset="digits", per_class=100, validation=150, public=50, clients=4)
    data, public = load_data(config)
    assert len(data.validation) == 150
    seen = {image.numpy().tobytes() for image in data.validation.images}
    held = [data.train(k).images for k in range(4)] + [data.test(k).images for k in range(4)]
    held += [data.strangers.attacker.images, data.strangers.others.images, public.images]
    assert sum(map(len, held)) == 1000 - 150
    assert not seen & {image.numpy().tobytes() for images in held for image in images}
    plain, _ = load_data(RunConfig(dataset="digits", per_class=100, clients=4))
    assert plain.validation is None


def test_the_choice_is_not_that_of_public_images():
    digits = load_dataset("digits")
    assert not torch.equal(validation_split(digits, 100, 0)[1].images, public_split(digits, 100, 0)[1].images)
    with pytest.raises(UserError, match=r"number of validation images is 1797: of 1797 images it must be 1\.\.1796"):
        validation_split(digits, 1797, 0)


def test_training_does_not_look_at_them_and_every_round_says_how_good_they_are(tmp_path, capsys, monkeypatch):
    arguments = (
        "train",
        "--method",
        "fedre",
        "--dataset",
        "digits",
        "--clients",
        4,
        "--rounds",
        2,
        "--models",
        "small-mlp",
    )
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = call(capsys, *arguments, "--partition", "iid", "--validation", 200, "--out", tmp_path / "run")
    assert code == 0
    assert "validation, after training" in out
    run = RunDirectory.open(tmp_path / "run")
    lines, summary = run.rounds(), run.summary
    for when in ("after_training", "after_broadcast"):
        rounds = [line.validation[when] for line in lines]
        told = summary.validation[when]
        assert (told.pooled, told.mean_over_clients) == (rounds[-1].pooled, rounds[-1].mean_over_clients)
        assert told.best == max(one.mean_over_clients for one in rounds)
        assert rounds[told.best_round - 1].mean_over_clients == told.best
        # both are of images that the clients' models never saw, so they are near each other
        assert told.pooled == pytest.approx(summary.accuracy[when].pooled, abs=0.2)
    fedpriv.report(tmp_path / "run", out=tmp_path / "page")
    assert "Accuracy on validation images" in (tmp_path / "page" / "runs.html").read_text()
    assert f"{summary.validation['after_training'].mean_over_clients}" in (tmp_path / "page" / "runs.csv").read_text()


def test_a_resumed_run_says_the_same(tmp_path):
    settings = {"dataset": "digits", "clients": 3, "models": "small-mlp", "validation": 60, "per_class": 40}
    whole = fedpriv.train("fedgh", rounds=2, out=tmp_path / "whole", **settings)
    lines = RunDirectory.open(whole.path).rounds()
    assert np.isfinite([one.pooled for line in lines for one in line.validation.values()]).all()
    again = fedpriv.train("fedgh", rounds=2, out=tmp_path / "again", **settings)
    assert again.summary.validation == whole.summary.validation
