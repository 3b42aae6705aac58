"""DP-SGD: what one image can move, noise, Poisson batches, accounting against a second library, every method's loss."""

import copy
import math
import warnings
from dataclasses import replace

import pytest
import torch
from compare import expect_close
from defense_cases import CLASSES, SHAPE, batch, plan_for, worked
from federations import CPU, small
from method_cases import World
from torch.nn.functional import cross_entropy

from fedpriv.defenses import parse_choice
from fedpriv.defenses.accounting import epsilon
from fedpriv.defenses.dp_sgd import DPSGD, private_step
from fedpriv.federation.defense import plain_step
from fedpriv.federation.local_training import local_batches, steps
from fedpriv.federation.method import GuardedTraining, LocalTraining
from fedpriv.federation.rounds import run, run_clients
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.methods import METHODS
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
from fedpriv.sources.run import prepare
from fedpriv.util.seeds import generator

# ---------------------------------------------------------------- the step


def test_a_clipped_sum_is_that_of_opacus():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.grad_sample import GradSampleModule

        model = build_model(Blueprint("small-cnn", SHAPE, CLASSES, 32), 0)
        images, labels = batch(6)
        found, _ = worked(model, private_step(plain_step, 0.7, 0.0), images, labels)
        ours = torch.cat([found[name].flatten() for name, _ in model.named_parameters()])
        twin = GradSampleModule(copy.deepcopy(model), loss_reduction="mean")
        cross_entropy(twin(images), labels).backward()
    each = torch.cat([p.grad_sample.flatten(1) for p in twin.parameters()], 1)
    norms = each.norm(dim=1)
    assert norms.min() > 0.7 or (norms > 0.7).any()
    theirs = (each * (0.7 / norms).clamp(max=1)[:, None]).mean(0)
    expect_close(ours, theirs, atol=1e-6)


# ---------------------------------------------------------------- batches


def test_poisson_batches_are_independent_draws_of_each_image():
    training = GuardedTraining(batch_size=5, epochs=300, poisson=True)
    batches = local_batches(20, training, generator(0))
    assert len(batches) == steps(20, training) == 4 * 300
    sizes = torch.tensor([float(len(b)) for b in batches])
    assert float(sizes.mean()) == pytest.approx(5, abs=0.3)
    assert float(sizes.var()) == pytest.approx(20 * 0.25 * 0.75, rel=0.15)
    held = torch.stack([torch.bincount(b, minlength=20) for b in batches]).double()
    assert held.max() == 1
    assert float((held.mean(0) - 0.25).abs().max()) < 0.06
    assert float((held[1:] * held[:-1]).mean()) == pytest.approx(1 / 16, abs=0.01)
    everything = local_batches(3, replace(training, epochs=1), generator(0))
    assert [len(b) for b in everything] == [3]


# ---------------------------------------------------------------- accounting


@pytest.mark.parametrize(
    ("z", "rate", "number"), [(1.0, 0.02, 500), (0.9, 0.1, 40), (4.0, 0.3, 100), (10.0, 1.0, 100), (1.3, 0.004, 10_000)]
)
def test_epsilon_agrees_with_a_second_accountant(z, rate, number):
    accounting = pytest.importorskip("dp_accounting")
    rdp = pytest.importorskip("dp_accounting.rdp")
    pld = pytest.importorskip("dp_accounting.pld")
    event = accounting.PoissonSampledDpEvent(rate, accounting.GaussianDpEvent(z))
    orders = [1 + tenths / 10 for tenths in range(4, 40)] + list(range(5, 130))  # below 1.4 theirs do not converge
    theirs = rdp.RdpAccountant(orders).compose(event, number).get_epsilon(1e-5)
    ours = epsilon(z, number, 1e-5, rate)
    assert ours == pytest.approx(theirs, rel=0.01)
    tighter = pld.PLDAccountant().compose(event, number).get_epsilon(1e-5)
    assert 0.8 * ours < tighter <= ours


