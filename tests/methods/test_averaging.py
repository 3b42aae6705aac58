"""Methods that average heads, extractors, models or outputs: hand-computed cases, equalities, invariances."""

import math
from dataclasses import replace

import pytest
import torch
from compare import expect_close, expect_same
from method_cases import CLASSES, SIZES, WIDTH, World, copies, same, same_message
from torch.nn.functional import cross_entropy

from fedpriv.datasets.types import Samples
from fedpriv.federation.local_training import class_means, classify, local_batches, represent
from fedpriv.federation.method import LocalTraining, Plan
from fedpriv.federation.states import parameters, put, take
from fedpriv.federation.trace import Trace
from fedpriv.methods import fd, fedala, fedavgdbe, fedrep
from fedpriv.methods.shared import feature_generator
from fedpriv.methods.shared.personal_model import side_generator
from fedpriv.models.split import Blueprint
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator, global_seed
from fedpriv.wire.payloads import (
    Classifier,
    ClassLogits,
    Extractor,
    FeatureMean,
    Generator,
    LabelCounts,
    Model,
    SampleCount,
    find_payload,
    get_payload,
)

SMALL = {"noise": 5, "hidden": 7, "learning_rate": 0.01, "steps": 5}
"""A generator for FedGen that trains in no time."""
AVERAGING = ["lg-fedavg", "fedprox", "fedrep", "fedala", "fedavgdbe", "fedgen", "fedgen-homogeneous", "fd"]


def trained(name, options=None, rounds=3, **training):
    """Run a few rounds; return the world, the server's state, the last broadcast, states and the last uploads."""
    world = World(name, options, **({"batch_size": 4, "learning_rate": 0.1} | training))
    server, broadcast, states = world.start()
    uploads = []
    for number in range(1, rounds + 1):
        server, broadcast, states, uploads = world.round(number, server, broadcast, states)
    return world, server, broadcast, states, uploads


def count_of(number):
    return SampleCount(torch.tensor([number]))


@pytest.mark.parametrize("name", AVERAGING)
def test_the_order_of_clients_changes_no_average(name):
    world, server, broadcast, states, _ = trained(name, SMALL if "fedgen" in name else {}, rounds=1)
    _, _, _, uploads = world.round(2, server, broadcast, states)
    one, sent = world.method.server_step(world.server, server, uploads, generator(7))
    other, sent_too = world.method.server_step(world.server, server, uploads[::-1], generator(7))
    for mine, theirs in [(one, other)] + [(a.tensors(), b.tensors()) for a, b in zip(sent, sent_too, strict=True)]:
        assert mine.keys() == theirs.keys()
        for key in mine:
            expect_close(mine[key].double(), theirs[key].double(), atol=1e-5, what=key)


@pytest.mark.parametrize(
    ("name", "options", "plain"),
    [
        ("fedprox", {"mu": 0}, "fedavg"),
        ("fedala", {"rate": 0}, "fedavg"),
        ("fedala", {"rate": 0, "layer_idx": 0}, "fedavg"),
        ("fedavgdbe", {"kappa": 0, "translation": False}, "fedavg"),
        ("fedgen-homogeneous", SMALL | {"weight": 0}, "fedavg"),
        ("fedgen", SMALL | {"weight": 0}, "lg-fedavg"),
        ("fd", {"weight": 0}, "local"),
    ],
)
def test_without_what_it_adds_a_method_is_the_plain_one_bit_for_bit(name, options, plain):
    training = {"weight_decay": 0.01, "momentum": 0.5}
    _, _, _, states, uploads = trained(name, options, **training)
    _, _, _, expected, plain_uploads = trained(plain, **training)
    for state, want in zip(states, expected, strict=True):
        assert same({key: value for key, value in state.items() if key.startswith("model.")}, want)
    for (_, upload), (_, want) in zip(uploads, plain_uploads, strict=True):
        if want:
            assert same_message(upload, want)


@pytest.mark.parametrize(
    ("name", "options", "plain"),
    [
        ("fedprox", {"mu": 0.1}, "fedavg"),
        ("fedala", {}, "fedavg"),
        ("fedavgdbe", {"kappa": 0}, "fedavg"),
        ("fedavgdbe", {"translation": False}, "fedavg"),
        ("fedgen-homogeneous", SMALL, "fedavg"),
        ("fedgen", SMALL, "lg-fedavg"),
        ("fd", {}, "local"),
        ("fd", {"targets": "logits_mse"}, "local"),
    ],
)
def test_what_a_method_adds_changes_the_model(name, options, plain):
    _, _, _, states, _ = trained(name, options)
    _, _, _, expected, _ = trained(plain)
    key = "model.head.weight"
    assert all(not torch.equal(state[key], want[key]) for state, want in zip(states, expected, strict=True))


