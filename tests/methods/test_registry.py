"""Every registered method through one contract, then each aggregation and loss against a hand-computed case."""

from dataclasses import replace

import pytest
import torch
from compare import expect_close, expect_same
from method_cases import CLASSES, SHAPE, SIZES, WIDTH, World, copies, same, same_message
from torch.nn.functional import cross_entropy

from fedpriv.datasets.types import Samples
from fedpriv.federation.local_training import class_means, local_batches, represent
from fedpriv.federation.method import LocalTraining, refuse_no_method
from fedpriv.federation.states import put, weighted_mean
from fedpriv.federation.trace import Trace
from fedpriv.methods import METHODS, default_method, fedproto
from fedpriv.methods.fedre import WEIGHTS
from fedpriv.methods.shared import global_head
from fedpriv.util.seeds import generator
from fedpriv.wire.ledger import count, entries
from fedpriv.wire.payloads import Classifier, Entangled, Model, Prototypes, Representations, SampleCount, get_payload

# A new method is one more row: options that the contract test runs it with.
ROWS: list[tuple[str, dict]] = [
    ("local", {}),
    ("fedavg", {}),
    ("fedallrep", {}),
    ("fedproto", {}),
    ("fedproto", {"averaging": "counts"}),
    ("fedgh", {}),
    ("fedtgp", {"server": {"epochs": 3}}),
    ("fpl", {}),
    *[("fedhenn", {"kernel": name, "rad_batch": size}) for name, size in (("linear", None), ("rbf", 4))],
    ("fedhenn-kernel", {}),
    ("fedhenn-homogeneous", {"schedule": "constant"}),
    *[("fedre", {"mechanism": name}) for name in ("RSR", "VAR", "RAR", "RSP", "VAP", "RAP")],
    ("fedre", {"sampling": "fixed", "distribution": "laplace"}),
    ("fedmrl", {}),
    ("fedmrl", {"averaging": "uniform", "small_width": 16, "small_model": "small-mlp"}),
    ("fml", {}),
    ("fml", {"parity": True, "small_model": "small-cnn-deep"}),
    ("lg-fedavg", {}),
    ("fedprox", {}),
    ("fedrep", {"head_epochs": 2}),
    ("fedala", {}),
    ("fedala", {"layer_idx": 4}),
    ("fedavgdbe", {}),
    ("fedgen", {}),
    ("fedgen-homogeneous", {}),
    ("fedgen", {"noise": 5, "hidden": 7, "learning_rate": 0.005, "steps": 3, "batch_size": 4}),
    *[("fd", {"targets": name}) for name in ("softmax", "logits_mse", "raw")],
    ("fd", {"collect": "training"}),
    ("fedral", {}),
    ("fedral", {"blocks": [1, 4, 16]}),
    ("fedral", {"blocks": [2], "aggregation": "naive"}),
    ("fedkd", {"energy_start": 0.01, "energy_end": 0.01}),
    ("fedkd", {"energy_start": 0.01, "energy_end": 0.01, "parity": True, "small_model": "small-mlp"}),
    ("fedapen", {"set_learning_rate": 0.5, "set_share": 0.4}),
    ("fedapen", {"mixture": "equal", "small_model": "small-mlp"}),
]


def test_every_method_has_a_row_and_what_is_attacked_a_usual_method():
    assert {name for name, _ in ROWS} == set(METHODS)
    usual = {
        "representation": "fedallrep",
        "prototype": "fedgh",
        "entangled": "fedre",
        "model": "fedavg",
        "classifier": "lg-fedavg",
        "angle-matrix": "fedral",
        "extractor": "fedrep",
        "small-model": "fedmrl",
        "low-rank-model": "fedkd",
        "label-counts": "fedgen",
        "logits": "fd",
        "kernel": "fedhenn-kernel",
    }
    assert {kind: default_method(kind) for kind in usual} == usual
    assert default_method("energy") is None


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_keeps_the_contract_that_other_packages_are_held_to(name):
    refuse_no_method(name, METHODS.load(name))


