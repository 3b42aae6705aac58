"""What FedHeNN leaves to choose: weights of clients, Procrustes distance, momentum that goes on, RBF kernels."""

import pytest
import torch
from compare import expect_close, expect_same
from method_cases import CLASSES, SHAPE, SIZES, WIDTH, World, played, same
from torch.nn.functional import cross_entropy

from fedpriv.algebra.matrices import linear_kernel, procrustes_distance, rbf_kernel
from fedpriv.federation.local_training import local_batches, represent
from fedpriv.federation.method import LocalTraining, Plan
from fedpriv.federation.states import put
from fedpriv.methods import METHODS
from fedpriv.methods.shared import alignment as aligned
from fedpriv.models.split import Blueprint
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator
from fedpriv.wire.payloads import Coefficient, Kernel, Model, PublicImages, get_payload

VARIANTS = ("fedhenn", "fedhenn-kernel", "fedhenn-homogeneous")
TINY = 1e-6


def kernels_of(world, states, images, make=linear_kernel):
    found = []
    for setup, state in zip(world.setups, states, strict=True):
        put(setup.model, state, "model")
        found.append(make(represent(setup.model, images)))
    return found


def test_clients_weigh_in_the_reference_as_told_whoever_took_part():
    world = World("fedhenn", {"client_weights": [1.0, 5.0], "rad_size": 6})
    server, broadcast, states = world.start()
    _, broadcast, states, _ = world.round(1, server, broadcast, states, chosen=(1,))
    kernels = kernels_of(world, states, get_payload(broadcast, PublicImages).images)
    by_hand = (1 * kernels[0] + 5 * kernels[1] + 1 * kernels[2]) / 7  # client 2 takes the first weight again
    expect_close(get_payload(broadcast, Kernel).matrix, by_hand, rtol=1e-4, atol=1e-5)


def test_in_the_kernel_variant_the_rounds_clients_weigh_as_told():
    world = World("fedhenn-kernel", {"client_weights": [1.0, 5.0, 2.0], "rad_size": 6})
    server, broadcast, states = world.start()
    _, broadcast, _, uploads = world.round(1, server, broadcast, states, chosen=(1, 2))
    sent = [get_payload(upload, Kernel).matrix for _, upload in uploads]
    expect_close(get_payload(broadcast, Kernel).matrix, (5 * sent[0] + 2 * sent[1]) / 7, rtol=1e-5)


def test_equal_weights_are_the_default():
    plain, told = (played(World("fedhenn", {"weight": 1.0} | more))[2] for more in ({}, {"client_weights": [3.0]}))
    for one, other in zip(plain, told, strict=True):
        assert all(torch.allclose(value, other[name], atol=1e-6) for name, value in one.items())


@pytest.mark.parametrize(
    ("method", "option"),
    [
        ("fedhenn", {"client_weights": [0.0]}),
        ("fedhenn", {"distance": "procrustes"}),  # representations of different networks have no common axes
        ("fedhenn-kernel", {"distance": "procrustes"}),
        ("fedhenn-homogeneous", {"client_weights": [1.0]}),
    ],
    ids=str,
)
def test_options_that_mean_nothing_are_refused(method, option):
    with pytest.raises(UserError, match=next(iter(option))):
        parse(METHODS.load(method).options, option, "options")