# ---------------------------------------------------------------- LG-FedAvg


def test_lg_fedavg_averages_heads_by_sample_counts_and_leaves_extractors_alone():
    world = World("lg-fedavg")
    uploads = [
        (0, (Classifier({"bias": torch.tensor([1.0]), "weight": torch.tensor([[2.0]])}), count_of(1))),
        (2, (Classifier({"bias": torch.tensor([5.0]), "weight": torch.tensor([[6.0]])}), count_of(3))),
    ]
    state, broadcast = world.method.server_step(world.server, {}, uploads, generator(0))
    assert get_payload(broadcast, Classifier).state["bias"].tolist() == [4.0]
    assert state["head.weight"].tolist() == [[5.0]]
    _, _, broadcast, states, uploads = trained("lg-fedavg")
    assert set(get_payload(uploads[0][1], Classifier).state) == {"bias", "weight"}
    received = world.method.apply_broadcast(world.setups[0], states[0], broadcast)
    changed = {key for key in received if not torch.equal(received[key], states[0][key])}
    assert changed == {"model.head.weight", "model.head.bias"}


# ---------------------------------------------------------------- FedProx


def test_fedprox_steps_down_the_gradient_plus_mu_times_the_way_from_the_global_model():
    world = World("fedprox", {"mu": 0.7}, batch_size=4, max_steps=2, learning_rate=0.2)
    _, broadcast, states = world.start()
    setup, model = world.setups[0], world.setups[0].model
    state, _ = world.method.client_step(setup, states[0], broadcast, generator(5))
    anchors = get_payload(broadcast, Model).state
    put(model, states[0], "model")
    for index in local_batches(len(setup.train), setup.training, generator(5)):
        images, labels = setup.train.batch(index)
        slopes = torch.autograd.grad(cross_entropy(model(images), labels), list(model.parameters()))
        with torch.no_grad():
            for (name, weight), slope in zip(model.named_parameters(), slopes, strict=True):
                weight -= 0.2 * (slope + 0.7 * (weight - anchors[name]))
    for name, weight in model.named_parameters():
        expect_close(state[f"model.{name}"], weight, atol=1e-6)


# ---------------------------------------------------------------- FedRep


def test_fedreps_head_never_leaves_and_is_never_replaced():
    world, server, broadcast, states, uploads = trained("fedrep")
    for _, upload in uploads:
        assert not any(name.startswith("head") for name in get_payload(upload, Extractor).state)
    assert not any("head" in name for name in server)
    assert not torch.equal(states[0]["model.head.weight"], states[1]["model.head.weight"])
    received = world.method.apply_broadcast(world.setups[0], states[0], broadcast)
    expect_same(received["model.head.weight"], states[0]["model.head.weight"])
    base = get_payload(broadcast, Extractor).state
    for name, value in base.items():
        expect_same(received[f"model.{name}"], value)
        assert not torch.equal(states[0][f"model.{name}"], value)
    assert len(base) == len(parameters(world.setups[0].model)) - 2


def test_fedrep_averages_extractors_by_sample_counts():
    world = World("fedrep")
    uploads = [
        (0, (Extractor({"extractor.0.weight": torch.tensor([1.0])}), count_of(1))),
        (1, (Extractor({"extractor.0.weight": torch.tensor([5.0])}), count_of(3))),
    ]
    _, broadcast = world.method.server_step(world.server, {}, uploads, generator(0))
    assert get_payload(broadcast, Extractor).state["extractor.0.weight"].tolist() == [4.0]


def test_each_phase_of_fedrep_moves_its_half_only():
    world = World("fedrep", {"head_epochs": 3}, batch_size=4, learning_rate=0.1)
    _, _, states = world.start()
    setup, model = world.setups[0], world.setups[0].model
    put(model, states[0], "model")
    fedrep.train_head(setup, generator(1))
    after_head = parameters(model)
    fedrep.train_base(setup, generator(2))
    after_base = parameters(model)
    for name, first in after_head.items():
        before = states[0][f"model.{name}"]
        assert torch.equal(before, first) is not name.startswith("head.")
        assert torch.equal(first, after_base[name]) is name.startswith("head.")


def test_fedreps_head_phase_is_gradient_descent_on_fixed_representations():
    world = World("fedrep", {"head_epochs": 2}, batch_size=100, learning_rate=0.3)
    _, _, states = world.start()
    setup, model = world.setups[1], world.setups[1].model
    put(model, states[1], "model")
    features, labels = represent(model, setup.train.images), setup.train.labels
    weight, bias = states[1]["model.head.weight"].clone(), states[1]["model.head.bias"].clone()
    for _ in range(2):
        delta = (torch.softmax(features @ weight.T + bias, 1) - torch.eye(CLASSES)[labels]) / len(labels)
        weight, bias = weight - 0.3 * delta.T @ features, bias - 0.3 * delta.sum(0)
    fedrep.train_head(setup, generator(1))
    expect_close(model.head.weight, weight, atol=1e-5)
    expect_close(model.head.bias, bias, atol=1e-5)