@pytest.mark.parametrize(("name", "options"), ROWS, ids=str)
def test_the_contract(name, options):
    world = World(name, options, batch_size=4)
    method = world.method
    assert method.name == name
    server, broadcast, states = world.start()
    for number in (1, 2):
        frozen = [copies(state) for state in states]
        frozen_server = copies(server)
        sent = tuple(type(payload)(**vars(payload)) for payload in broadcast)
        frozen_broadcast = [copies(payload.tensors()) for payload in broadcast]
        result = world.round(number, server, broadcast, states)
        # Pure: what went in is unchanged, and the same input gives the same output.
        assert all(same(state, before) for state, before in zip(states, frozen, strict=True))
        assert same(server, frozen_server)
        assert all(same(p.tensors(), before) for p, before in zip(sent, frozen_broadcast, strict=True))
        again = world.round(number, server, broadcast, states)
        assert same(result[0], again[0])
        assert same_message(result[1], again[1])
        assert all(same(one, other) for one, other in zip(result[2], again[2], strict=True))
        for (_, one), (_, other) in zip(result[3], again[3], strict=True):
            assert same_message(one, other)
        server, broadcast, states, uploads = result
        for k, upload in uploads:
            assert tuple(payload.kind for payload in upload) == method.uploads[: len(upload)]
            assert all(payload.non_finite() is None for payload in upload)
            total = count(entries(upload, number, k, "upload"))
            assert total["full"].upload_scalars == sum(t.numel() for p in upload for t in p.tensors().values())
        assert {payload.kind for payload in broadcast} <= set(method.broadcasts)
    images = torch.rand(6, *SHAPE)
    for setup, state in zip(world.setups, states, strict=True):
        for seen in (state, method.apply_broadcast(setup, state, broadcast)):
            scores = method.predict(setup, seen, images)
            assert scores.shape == (6, CLASSES)
            assert not scores.isnan().any()
            expect_same(scores, method.predict(setup, seen, images))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_clients_of_one_architecture_start_equal_and_a_round_with_one_client_works(name):
    world = World(name)
    server, broadcast, states = world.start()
    weights = [name for name in states[0] if name.startswith("model.")]
    for name in weights:
        expect_same(states[0][name], states[2][name])
    _, broadcast, after, _ = world.round(1, server, broadcast, states, chosen=(1,))
    assert same(after[0], states[0])
    assert method_predicts(world, after[0], broadcast)


def method_predicts(world, state, broadcast):
    setup = world.setups[0]
    return world.method.predict(
        setup, world.method.apply_broadcast(setup, state, broadcast), torch.rand(2, *SHAPE)
    ).shape == (
        2,
        CLASSES,
    )


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_trace_holds_the_batches_that_training_was_handed_and_changes_nothing(name, monkeypatch):
    world = World(name, batch_size=4, epochs=2, max_steps=3)
    _, broadcast, states = world.start()
    handed, batch, train = [], Samples.batch, world.setups[0].train

    def noting(self, index):
        if self is train:
            handed.append(index.tolist())
        return batch(self, index)

    monkeypatch.setattr(Samples, "batch", noting)
    setup = replace(world.setups[0], trace=Trace())
    state, upload = world.method.client_step(setup, states[0], broadcast, generator(9))
    phases = setup.trace.result().phases
    assert phases
    assert [index.tolist() for steps in phases for index in steps] == handed
    silent = replace(setup, trace=Deaf())
    again, sent = world.method.client_step(silent, states[0], broadcast, generator(9))
    assert same(again, state)
    assert same_message(sent, upload)


class Deaf(Trace):
    """A recorder that notes nothing."""

    def local_steps(self, batches):
        pass

    def mixture(self, weights):
        pass


# ---------------------------------------------------------------- FedAvg


def test_fedavg_averages_by_sample_counts():
    world = World("fedavg")
    uploads = [
        (0, (Model({"w": torch.tensor([1.0, 2.0])}), SampleCount(torch.tensor([1])))),
        (1, (Model({"w": torch.tensor([5.0, 6.0])}), SampleCount(torch.tensor([3])))),
    ]
    state, broadcast = world.method.server_step(world.server, {}, uploads, generator(0))
    assert get_payload(broadcast, Model).state["w"].tolist() == [4.0, 5.0]
    assert state["global.w"].tolist() == [4.0, 5.0]


