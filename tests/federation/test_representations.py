"""Representations of a stored run, for a picture of any method."""

import numpy as np
import pytest
import torch
from compare import expect_close, expect_same
from federations import CPU, small, train_small

from fedpriv.federation.evaluate import stored_representations
from fedpriv.federation.local_training import represent
from fedpriv.federation.states import put
from fedpriv.methods import METHODS
from fedpriv.pages.representation_map import representation_map, silhouette, words
from fedpriv.sources.federation import prepare

SETTINGS = {"per_class": 14, "clients": 3, "rounds": 1, "models": "small-mlp", "capture": "none"}


@pytest.mark.parametrize("name", ["fedre", "fedmrl"])
def test_test_images_are_represented_by_the_client_that_holds_them(tmp_path, name):
    run, federation = train_small(tmp_path / "run", small(name, **SETTINGS))
    found = stored_representations(prepare(run.config, CPU), run, "images")
    assert (found.of, found.round) == ("images", 1)
    assert len(found.features) == sum(map(len, federation.tests))
    for setup, test in zip(federation.clients, federation.tests, strict=True):
        put(setup.model, run.client_state(1, setup.client), "model")
        own = found.clients == setup.client
        expect_close(found.features[own], represent(setup.model, test.images))
        expect_same(found.classes[own], test.labels)


def test_prototypes_are_the_class_means_that_a_client_would_upload(tmp_path):
    run, federation = train_small(tmp_path / "run", small("fedgh", **SETTINGS | {"capture": "all"}))
    found = stored_representations(federation, run, "prototypes")
    sent = torch.cat([run.message(run.upload_path(1, k))[0].features for k in range(3)])
    expect_close(found.features, sent)


def test_many_images_are_thinned_evenly_and_clients_of_no_round_are_left_out(tmp_path, monkeypatch):
    settings = SETTINGS | {"clients": 4, "participation": 0.5}
    run, federation = train_small(tmp_path / "run", small("fedavg", **settings))
    absent = federation.unsampled(1)
    everything = stored_representations(federation, run, "images")
    assert set(everything.clients.tolist()) == set(range(4)) - set(absent)
    monkeypatch.setattr("fedpriv.federation.evaluate.MOST_IMAGES", 10)
    few = stored_representations(federation, run, "images")
    assert 2 <= len(few.features) <= 10 + 2
    assert set(few.clients.tolist()) == set(everything.clients.tolist())


def test_every_method_keeps_a_private_model_that_can_be_drawn(tmp_path):
    """What a state must hold for a map: parameters of ``model``."""
    from method_cases import World

    for name in METHODS:
        world = World(name)
        setup = world.setups[0]
        assert any(key.startswith("model.") for key in world.method.init(setup, world.rng(0))), name


def test_the_map_says_how_vectors_lie_in_their_own_space(tmp_path):
    run, federation = train_small(tmp_path / "run", small("fedre", **SETTINGS))
    found = stored_representations(federation, run, "images")
    shown = representation_map(found)
    assert shown.map.points.shape == (len(found.features), 2)
    assert np.isfinite(shown.map.points).all()
    assert shown.by_class == silhouette(found.features.numpy().astype(np.float64), found.classes.numpy())
    alt, caption = words(shown, "fedre <&>")
    assert f"{len(found.features)} test images of 3 clients of fedre <&> after round 1" in alt
    assert f"of classes {shown.by_class:.2f}, of clients {shown.by_client:.2f}" in caption


def test_silhouette_by_hand():
    points = np.array([[0.0], [1.0], [10.0], [11.0]])
    # Within 1; to the others 10.5 or 9.5: 1 - 1/10.5 and 1 - 1/9.5.
    assert silhouette(points, np.array([0, 0, 1, 1])) == pytest.approx(1 - (1 / 10.5 + 1 / 9.5) / 2)
    assert silhouette(points, np.array([0, 1, 0, 1])) < 0
    assert silhouette(points, np.zeros(4)) is None
    assert silhouette(points, np.arange(4)) is None
