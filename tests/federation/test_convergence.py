"""Estimates of the constants of FedRE's convergence proof, against cases worked out by hand."""

from dataclasses import replace

import pytest
import torch
from compare import expect_close, expect_same
from federations import files, small, train_small
from method_cases import World, copies, played
from torch.nn.functional import cross_entropy

from fedpriv.federation.convergence import MeasuredStep, full_gradient, measure, overall
from fedpriv.federation.states import put
from fedpriv.federation.summary import ClientConvergence, ConvergenceLine
from fedpriv.wire.payloads import Classifier, Model, get_payload


def world_after(name, rounds=1, **training):
    world = World(name, {}, **({"batch_size": 4, "learning_rate": 0.1} | training))
    server, broadcast, states, _ = played(world, rounds)
    _, answer, after, _ = world.round(rounds + 1, server, broadcast, states)
    steps = [MeasuredStep(*three) for three in zip(world.setups, states, after, strict=True)]
    return world, steps, broadcast, answer


def test_the_full_gradient_and_the_variance_of_its_batches():
    world = World("local", {}, batch_size=4)
    setup = world.setups[0]
    state = world.method.init(setup, world.rng(0))
    batches = list(torch.arange(11).split(4))
    mean, variance = full_gradient(setup, state, batches)
    put(setup.model, state, "model")
    setup.model.eval()

    def gradient(index):
        images, labels = setup.train.batch(index)
        loss = cross_entropy(setup.model(images), labels)
        slopes = torch.autograd.grad(loss, list(setup.model.parameters()))
        return torch.cat([slope.flatten() for slope in slopes]).double()

    whole = gradient(torch.arange(11))
    expect_close(mean, whole, atol=1e-6)
    spread = sum(len(index) / 11 * float((gradient(index) - whole).square().sum()) for index in batches)
    assert variance == pytest.approx(spread, rel=1e-4)
    assert full_gradient(setup, state, [torch.arange(11)])[1] == pytest.approx(0, abs=1e-9)


def test_a_quadratic_has_the_smoothness_of_its_curvature():
    # One step of plain SGD on the whole set moves by minus the rate times the gradient: what the weights moved is known.
    world, (step, *_), broadcast, answer = world_after("fedre", batch_size=20)
    line = measure(world.method, [step], broadcast, answer, seed=0, round_=2)
    (found,) = line.clients
    started = world.method.apply_broadcast(step.setup, step.before, broadcast)
    whole = [torch.arange(len(step.setup.train))]
    begin, _ = full_gradient(step.setup, started, whole)
    end, _ = full_gradient(step.setup, step.after, whole)
    moved = 0.1 * float(begin.norm())
    assert found.gradient == pytest.approx(float(begin.square().sum()), rel=1e-6)
    assert found.smoothness == pytest.approx(float((end - begin).norm()) / moved, rel=1e-3)
    assert found.variance == pytest.approx(0, abs=1e-9)
    assert found.rate_bound == pytest.approx(2 / found.smoothness)  # without variance: 2 / L


@pytest.mark.parametrize(("name", "kind"), [("fedre", Classifier), ("fedavg", Model)])
def test_divergences_are_of_the_classifiers_that_crossed_the_wire(name, kind):
    world, steps, broadcast, answer = world_after(name)
    line = measure(world.method, steps, broadcast, answer, seed=0, round_=2)
    prefix = "" if kind is Classifier else "head."
    for step, found in zip(steps, line.clients, strict=True):
        for message, value in ((broadcast, found.trained_divergence), (answer, found.aggregated_divergence)):
            sent = get_payload(message, kind).state
            apart = sum(
                float((step.after[f"model.head.{part}"] - sent[f"{prefix}{part}"]).square().sum())
                for part in ("weight", "bias")
            )
            assert value == pytest.approx(apart, rel=1e-5)


def test_where_no_classifier_is_broadcast_there_is_no_divergence_and_where_nothing_moves_no_smoothness():
    world, steps, broadcast, answer = world_after("fedproto")
    (first, *_) = measure(world.method, steps, broadcast, answer, seed=0, round_=2).clients
    assert (first.trained_divergence, first.aggregated_divergence) == (None, None)
    resting = replace(steps[0], after=world.method.apply_broadcast(steps[0].setup, steps[0].before, broadcast))
    (found,) = measure(world.method, [resting], broadcast, answer, seed=0, round_=2).clients
    assert (found.smoothness, found.rate_bound) == (None, None)


def test_measuring_draws_nothing_and_changes_no_state():
    world, steps, broadcast, answer = world_after("fedre")
    frozen, before = [copies(step.after) for step in steps], torch.get_rng_state()
    once = measure(world.method, steps, broadcast, answer, seed=0, round_=2)
    assert once == measure(world.method, steps, broadcast, answer, seed=0, round_=2)
    expect_same(before, torch.get_rng_state())
    for step, kept in zip(steps, frozen, strict=True):
        for name, value in kept.items():
            expect_same(step.after[name], value)


def test_the_constants_of_a_run_are_its_largest_lower_bounds():
    def estimate(client, smoothness, variance, rate):
        return ClientConvergence(
            client=client,
            smoothness=smoothness,
            variance=variance,
            gradient=2.0 * variance,
            trained_divergence=None,
            aggregated_divergence=variance,
            rate_bound=rate,
        )

    lines = [
        ConvergenceLine(round=2, clients=(estimate(0, 3.0, 1.0, 0.5), estimate(1, None, 2.0, None))),
        ConvergenceLine(round=4, clients=(estimate(0, 1.0, 6.0, 0.2),)),
    ]
    found = overall(lines)
    assert found.rounds == (2, 4)
    assert (found.smoothness, found.variance, found.aggregated_divergence) == (3.0, 6.0, 6.0)
    assert (found.trained_divergence, found.gradient, found.rate_bound) == (None, 6.0, 0.2)
    assert overall([]) is None


def test_a_run_that_measures_is_the_run_that_does_not(tmp_path):
    settings = {"per_class": 12, "clients": 3, "rounds": 3, "models": "small-mlp", "participation": 0.7}
    plain, _ = train_small(tmp_path / "plain", small("fedre", **settings))
    measured, _ = train_small(tmp_path / "measured", small("fedre", **settings, convergence=2))
    ours = files(measured.path)
    lines = ours.pop("convergence.jsonl")
    ours.pop("config.json")
    theirs = files(plain.path)
    theirs.pop("config.json")
    assert ours == theirs
    assert lines.count(b"\n") == 1
    (line,) = measured.convergence()
    assert line.round == 2
    assert [one.client for one in line.clients] == list(measured.rounds()[1].participants)
    assert measured.summary.convergence == overall([line])
    assert plain.summary.convergence is None
    assert plain.convergence() == ()
    measured.cut_lines(1)
    assert measured.convergence() == ()