@pytest.mark.parametrize(("kernel", "make"), [("linear", linear_kernel), ("rbf", rbf_kernel)])
def test_the_reference_is_made_of_the_kernel_asked_for(kernel, make):
    world = World("fedhenn", {"kernel": kernel, "rad_size": 6})
    _, broadcast, states = world.start()
    kernels = kernels_of(world, states, get_payload(broadcast, PublicImages).images, make)
    expect_close(get_payload(broadcast, Kernel).matrix, sum(kernels) / 3, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- Procrustes


@pytest.mark.parametrize("rad_batch", [None, 4])
def test_procrustes_pulls_representations_towards_those_of_the_model_received(rad_batch):
    """Two steps by hand: the first is FedAvg's, since a model is at distance zero from itself; the second is not."""
    options = {"distance": "procrustes", "weight": 3.0, "schedule": "constant", "rad_size": 6, "rad_batch": rad_batch}
    world = World("fedhenn-homogeneous", options, batch_size=4, max_steps=2, learning_rate=0.1)
    _, broadcast, states = world.start()
    setup, rng = world.setups[0], generator(4)
    after, upload = world.method.client_step(setup, states[0], broadcast, rng)
    images, model = get_payload(broadcast, PublicImages).images, setup.model
    assert float(get_payload(broadcast, Coefficient).value) == 3
    put(model, states[0], "model")
    fixed = model.represent(images).detach()
    again = generator(4)
    batches = local_batches(len(setup.train), setup.training, again)
    torch.randint(2**62, (1,), generator=again)
    for step, index in enumerate(batches):
        some = torch.arange(6) if rad_batch is None else torch.randperm(6, generator=again)[:rad_batch]
        batch, labels = setup.train.batch(index)
        alone = cross_entropy(model(batch), labels)
        distance = procrustes_distance(model.represent(images[some]), fixed[some])
        slopes = torch.autograd.grad(alone + 3 * distance, list(model.parameters()), retain_graph=True)
        plain = torch.autograd.grad(alone, list(model.parameters()))
        same_step = all(torch.allclose(a, b, atol=1e-4) for a, b in zip(slopes, plain, strict=True))
        assert same_step is (step == 0)
        with torch.no_grad():
            for parameter, slope in zip(model.parameters(), slopes, strict=True):
                parameter -= 0.1 * slope
    for name, value in model.named_parameters():
        expect_close(after[f"model.{name}"], value, atol=1e-4)
        expect_same(get_payload(upload, Model).state[name], after[f"model.{name}"])


# ---------------------------------------------------------------- momentum


def plan(options, momentum):
    blueprint = Blueprint("small-cnn", SHAPE, CLASSES, WIDTH)
    return Plan((blueprint,) * 3, options, True, SIZES, LocalTraining(momentum=momentum))


@pytest.mark.parametrize("name", VARIANTS)
def test_kept_momentum_makes_two_rounds_of_one_step_two_steps_of_one_optimiser(name):
    """With eta zero and one batch of everything, a client alone takes the steps of one SGD that is never restarted."""
    options = {"weight": 0, "keep_momentum": True}
    training = {"batch_size": 99, "max_steps": 1, "learning_rate": 0.1, "momentum": 0.9}
    world = World(name, options, **training)
    server, broadcast, states = world.start()
    setup = world.setups[1]
    put(setup.model, states[1], "model")
    optimiser = torch.optim.SGD(setup.model.parameters(), lr=0.1, momentum=0.9)
    ends = []
    for _ in range(3):
        optimiser.zero_grad()
        cross_entropy(setup.model(setup.train.images), setup.train.labels).backward()
        optimiser.step()
        ends.append({key: value.detach().clone() for key, value in setup.model.named_parameters()})
    for number, end in enumerate(ends, start=1):
        server, broadcast, states, _ = world.round(number, server, broadcast, states, chosen=(1,))
        for key, value in end.items():
            expect_close(states[1][f"model.{key}"], value, atol=1e-6)
    restarted = World(name, {"weight": 0}, **training)
    two = played(restarted, 2)[2]
    assert not any(key.startswith("velocity.") for key in two[1])
    assert not torch.allclose(two[1]["model.head.weight"], ends[1]["head.weight"], atol=1e-4)


def test_a_client_that_sits_out_keeps_its_momentum_and_nobody_elses():
    world = World("fedhenn", {"keep_momentum": True}, momentum=0.9)
    server, broadcast, states = world.start()
    server, broadcast, first, _ = world.round(1, server, broadcast, states)
    _, _, second, _ = world.round(2, server, broadcast, first, chosen=(0,))
    assert same(first[2], second[2])
    for key in ("velocity.head.weight", "velocity.extractor.0.weight"):
        assert float((first[0][key] - first[2][key]).abs().max()) > TINY
        assert float((first[0][key] - second[0][key]).abs().max()) > TINY


@pytest.mark.parametrize("name", VARIANTS)
def test_keeping_momentum_that_there_is_none_of_is_refused(name):
    method = METHODS.load(name)
    options = method.options(keep_momentum=True)
    method.check(plan(options, 0.9))
    with pytest.raises(UserError, match=r"keep_momentum, but clients train without momentum; pass momentum=0\.9"):
        method.check(plan(options, 0.0))
    method.check(plan(method.options(), 0.0))


@pytest.mark.parametrize("name", ["fedhenn", "fedhenn-homogeneous"])
def test_the_protocol_says_that_momentum_goes_on(name):
    method = METHODS.load(name)
    said = [method.public_loss(method.options(keep_momentum=True, weight=0), round_).besides for round_ in (1, 2)]
    assert said == ["", "momentum of earlier rounds moves the weights as well"]
    assert aligned.mixture_weight(aligned.MixtureOptions(), 7) == 1