def test_averages_do_not_depend_on_the_order_of_clients():
    states = [{"w": torch.randn(50)} for _ in range(7)]
    weights = [3, 1, 4, 1, 5, 9, 2]
    forwards = weighted_mean(states, weights)["w"]
    backwards = weighted_mean(states[::-1], weights[::-1])["w"]
    expect_close(forwards, backwards, rtol=0, atol=1e-7)
    by_hand = sum(w / 25 * s["w"] for w, s in zip(weights, states, strict=True))
    expect_close(forwards, by_hand, atol=1e-6)


def test_one_local_step_of_fedavg_reveals_the_gradient_of_its_first_batch():
    world = World("fedavg", batch_size=3, max_steps=1, learning_rate=0.1)
    server, broadcast, states = world.start()
    _, _, _, uploads = world.round(1, server, broadcast, states)
    for k, upload in uploads:
        setup = world.setups[k]
        index = local_batches(len(setup.train), setup.training, generator(0, "step", 1, k))[0]
        assert len(index) == 3
        put(setup.model, states[k], "model")
        images, labels = setup.train.batch(index)
        loss = cross_entropy(setup.model(images), labels)
        names = [name for name, _ in setup.model.named_parameters()]
        slopes = torch.autograd.grad(loss, list(setup.model.parameters()))
        before, after = get_payload(broadcast, Model).state, get_payload(upload, Model).state
        for name, slope in zip(names, slopes, strict=True):
            expect_close((before[name] - after[name]) / 0.1, slope, atol=1e-5)


# ---------------------------------------------------------------- batches


def test_batches_cover_every_sample_once_an_epoch():
    batches = local_batches(23, LocalTraining(batch_size=5, epochs=2), generator(1))
    assert [len(b) for b in batches] == [5, 5, 5, 5, 3] * 2
    assert sorted(torch.cat(batches[:5]).tolist()) == list(range(23))
    assert not torch.equal(torch.cat(batches[:5]), torch.cat(batches[5:]))


def test_tails_are_dropped_joined_or_cut_only_on_request():
    assert [len(b) for b in local_batches(11, LocalTraining(batch_size=5), generator(1))] == [5, 5, 1]
    assert [len(b) for b in local_batches(11, LocalTraining(batch_size=5), generator(1), join_single=True)] == [5, 6]
    assert [len(b) for b in local_batches(11, LocalTraining(batch_size=5, drop_last=True), generator(1))] == [5, 5]
    kept = local_batches(7, LocalTraining(batch_size=5, shuffle=False, epochs=2), generator(1))
    assert [b.tolist() for b in kept] == [[0, 1, 2, 3, 4], [5, 6]] * 2
    assert local_batches(3, LocalTraining(batch_size=5, drop_last=True), generator(1)) == []
    assert len(local_batches(11, LocalTraining(batch_size=5, max_steps=2), generator(1))) == 2


# ---------------------------------------------------------------- heads trained by the server


def test_the_servers_head_is_nobodys_object():
    world = World("fedgh")
    server, broadcast, states = world.start()
    expect_same(server["head.weight"], states[0]["model.head.weight"])
    frozen = copies(server)
    world.round(1, server, broadcast, states)
    assert same(server, frozen)
    assert get_payload(broadcast, Classifier).state["weight"].data_ptr() != states[0]["model.head.weight"].data_ptr()


def test_the_broadcast_head_reaches_every_client():
    world = World("fedre")
    server, broadcast, states = world.start()
    _, broadcast, states, _ = world.round(1, server, broadcast, states)
    head = get_payload(broadcast, Classifier).state
    for setup, state in zip(world.setups, states, strict=True):
        received = world.method.apply_broadcast(setup, state, broadcast)
        expect_same(received["model.head.weight"], head["weight"])
        assert not torch.equal(state["model.head.weight"], head["weight"])


