"""Operation counts against a model small enough to count by hand."""

import pytest
import torch
from compare import expect_same
from federations import small, train_small
from torch import nn

from fedpriv.datasets.types import Samples
from fedpriv.federation.method import ClientSetup, LocalTraining, NoOptions
from fedpriv.federation.operations import images_per_round, local_training_flops, training_flops_per_image
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint, SplitModel

BLUEPRINT = Blueprint("by hand", (1, 4, 5), 3, 7)


def linear_model():
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(20, 7)), nn.Identity(), nn.Linear(7, 3))


def client_setup(n_samples, blueprint=BLUEPRINT, model=None, **training):
    samples = Samples(torch.zeros(n_samples, *blueprint.image_shape), torch.zeros(n_samples, dtype=torch.int64))
    model = linear_model() if model is None else model
    return ClientSetup(0, blueprint, model, samples, LocalTraining(**training), NoOptions(), lambda wanted: model)


def test_two_linear_layers_by_hand():
    # Forward 20 x 7 and 7 x 3 multiply-adds; backward the same for both weights, and 7 x 3 for the inner activations
    # (none for the images): 140 + 21 + 140 + 21 + 21 = 343 multiply-adds.
    assert training_flops_per_image(linear_model(), BLUEPRINT) == 2 * 343


def test_a_convolution_by_hand():
    blueprint = Blueprint("by hand", (2, 5, 5), 3, 4)
    extractor = nn.Sequential(nn.Conv2d(2, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = SplitModel(extractor, nn.Identity(), nn.Linear(4, 3))
    # 3 x 3 places, 4 channels, 2 x 3 x 3 multiply-adds each, forward and for the weights; the head three times.
    assert training_flops_per_image(model, blueprint) == 2 * (2 * 9 * 4 * 18 + 3 * 12)


@pytest.mark.parametrize(
    ("training", "images"),
    [
        ({"batch_size": 4}, 10),
        ({"batch_size": 4, "drop_last": True}, 8),
        ({"batch_size": 4, "epochs": 3}, 30),
        ({"batch_size": 4, "max_steps": 1}, 4),
        ({"batch_size": 20, "drop_last": True}, 0),
    ],
)
def test_a_round_is_as_many_images_as_are_trained_on(training, images):
    found = local_training_flops([client_setup(10, **training), client_setup(5, batch_size=5)])
    assert images_per_round(client_setup(10, **training)) == images
    assert found.local_training_per_client_round == (images * 686, 5 * 686)
    assert found.mean_per_client_round == (images + 5) * 686 / 2


@pytest.mark.parametrize("name", ["cnn4", "resnet18", "mobilenet-v2"])
def test_operations_are_proportional_to_the_batch(name, monkeypatch):
    blueprint = Blueprint(name, (3, 32, 32), 10, 64)
    model = build_model(blueprint, 0)
    two = training_flops_per_image(model, blueprint)
    monkeypatch.setattr("fedpriv.federation.operations.COUNTED_BATCH", 5)
    assert training_flops_per_image(model, blueprint) == two


def test_a_runs_summary_holds_the_operations_of_its_clients(tmp_path):
    config = small("fedre", per_class=10, clients=3, rounds=1, models="small-cnn,small-mlp", capture="none")
    directory, federation = train_small(tmp_path / "run", config)
    found = directory.summary.flops
    images = [len(setup.train) for setup in federation.clients]
    first, second, third = found.local_training_per_client_round
    per_image = training_flops_per_image(federation.clients[0].model, federation.clients[0].blueprint)
    assert first == images[0] * per_image
    assert third == images[2] * per_image
    assert second != images[1] * per_image
    assert found.multiply_add_counts == 2


def test_counting_leaves_weights_and_random_streams_alone():
    blueprint = Blueprint("small-cnn", (1, 8, 8), 4, 16)
    model = build_model(blueprint, 0)
    before = [p.detach().clone() for p in model.parameters()]
    state = torch.get_rng_state()
    training_flops_per_image(model, blueprint)
    expect_same(state, torch.get_rng_state())
    for a, b in zip(before, model.parameters(), strict=True):
        expect_same(a, b)
    assert all(p.grad is None for p in model.parameters())
