"""Operation counts against a model small enough to count by hand."""

from dataclasses import replace

import pytest
import torch
from compare import expect_same
from federations import small, train_small
from method_cases import World, copies, played, same
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedpriv.datasets.types import Samples
from fedpriv.federation.cost import (
    PlannedClients,
    client_operations,
    images_per_round,
    planned_operations,
    step_operations,
    training_flops_per_image,
)
from fedpriv.federation.method import ClientSetup, GuardedTraining, LocalTraining, NoOptions, ServerSetup
from fedpriv.federation.states import take
from fedpriv.methods import METHODS
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.util.seeds import generator

BLUEPRINT = Blueprint("by hand", (1, 4, 5), 3, 7)


def linear_model():
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(20, 7)), nn.Identity(), nn.Linear(7, 3))


def client_setup(n_samples, blueprint=BLUEPRINT, model=None, **training):
    samples = Samples(torch.zeros(n_samples, *blueprint.image_shape), torch.zeros(n_samples, dtype=torch.int64))
    model = linear_model() if model is None else model
    return ClientSetup(0, blueprint, model, samples, LocalTraining(**training), NoOptions(), lambda wanted: model)


def local_method(**changes):
    """Training alone, by whatever model the client has: those of this file are in no registry."""
    return replace(METHODS.load("local"), init=lambda setup, rng: take(setup.model, "model"), **changes)


def server_setup(setup):
    return ServerSetup(1, setup.blueprint, setup.options, setup.scratch, torch.device("cpu"))


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
    method = local_method()
    setups = [client_setup(10, **training), client_setup(5, batch_size=5)]
    found = client_operations(method, setups, server_setup(setups[0]))
    assert images_per_round(client_setup(10, **training)) == images
    assert found.local_training_per_client_round == (images * 686, 5 * 686)
    assert found.mean_local_training_per_client_round == (images + 5) * 686 / 2
    # The reference method computes nothing else; one prediction is the forward pass alone.
    assert found.per_client_round == found.local_training_per_client_round
    assert found.prediction_per_image == (2 * (140 + 21),) * 2


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
    # Beside training: every image is represented once, then mixed into one vector.
    own = federation.clients[0]
    head = 2 * own.width * own.n_classes
    forward = found.prediction_per_image[0] - head
    assert found.per_client_round[0] == first + images[0] * (forward + 2 * own.width)


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


# ---------------------------------------------------------------- what methods add


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_round_has_the_operations_that_a_real_client_step_of_a_later_round_computes(name):
    # Learning rates of diverging runs change nothing of what is computed, but NaN has no decomposition.
    options = {"learning_rate": 0.001} if name.startswith("fedgen") else {}
    world = World(name, options, batch_size=4, epochs=2, learning_rate=0.01)
    _, broadcast, states, _ = played(world, rounds=3)
    for setup, state in zip(world.setups, states, strict=True):
        with FlopCounterMode(display=False) as counter:
            world.method.client_step(setup, state, broadcast, generator(0, "counted"))
        found = step_operations(world.method, setup, world.server).of_round(world.method, setup)
        # Shares of 5 to 11 images are rounded, and FedGen's generator rests in a tail of one image.
        rounded = name in ("fedala", "fedapen") or name.startswith("fedgen")
        assert found == pytest.approx(counter.get_total_flops(), rel=0.03 if rounded else 0)


def test_shares_of_a_round_number_of_images_are_exact():
    for name in ("fedala", "fedapen"):
        world = World(name, {}, batch_size=5, learning_rate=0.01)
        world.setups = [with_images(setup, 40) for setup in world.setups]
        _, broadcast, states, _ = played(world, rounds=3)
        with FlopCounterMode(display=False) as counter:
            world.method.client_step(world.setups[0], states[0], broadcast, generator(0, "counted"))
        found = step_operations(world.method, world.setups[0], world.server).of_round(world.method, world.setups[0])
        assert found == counter.get_total_flops()


def with_images(setup, number):
    rng = generator(0, "more images", setup.client)
    labels = torch.randint(setup.n_classes, (number,), generator=rng)
    return replace(setup, train=Samples(torch.rand(number, *setup.blueprint.image_shape, generator=rng), labels))


def test_the_smallest_network_of_the_angle_paper():
    # CNN-5, 3 x 32 x 32, 500 wide: an angle matrix of 500 x 500 is one more layer, forward, for itself and for what is
    # below it. 1.10 times local training, as counted on real losses.
    found = planned_operations(
        METHODS.load("fedral"),
        PlannedClients((Blueprint("cnn-5", (3, 32, 32), 10, 500),), (40,), LocalTraining(epochs=2)),
        {},
    )
    extra = 80 * 3 * 2 * 500 * 500
    assert found["per_client_round"] == found["local_training_per_client_round"] + extra
    assert found["ratio_to_local"] == pytest.approx(1.0976, abs=1e-4)


def test_guards_of_defenses_count_with_the_step():
    setup = client_setup(12, batch_size=4)
    private = replace(setup, training=GuardedTraining(batch_size=4, guards=(lambda step: twice(step),), poisson=True))
    method = local_method()
    (plain,), (guarded,) = (
        client_operations(method, [one], server_setup(one)).per_client_round for one in (setup, private)
    )
    assert guarded == 2 * plain


def twice(step):
    def both(work, images, labels):
        step(work, images, labels)
        return step(work, images, labels)

    return both


def test_a_method_that_cannot_be_counted_costs_no_run():
    def broken(setup, state, broadcast, rng):
        raise RuntimeError("needs a hundred images\nat least")

    setup = client_setup(10)
    method = local_method(client_step=broken)
    found = client_operations(method, [setup], server_setup(setup))
    assert found.not_counted == "RuntimeError: needs a hundred images"
    assert (found.per_client_round, found.mean_per_client_round, found.ratio_to_local) == ((), None, None)
    assert found.local_training_per_client_round == (10 * 686,)


@pytest.mark.parametrize("name", ["fedgen", "fedala", "fedkd"])
def test_counting_draws_nothing_from_global_generators_and_changes_no_state(name):
    world = World(name, {}, batch_size=4)
    _, _, states, _ = played(world, rounds=2)
    frozen, images = [copies(state) for state in states], world.setups[0].train.images.clone()
    before, noted = torch.get_rng_state(), len(world.setups[0].trace.result().phases)
    client_operations(world.method, world.setups, world.server)
    expect_same(before, torch.get_rng_state())
    assert all(same(one, other) for one, other in zip(states, frozen, strict=True))
    expect_same(images, world.setups[0].train.images)
    assert len(world.setups[0].trace.result().phases) == noted