@pytest.mark.parametrize(("name", "phases"), [("fedrep", 2), ("fedala", 1)])
def test_the_last_phase_of_a_trace_made_the_upload_and_drew_first(name, phases):
    world, _, broadcast, states, _ = trained(name, rounds=1)
    setup = replace(world.setups[0], trace=Trace())
    world.method.client_step(setup, states[0], broadcast, generator(9))
    noted = [[index.tolist() for index in steps] for steps in setup.trace.result().phases]
    expected = local_batches(len(setup.train), setup.training, generator(9))
    assert len(noted) == phases
    assert noted[-1] == [index.tolist() for index in expected]
    assert phases == 1 or noted[0] != noted[-1]


def test_a_side_generator_leaves_the_other_where_it_is():
    rng, twin = generator(3), generator(3)
    one, other = side_generator(rng), side_generator(rng)
    expect_same(rng.get_state(), twin.get_state())
    expect_same(torch.rand(5, generator=one), torch.rand(5, generator=other))
    assert not torch.equal(torch.rand(5, generator=side_generator(rng)), torch.rand(5, generator=twin))


# ---------------------------------------------------------------- FedALA


def test_fedala_steps_its_weights_and_clips_them():
    names = ["w"]
    shares = {"w": torch.tensor([1.0, 1.0, 0.5, 0.1])}
    slopes = {"w": torch.tensor([0.2, -3.0, 1.0, 1.0])}
    local = {"w": torch.tensor([0.0, 1.0, 2.0, 3.0])}
    received = {"w": torch.tensor([1.0, 3.0, 1.0, 9.0])}
    stepped = fedala.step_shares(shares, slopes, local, received, rate=0.5)
    # 1 - .5*.2*1; 1 + .5*3*2 -> 1; .5 + .5*1*1 = 1; .1 - .5*6 -> 0
    expect_close(stepped["w"], torch.tensor([0.9, 1.0, 1.0, 0.0]))
    assert list(stepped) == names


def test_fedala_merges_where_it_has_weights_and_overwrites_elsewhere():
    local = {"a": torch.tensor([1.0, 1.0, 1.0]), "b": torch.tensor([7.0])}
    received = {"a": torch.tensor([3.0, 3.0, 3.0]), "b": torch.tensor([9.0])}
    merged = fedala.merge(local, received, {"a": torch.tensor([0.0, 0.5, 1.0])})
    assert merged["a"].tolist() == [1.0, 2.0, 3.0]
    assert merged["b"].tolist() == [9.0]
    exact = torch.randn(1000)
    expect_same(fedala.merge({"a": torch.randn(1000)}, {"a": exact}, {"a": torch.ones(1000)})["a"], exact)


def test_fedala_chooses_the_last_tensors_or_all():
    names = ["x.weight", "x.bias", "head.weight", "head.bias"]
    assert fedala.merged_names(names, 2) == ["head.weight", "head.bias"]
    assert fedala.merged_names(names, 0) == names


def test_the_first_time_of_fedala_ends_when_ten_losses_hardly_differ():
    assert not fedala.settled([1.0] * 9, 0.1)
    assert fedala.settled([1.0] * 10, 0.1)
    assert fedala.settled([50.0] + [1.0] * 10, 0.1)
    # Population standard deviation of five ones and five zeros: 0.5.
    assert not fedala.settled([0.0, 1.0] * 5, 0.5)
    assert fedala.settled([0.0, 1.0] * 5, 0.51)


def test_the_slice_of_fedala_is_contiguous_and_moves():
    samples = Samples(torch.rand(20, 1, 2, 2), torch.arange(20))
    starts = set()
    for seed in range(40):
        labels = fedala.slice_of(samples, 0.8, generator(seed)).labels.tolist()
        assert labels == list(range(labels[0], labels[0] + 16))
        starts.add(labels[0])
    assert starts == {0, 1, 2, 3, 4}
    assert len(fedala.slice_of(samples, 0.01, generator(0))) == 1
    assert len(fedala.slice_of(samples, 1.0, generator(0))) == 20


def learn(options, state=None, **training):
    """Learn the weights of client 0 for a global model that is not its own; return (world, state, broadcast, W)."""
    world, _, broadcast, states, _ = trained("fedala", options, rounds=1, **training)
    state = states[0] if state is None else state
    return world, state, broadcast, fedala.learn_shares(world.setups[0], state, broadcast, generator(4))