def plan(**changes):
    own = Blueprint("small-cnn", SHAPE, CLASSES, 32)
    found = plan_for("model", train_sizes=(40, 7, 100), batch_size=10, blueprints=(own,) * 3, trained=(own,), rounds=5)
    return replace(found, **{"steps": (4, 1, 10)} | changes)


def test_the_worst_client_is_the_one_that_is_reported():
    record = DPSGD(noise_multiplier=2.0).privacy(plan())
    each = [epsilon(2.0, 20, 1e-5, 0.25), epsilon(2.0, 5, 1e-5, 1.0), epsilon(2.0, 50, 1e-5, 0.1)]
    assert record["epsilon"] == max(each)
    assert record["sampling"] == "poisson"
    assert not record["given"]
    assert record["not_protected"] == ["how many images the client holds"]
    wished = DPSGD(epsilon=3.0)
    assert 2.9 < wished.privacy(plan())["epsilon"] <= 3.0
    assert wished.multiplier(plan(rounds=50)) > wished.multiplier(plan())


# ---------------------------------------------------------------- every method


SEPARABLE = (
    *("local", "fedavg", "fedprox", "fedproto", "fedre", "fedgh", "fedallrep", "fedral", "fedmrl", "fedrep"),
    *("lg-fedavg", "fd", "fpl", "fedtgp", "fml", "fedhenn", "fedhenn-kernel", "fedhenn-homogeneous", "fedmd", "ds-fl"),
)
"""Methods whose loss on a batch is the mean of its losses on single images."""


def two_rounds(name, training):
    world = World(name)
    world.setups = [replace(setup, training=training) for setup in world.setups]
    server, broadcast, states = world.start()
    for number in (1, 2):
        server, broadcast, states, _ = world.round(number, server, broadcast, states)
    return states


@pytest.mark.parametrize("name", sorted(set(METHODS)))
def test_the_gradients_of_every_methods_loss_come_image_by_image(name):
    plain = LocalTraining(learning_rate=0.05)
    fields = {key: getattr(plain, key) for key in plain.__dataclass_fields__}
    bounded = GuardedTraining(**fields, guards=(lambda step: private_step(step, 1e9, 0.0),))
    found, expected = two_rounds(name, bounded), two_rounds(name, plain)
    assert all(value.isfinite().all() for state in found for value in state.values())
    if name in SEPARABLE:
        for one, two in zip(found, expected, strict=True):
            for key in one:
                expect_close(one[key].double(), two[key].double(), atol=2e-5, what=key)


def test_every_method_with_a_side_channel_is_refused_and_no_other():
    methods = [METHODS.load(name) for name in METHODS]
    refused = {method.name for method in methods if method.non_sgd_computation(method.options())}
    assert refused == {"fedala", "fedapen", "fedavgdbe"}


CONFIG = small("fedavg", models="small-mlp", per_class=10, clients=3, rounds=2)


def test_a_run_is_accounted_for_with_the_steps_that_it_took(tmp_path, monkeypatch):
    config = replace(
        CONFIG, method="fedrep", options={"head_epochs": 3}, defenses=(parse_choice("dp-sgd:noise_multiplier=3"),)
    )
    federation = prepare(config, CPU)
    taken = []

    def counting(step):
        def count(work, images, labels):
            taken.append(len(labels))
            return step(work, images, labels)

        return count

    (guard,) = federation.clients[0].training.guards
    spied = replace(federation.clients[0].training, guards=(guard, counting))
    clients = tuple(replace(setup, training=spied) for setup in federation.clients)
    directory = RunDirectory.create(tmp_path / "run", config)
    run(replace(federation, clients=clients), directory, run_clients)
    record = directory.summary.privacy[0]
    smallest = min(len(setup.train) for setup in federation.clients)
    assert record["releases"] * 3 == len(taken) == 3 * 2 * (3 + 1) * math.ceil(smallest / 10)
    assert record["epsilon"] == epsilon(3.0, record["releases"], 1e-5, 10 / smallest)
    assert len(set(taken)) > 1