def test_fedres_server_takes_one_step_down_the_sum_of_soft_cross_entropies():
    torch.manual_seed(0)
    features, targets = torch.randn(3, 5), torch.softmax(torch.randn(3, 4), 1)
    weight, bias = torch.randn(4, 5), torch.randn(4)
    options = global_head.HeadTraining(learning_rate=0.1, batch_size=10, epochs=1)
    trained, _ = global_head.train_head(
        {"head.weight": weight, "head.bias": bias}, features, targets, options, generator(0), "sum"
    )
    # d/dW of sum_k sum_c y_kc CE_c is (softmax(z_k) - y_k) r_k^T, summed over the uploads.
    delta = torch.softmax(features @ weight.T + bias, 1) - targets
    expect_close(trained["head.weight"], weight - 0.1 * delta.T @ features, atol=1e-6)
    expect_close(trained["head.bias"], bias - 0.1 * delta.sum(0), atol=1e-6)


@pytest.mark.parametrize(("name", "payload"), [("fedgh", Prototypes), ("fedallrep", Representations)])
def test_fedgh_and_fedallrep_train_the_head_by_mean_cross_entropy(name, payload):
    world = World(name, {"server": {"learning_rate": 0.5, "batch_size": 100}})
    server, broadcast, states = world.start()
    after, _, _, uploads = world.round(1, server, broadcast, states)
    rows = [get_payload(upload, payload) for _, upload in uploads]
    features = torch.cat([row.features for row in rows])
    labels = torch.cat([row.classes if payload is Prototypes else row.labels for row in rows])
    weight, bias = server["head.weight"], server["head.bias"]
    delta = torch.softmax(features @ weight.T + bias, 1) - torch.eye(CLASSES)[labels]
    expect_close(after["head.weight"], weight - 0.5 * delta.T @ features / len(labels), atol=1e-5)
    expect_close(after["head.bias"], bias - 0.5 * delta.mean(0), atol=1e-5)


# ---------------------------------------------------------------- what is uploaded


def test_uploads_are_computed_by_the_trained_model_over_every_sample():
    world = World("fedallrep", batch_size=4)
    server, broadcast, states = world.start()
    _, _, states, uploads = world.round(1, server, broadcast, states)
    for k, upload in uploads:
        setup = world.setups[k]
        put(setup.model, states[k], "model")
        sent = get_payload(upload, Representations)
        expect_same(sent.features, represent(setup.model, setup.train.images))
        expect_same(sent.labels, setup.train.labels)
        assert len(sent.labels) == SIZES[k]


def test_prototypes_are_exact_class_means():
    features, labels = torch.tensor([[1.0, 0], [3, 2], [5, 5]]), torch.tensor([2, 2, 0])
    means, classes, counts = class_means(features, labels)
    assert means.tolist() == [[5, 5], [2, 1]]
    assert classes.tolist() == [0, 2]
    assert counts.tolist() == [1, 2]


def test_fixed_weights_stay_and_resampled_weights_change():
    for sampling, stays in (("fixed", True), ("resampled", False)):
        world = World("fedre", {"sampling": sampling})
        server, broadcast, states = world.start()
        server, broadcast, first, _ = world.round(1, server, broadcast, states)
        before = world.setups[0].trace.result().mixture
        _, _, second, uploads = world.round(2, server, broadcast, first)
        weights = world.setups[0].trace.result().mixture
        assert torch.equal(before, weights) is stays
        assert (WEIGHTS in second[0]) is stays
        encoding = get_payload(uploads[0][1], Entangled).label_encoding
        for c in range(CLASSES):
            of_class = weights[world.setups[0].train.labels == c]
            assert float(encoding[c]) == pytest.approx(float(of_class.sum()), abs=1e-6)


# ---------------------------------------------------------------- FedProto