def test_one_pass_of_fedala_over_one_batch_is_the_formula():
    options = {"share": 1.0, "first_passes": 1, "rate": 30.0}
    world, state, broadcast, shares = learn(options, batch_size=100, epochs=3)
    setup, model = world.setups[0], world.setups[0].model
    received = get_payload(broadcast, Model).state
    put(model, state | {f"model.{name}": value for name, value in received.items()}, "model")
    model.eval()
    loss = cross_entropy(model(setup.train.images), setup.train.labels)
    slopes = torch.autograd.grad(loss, [model.head.weight, model.head.bias])
    assert set(shares) == {"head.weight", "head.bias"}
    for name, slope in zip(("head.weight", "head.bias"), slopes, strict=True):
        way = received[name] - state[f"model.{name}"]
        expect_close(shares[name], (1 - 30 * slope * way).clamp(0, 1), atol=1e-5)
    assert any(0 < float(share) < 1 for share in shares["head.weight"].flatten())


def test_learning_on_representations_or_on_images_is_the_same():
    # With every tensor merged the images are represented anew each step. The slopes of a pass of one batch are taken at
    # the received model in both cases.
    options = {"share": 1.0, "first_passes": 1}
    _, _, _, head = learn(options | {"layer_idx": 2}, batch_size=100)
    _, _, _, everything = learn(options | {"layer_idx": 0}, batch_size=100)
    assert len(everything) > 2
    for name, share in head.items():
        expect_close(share, everything[name], atol=1e-5)


def test_learned_weights_lower_the_loss_of_the_merged_model():
    options = {"share": 1.0, "first_passes": 30, "threshold": 1e-9, "rate": 1.0}
    world, state, broadcast, shares = learn(options, learning_rate=0.5, epochs=5)
    setup = world.setups[0]

    def loss(state):
        put(setup.model, world.method.apply_broadcast(setup, state, broadcast), "model")
        return float(cross_entropy(classify(setup.model, setup.train.images), setup.train.labels))

    learned = {f"{fedala.SHARES}.{name}": share for name, share in shares.items()}
    assert loss(state | learned) < loss(state)
    assert all(float(share.min()) >= 0 and float(share.max()) <= 1 for share in shares.values())


def passes(monkeypatch, options, state=None):
    """Return over how many passes the weights were learned."""
    calls = []
    original = fedala.step_shares
    monkeypatch.setattr(fedala, "step_shares", lambda *rest: calls.append(1) or original(*rest))
    learn(options | {"share": 1.0}, state, batch_size=100)
    return len(calls)


def test_fedala_learns_long_once_and_then_for_one_pass(monkeypatch):
    assert passes(monkeypatch, {"first_passes": 17, "threshold": 1e-12}) == 17
    assert passes(monkeypatch, {"first_passes": 17, "threshold": 1e9}) == 10
    _, state, _, shares = learn({})
    known = state | {f"{fedala.SHARES}.{name}": share for name, share in shares.items()}
    assert passes(monkeypatch, {"first_passes": 17, "threshold": 1e-12}, known) == 1


def test_fedala_has_nothing_to_learn_from_its_own_weights():
    world = World("fedala", {}, batch_size=4)
    server, broadcast, states = world.start()
    _, broadcast, states, _ = world.round(1, server, broadcast, states)
    assert not any(name.startswith(fedala.SHARES) for state in states for name in state)
    _, _, states, _ = world.round(2, server, broadcast, states)
    assert all(any(name.startswith(fedala.SHARES) for name in state) for state in states)


def test_fedala_refuses_to_merge_more_tensors_than_there_are():
    world = World("fedala")
    plan = Plan(
        blueprints=(world.setups[0].blueprint,),
        options=fedala.Options(layer_idx=99),
        has_public=False,
        train_sizes=SIZES[:1],
        training=LocalTraining(),
    )
    with pytest.raises(UserError, match=r"layer_idx is 99.*choose 1 to \d+, or 0 for all"):
        world.method.check(plan)
    held = len(parameters(world.setups[0].model))
    world.method.check(replace(plan, options=fedala.Options(layer_idx=held)))


# ---------------------------------------------------------------- FedAvgDBE


def test_dbe_pulls_by_half_the_mean_squared_distance():
    value = fedavgdbe.pull(torch.tensor([1.0, 4.0]), torch.tensor([0.0, 2.0]))
    assert float(value) == pytest.approx((1 + 4) / 2 / 2)


def test_dbe_sends_the_running_mean_once_and_the_server_sends_the_average_from_the_second_round_on():
    world = World("fedavgdbe", {}, batch_size=4)
    server, broadcast, states = world.start()
    assert find_payload(broadcast, FeatureMean) is None
    server, broadcast, states, uploads = world.round(1, server, broadcast, states)
    means = [get_payload(upload, FeatureMean).mean for _, upload in uploads]
    average = sum(size / sum(SIZES) * mean for size, mean in zip(SIZES, means, strict=True))
    expect_close(get_payload(broadcast, FeatureMean).mean, average, atol=1e-6)
    server, again, states, uploads = world.round(2, server, broadcast, states)
    assert all(find_payload(upload, FeatureMean) is None for _, upload in uploads)
    expect_same(get_payload(again, FeatureMean).mean, get_payload(broadcast, FeatureMean).mean)


def test_a_late_client_of_dbe_adds_its_mean():
    world = World("fedavgdbe", {}, batch_size=4)
    server, broadcast, states = world.start()
    server, broadcast, states, first = world.round(1, server, broadcast, states, chosen=(0, 1))
    server, broadcast, states, late = world.round(2, server, broadcast, states, chosen=(1, 2))
    assert [find_payload(upload, FeatureMean) is None for _, upload in late] == [True, False]
    means = [
        get_payload(first[0][1], FeatureMean),
        get_payload(first[1][1], FeatureMean),
        get_payload(late[1][1], FeatureMean),
    ]
    average = sum(size / sum(SIZES) * mean.mean for size, mean in zip(SIZES, means, strict=True))
    expect_close(get_payload(broadcast, FeatureMean).mean, average, atol=1e-6)


def test_the_running_mean_of_dbe_starts_from_zero_and_forgets_by_its_momentum():
    world = World("fedavgdbe", {"momentum": 0.25}, batch_size=4, max_steps=2, learning_rate=1e-9)
    _, broadcast, states = world.start()
    setup, model = world.setups[0], world.setups[0].model
    _, upload = world.method.client_step(setup, states[0], broadcast, generator(5))
    put(model, states[0], "model")
    one, two = (
        represent(model, setup.train.images[index]).mean(0)
        for index in local_batches(len(setup.train), setup.training, generator(5))
    )
    expect_close(get_payload(upload, FeatureMean).mean, 0.75 * 0.25 * one + 0.25 * two, atol=1e-6)


def test_a_client_of_dbe_without_a_batch_sends_the_mean_of_its_representations():
    world = World("fedavgdbe", {}, batch_size=100, drop_last=True)
    _, broadcast, states = world.start()
    setup = world.setups[0]
    _, upload = world.method.client_step(setup, states[0], broadcast, generator(5))
    put(setup.model, states[0], "model")
    expect_close(get_payload(upload, FeatureMean).mean, represent(setup.model, setup.train.images).mean(0))


def test_a_step_of_dbe_is_its_loss_by_hand():
    options = {"kappa": 3.0, "momentum": 0.5}
    world, _, broadcast, states, _ = trained("fedavgdbe", options, batch_size=4, learning_rate=0.2)
    setup, model = world.setups[0], world.setups[0].model
    setup = replace(setup, training=replace(setup.training, max_steps=2))
    assert bool(states[0][fedavgdbe.TRANSLATION].any())
    state, upload = world.method.client_step(setup, states[0], broadcast, generator(5))
    assert [payload.kind for payload in upload] == ["model", "sample-count"]
    put(model, world.method.apply_broadcast(setup, states[0], broadcast), "model")
    shift = states[0][fedavgdbe.TRANSLATION].clone().requires_grad_()
    target, running = get_payload(broadcast, FeatureMean).mean, torch.zeros(WIDTH)
    for index in local_batches(len(setup.train), setup.training, generator(5)):
        images, labels = setup.train.batch(index)
        features = model.represent(images)
        running = 0.5 * running.detach() + 0.5 * features.mean(0)
        penalty = (0.5 * (running - target) ** 2).sum() / WIDTH
        loss = cross_entropy((features + shift) @ model.head.weight.T + model.head.bias, labels) + 3 * penalty
        slopes = torch.autograd.grad(loss, [*model.parameters(), shift])
        with torch.no_grad():
            for weight, slope in zip([*model.parameters(), shift], slopes, strict=True):
                weight -= 0.2 * slope
    for name, weight in model.named_parameters():
        expect_close(state[f"model.{name}"], weight, atol=1e-5)
    expect_close(state[fedavgdbe.TRANSLATION], shift, atol=1e-5)