def test_fedproto_averages_uniformly_or_by_counts_and_keeps_what_nobody_sent():
    state = {
        fedproto.FEATURES: torch.tensor([[9.0], [9.0], [9.0]]),
        fedproto.KNOWN: torch.tensor([False, False, True]),
    }
    a = Prototypes(torch.tensor([[1.0], [4.0]]), torch.tensor([0, 1]), torch.tensor([1, 5]))
    b = Prototypes(torch.tensor([[5.0]]), torch.tensor([0]), torch.tensor([3]))
    averaged, (sent,) = fedproto.server_step(None, state, [(0, (a,)), (1, (b,))], None)
    assert averaged[fedproto.FEATURES].tolist() == [[4.0], [4.0], [9.0]]  # (1 * 1 + 5 * 3) / 4
    assert averaged[fedproto.KNOWN].tolist() == [True, True, True]
    assert (sent.features.tolist(), sent.classes.tolist()) == ([[4.0], [4.0], [9.0]], [0, 1, 2])
    plain = [(k, (Prototypes(p.features, p.classes),)) for k, p in enumerate((a, b))]
    assert fedproto.server_step(None, state, plain, None)[0][fedproto.FEATURES].tolist() == [[3.0], [4.0], [9.0]]


def test_fedproto_without_its_regulariser_is_local_training():
    alone, proto = World("local"), World("fedproto", {"weight": 0})
    for world in (alone, proto):
        server, broadcast, states = world.start()
        for number in (1, 2, 3):
            server, broadcast, states, _ = world.round(number, server, broadcast, states)
        world.states = states
    for one, other in zip(alone.states, proto.states, strict=True):
        for name, value in one.items():
            expect_same(value, other[name])


def test_fedproto_predicts_the_nearest_known_prototype():
    world = World("fedproto")
    _, _, states = world.start()
    setup, images = world.setups[0], torch.rand(5, *SHAPE)
    put(setup.model, states[0], "model")
    features = represent(setup.model, images)
    anchors = Prototypes(torch.stack([features[3], features[1]]).clone(), torch.tensor([1, 3]))
    received = world.method.apply_broadcast(setup, states[0], (anchors,))
    scores = world.method.predict(setup, received, images)
    distance = ((features[:, None] - anchors.features) ** 2).mean(2)
    expect_close(scores[:, [1, 3]], -distance, atol=1e-5)
    assert scores[:, [0, 2]].isneginf().all()
    assert scores.argmax(1)[[3, 1]].tolist() == [1, 3]


# ---------------------------------------------------------------- communication


def facts_of(world, broadcast):
    """Sizes of the world, as somebody would type them into ``fedpriv cost``."""
    from fedpriv.models.build import count_parameters
    from fedpriv.wire.sizes import FederationSizes

    known = {int(c) for setup in world.setups for c in setup.train.labels.unique()}
    return FederationSizes(
        clients=len(SIZES),
        classes=CLASSES,
        width=WIDTH,
        options=world.options,
        pairs=sum(len(setup.train.labels.unique()) for setup in world.setups),
        known_classes=len(known),
        samples=sum(SIZES),
        model_scalars=count_parameters(world.setups[0].model),
        all_model_scalars=sum(count_parameters(setup.model) for setup in world.setups),
        blueprint=world.setups[0].blueprint,
        clusters=sum(len(payload.features) for payload in broadcast if isinstance(payload, Prototypes)),
        public=None if world.server.public is None else len(world.server.public),
        compressed_scalars=sum(v.numel() for p in broadcast if p.kind == "low-rank-model" for v in p.factors.values()),
    )


@pytest.mark.parametrize(("name", "options"), ROWS, ids=str)
def test_the_ledger_of_a_settled_round_agrees_with_the_computed_communication(name, options):
    from fedpriv.federation.planned_traffic import message_sizes

    world = World(name, options, batch_size=4)
    server, broadcast, states = world.start()
    server, broadcast, states, _ = world.round(1, server, broadcast, states)
    _, _, _, uploads = world.round(2, server, broadcast, states)
    rows = [row for k in range(len(SIZES)) for row in entries(broadcast, 2, k, "broadcast")]
    rows += [row for k, upload in uploads for row in entries(upload, 2, k, "upload")]
    assert count(message_sizes(world.method, facts_of(world, broadcast))) == count(rows)