def test_dbes_translation_is_private_and_used_in_prediction():
    world, server, broadcast, states, uploads = trained("fedavgdbe")
    setup, images = world.setups[0], torch.rand(3, 1, 8, 8)
    shift = states[0][fedavgdbe.TRANSLATION]
    crossed = [t for message in (broadcast, *(upload for _, upload in uploads)) for p in message for t in p.tensors()]
    assert not any("translation" in name for name in [*crossed, *server])
    assert all(not torch.equal(shift, value) for value in server.values())
    put(setup.model, states[0], "model")
    logits = (represent(setup.model, images) + shift) @ setup.model.head.weight.T + setup.model.head.bias
    expect_close(world.method.predict(setup, states[0], images), logits, atol=1e-5)
    received = world.method.apply_broadcast(setup, states[0], broadcast)
    expect_same(received[fedavgdbe.TRANSLATION], shift)


def test_the_first_round_of_dbe_is_fedavgs():
    _, _, _, states, _ = trained("fedavgdbe", rounds=1)
    _, _, _, expected, _ = trained("fedavg", rounds=1)
    for state, want in zip(states, expected, strict=True):
        for name, value in want.items():
            expect_same(state[name], value)
        assert not state[fedavgdbe.TRANSLATION].any()


# ---------------------------------------------------------------- FedGen


@pytest.mark.parametrize("name", ["fedgen", "fedgen-homogeneous"])
def test_fedgen_sends_label_counts_once_and_the_server_sums_them(name):
    world = World(name, SMALL, batch_size=4)
    server, broadcast, states = world.start()
    assert find_payload(broadcast, Generator) is None
    server, broadcast, states, uploads = world.round(1, server, broadcast, states, chosen=(0, 1))
    for k, upload in uploads:
        assert get_payload(upload, LabelCounts).counts.tolist() == [
            int((world.setups[k].train.labels == c).sum()) for c in range(CLASSES)
        ]
    assert int(get_payload(broadcast, LabelCounts).counts.sum()) == SIZES[0] + SIZES[1]
    server, broadcast, states, uploads = world.round(2, server, broadcast, states)
    assert [find_payload(upload, LabelCounts) is None for _, upload in uploads] == [True, True, False]
    everybody = torch.cat([setup.train.labels for setup in world.setups])
    expect_same(get_payload(broadcast, LabelCounts).counts, torch.bincount(everybody, minlength=CLASSES))


@pytest.mark.parametrize(("noise", "classes", "expected"), [(32, 10, 285_696), (512, 10, 531_456)])
def test_the_generator_has_as_many_parameters_as_published(noise, classes, expected):
    options = feature_generator.Options(noise=noise)
    assert feature_generator.generator_scalars(classes, 512, options) == expected
    made = feature_generator.FeatureGenerator(classes, 512, noise, 512)
    assert sum(value.numel() for value in made.state_dict().values()) == expected


def test_generated_representations_are_the_formula():
    torch.manual_seed(0)
    made = feature_generator.FeatureGenerator(CLASSES, WIDTH, noise=5, hidden=7)
    classes = torch.tensor([0, 3, 3, 1])
    with global_seed(11):
        features = made(classes)
    with global_seed(11):
        noise = torch.rand(4, 5)
    first, norm, _, last = made.layers
    hidden = torch.cat([noise, torch.eye(CLASSES)[classes]], 1) @ first.weight.T + first.bias
    scaled = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + norm.eps).sqrt() * norm.weight + norm.bias
    expect_close(features, scaled.clamp(min=0) @ last.weight.T + last.bias, atol=1e-5)


def test_the_mean_of_heads_logits_is_the_mean_heads_logit():
    _, _, broadcast, _, uploads = trained("fedgen", SMALL)
    features = torch.randn(6, WIDTH)
    logits = torch.zeros(6, CLASSES)
    for (_, upload), size in zip(uploads, SIZES, strict=True):
        head = get_payload(upload, Classifier).state
        logits += size / sum(SIZES) * (features @ head["weight"].T + head["bias"])
    mean = get_payload(broadcast, Classifier).state
    expect_close(features @ mean["weight"].T + mean["bias"], logits, atol=1e-5)


def test_the_server_trains_the_generator_towards_what_the_head_recognises():
    options = {"noise": 4, "hidden": 32, "learning_rate": 0.01, "steps": 0, "batch_size": 64}
    world = World("fedgen", options)
    made = feature_generator.make_generator(world.setups[0], 1, torch.device("cpu"))
    torch.manual_seed(2)
    head = torch.randn(CLASSES, WIDTH), torch.randn(CLASSES)
    histogram = torch.tensor([5, 1, 0, 2])

    def loss():
        with global_seed(3), torch.no_grad():
            classes = feature_generator.draw_classes(histogram, 256)
            return float(cross_entropy(made(classes) @ head[0].T + head[1], classes))

    before, frozen = loss(), copies(take(made, "g"))
    feature_generator.train_generator(made, histogram, head, world.options, seed=0)
    assert same(take(made, "g"), frozen)
    feature_generator.train_generator(made, histogram, head, replace(world.options, steps=60), seed=0)
    assert loss() < before / 4


def test_classes_are_drawn_in_proportion_to_everybodys_labels():
    with global_seed(0):
        drawn = feature_generator.draw_classes(torch.tensor([6, 0, 3, 1]), 20_000)
    share = torch.bincount(drawn, minlength=4) / 20_000
    assert share[1] == 0
    expect_close(share, torch.tensor([0.6, 0, 0.3, 0.1]), atol=0.015)


def test_a_step_of_fedgen_is_its_loss_by_hand():
    options = SMALL | {"weight": 0.5}
    world, _, broadcast, states, _ = trained("fedgen", options)
    setup, model = world.setups[0], world.setups[0].model
    setup = replace(setup, training=replace(setup.training, max_steps=1, batch_size=4, learning_rate=0.2))
    state, _ = world.method.client_step(setup, states[0], broadcast, generator(5))
    put(model, world.method.apply_broadcast(setup, states[0], broadcast), "model")
    rng = generator(5)
    index = local_batches(len(setup.train), setup.training, rng)[0]
    made = feature_generator.make_generator(setup, 0, torch.device("cpu"))
    made.load_state_dict(dict(get_payload(broadcast, Generator).state))
    with global_seed(int(torch.randint(2**62, (1,), generator=rng))):
        classes = feature_generator.draw_classes(get_payload(broadcast, LabelCounts).counts, 4)
        features = made(classes).detach()
    images, labels = setup.train.batch(index)
    loss = cross_entropy(model(images), labels) + 0.5 * cross_entropy(model.head(features), classes)
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    for (name, weight), slope in zip(model.named_parameters(), slopes, strict=True):
        expect_close(state[f"model.{name}"], weight - 0.2 * slope, atol=1e-6)


def test_fedgen_takes_batches_of_one_image():
    _, _, _, states, _ = trained("fedgen", SMALL, batch_size=1)
    assert all(value.isfinite().all() for state in states for value in state.values())


# ---------------------------------------------------------------- FD


def test_fd_averages_each_class_over_its_holders_and_keeps_what_nobody_sent():
    world = World("fd")
    eye = torch.eye(CLASSES)
    old = {
        fd.VALUES: torch.stack([eye[3], eye[3], eye[3], eye[3]]),
        fd.KNOWN: torch.tensor([True, True, True, False]),
    }
    uploads = [
        (0, (ClassLogits(torch.stack([eye[0], eye[1]]), torch.tensor([0, 1])),)),
        (1, (ClassLogits(eye[2:3], torch.tensor([0])),)),
        (2, (ClassLogits(eye[:0], torch.tensor([], dtype=torch.int64)),)),
    ]
    state, broadcast = world.method.server_step(world.server, old, uploads, generator(0))
    sent = get_payload(broadcast, ClassLogits)
    assert sent.classes.tolist() == [0, 1, 2]
    assert sent.values.tolist() == [[0.5, 0, 0.5, 0], [0, 1, 0, 0], [0, 0, 0, 1]]
    assert state[fd.KNOWN].tolist() == [True, True, True, False]


def test_fds_distances_by_hand():
    logits, wanted = torch.tensor([[0.0, math.log(3)]]), torch.tensor([[0.5, 0.5]])
    # softmax(logits) = (1/4, 3/4)
    by_hand = -(0.5 * math.log(0.25) + 0.5 * math.log(0.75))
    assert float(fd.distillation(logits, wanted, "softmax")) == pytest.approx(by_hand)
    raw = torch.tensor([[-1.0, 2.0]])
    assert float(fd.distillation(logits, raw, "raw")) == pytest.approx(math.log(0.25) - 2 * math.log(0.75))
    assert float(fd.distillation(logits, raw, "logits_mse")) == pytest.approx((1 + (math.log(3) - 2) ** 2) / 2)
    assert fd.exchanged(logits, "softmax").tolist()[0] == pytest.approx([0.25, 0.75])
    assert fd.exchanged(logits, "raw") is fd.exchanged(logits, "logits_mse") is logits


@pytest.mark.parametrize("targets", ["softmax", "logits_mse", "raw"])
def test_a_step_of_fd_is_its_loss_by_hand(targets):
    world = World("fd", {"targets": targets, "weight": 0.7}, batch_size=100, learning_rate=0.2)
    _, _, states = world.start()
    setup, model = world.setups[0], world.setups[0].model
    labels = setup.train.labels
    known = torch.tensor([0, 2])
    values = torch.softmax(torch.randn(2, CLASSES, generator=generator(1)), 1)
    state, _ = world.method.client_step(setup, states[0], (ClassLogits(values, known),), generator(5))
    put(model, states[0], "model")
    logits = model(setup.train.images)
    terms = []
    for row, label in zip(logits, labels.tolist(), strict=True):
        own = row.detach().softmax(0) if targets == "softmax" else row.detach()
        target = values[known.tolist().index(label)] if label in (0, 2) else own
        terms.append(((row - target) ** 2).mean() if targets == "logits_mse" else -(target * row.log_softmax(0)).sum())
    loss = cross_entropy(logits, labels) + 0.7 * torch.stack(terms).mean()
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    for (name, weight), slope in zip(model.named_parameters(), slopes, strict=True):
        expect_close(state[f"model.{name}"], weight - 0.2 * slope, atol=1e-5)


def test_fd_collects_after_training_over_every_sample():
    world, _, _, states, uploads = trained("fd", drop_last=True)
    for k, upload in uploads:
        setup, sent = world.setups[k], get_payload(upload, ClassLogits)
        put(setup.model, states[k], "model")
        outputs = classify(setup.model, setup.train.images).softmax(1)
        means, classes, _ = class_means(outputs, setup.train.labels)
        expect_close(sent.values, means, atol=1e-6)
        expect_same(sent.classes, classes)
        expect_close(sent.values.sum(1), torch.ones(len(classes)), atol=1e-5)


def test_fd_collects_in_training_from_the_batches_that_were_trained_on():
    options = {"collect": "training", "targets": "logits_mse"}
    world = World("fd", options, batch_size=3, max_steps=2, learning_rate=1e-9)
    _, broadcast, states = world.start()
    setup = world.setups[0]
    _, upload = world.method.client_step(setup, states[0], broadcast, generator(5))
    index = torch.cat(local_batches(len(setup.train), setup.training, generator(5)))
    put(setup.model, states[0], "model")
    means, classes, _ = class_means(classify(setup.model, setup.train.images[index]), setup.train.labels[index])
    expect_same(get_payload(upload, ClassLogits).classes, classes)
    expect_close(get_payload(upload, ClassLogits).values, means, atol=1e-5)


def test_a_client_of_fd_that_trained_on_nothing_sends_no_class():
    _, _, broadcast, _, uploads = trained("fd", {"collect": "training"}, batch_size=6, drop_last=True)
    sent = get_payload(uploads[2][1], ClassLogits)  # five images fill no batch of six
    assert sent.values.shape == (0, CLASSES)
    assert len(get_payload(broadcast, ClassLogits).classes) > 0


# ---------------------------------------------------------------- communication


def test_ten_clients_exchange_what_the_published_table_says():
    from fedpriv.federation.planned_traffic import message_sizes
    from fedpriv.methods import METHODS
    from fedpriv.wire.ledger import count
    from fedpriv.wire.sizes import FederationSizes

    facts = FederationSizes(clients=10, classes=10, width=512, pairs=61, known_classes=10, model_scalars=878_538)

    def counted(name, **changes):
        return count(message_sizes(METHODS.load(name), replace(facts, **changes)))["paper"]

    head = 10 * (512 * 10 + 10)
    assert counted("lg-fedavg").upload_scalars == counted("lg-fedavg").broadcast_scalars == head == 51_300
    assert counted("lg-fedavg", classes=100).upload_scalars == 513_000
    assert counted("lg-fedavg", classes=200, width=2048).upload_scalars == 4_098_000
    assert (counted("fd").upload_scalars, counted("fd").broadcast_scalars) == (610, 1_000)
    assert counted("fedgen").upload_scalars == 51_300
    assert counted("fedgen").broadcast_scalars == 51_300 + 10 * 285_696
    for name in ("fedprox", "fedala", "fedavgdbe", "fedgen-homogeneous"):
        assert counted(name).upload_scalars == 8_785_380
    assert counted("fedavgdbe").broadcast_scalars == 8_785_380 + 10 * 512
    assert counted("fedrep").upload_scalars == counted("fedrep").broadcast_scalars == 8_785_380 - head


def test_methods_that_average_models_refuse_different_architectures():
    from fedpriv.federation.plans import check_plan
    from fedpriv.methods import METHODS

    setups = World("lg-fedavg").setups
    for name in ("fedprox", "fedrep", "fedala", "fedavgdbe", "fedgen-homogeneous"):
        method = METHODS.load(name)
        with pytest.raises(UserError, match=r"needs one architecture for all clients.*pass one model"):
            check_plan(method, setups, method.options(), has_public=False)
    for name in ("lg-fedavg", "fedgen", "fd"):
        method = METHODS.load(name)
        check_plan(method, setups, method.options(), has_public=False)
        assert isinstance(setups[1].blueprint, Blueprint)
