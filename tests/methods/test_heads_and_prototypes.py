"""Heads that the server trains, and the uploads that it trains them on: FedGH, FedAllRep, FedRE, FedProto."""

import pytest
import torch
from compare import expect_close, expect_same
from method_cases import CLASSES, SHAPE, WIDTH, World, expect_step, trained
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import class_means, classify, represent
from fedpriv.federation.states import put
from fedpriv.methods import fedproto
from fedpriv.methods.fedproto import OUTPUTS
from fedpriv.methods.fedre import WEIGHTS
from fedpriv.uploads.payloads import ClassLogits, Entangled, Prototypes, Representations, get_payload
from fedpriv.util.seeds import generator


def test_fedres_server_takes_one_step_down_the_sum_of_soft_cross_entropies():
    torch.manual_seed(0)
    features, targets = torch.randn(3, WIDTH), torch.softmax(torch.randn(3, 4), 1)
    weight, bias = torch.randn(4, WIDTH), torch.randn(4)
    world = World("fedre", {"server": {"learning_rate": 0.1, "batch_size": 10, "epochs": 1}})
    uploads = [(k, (Entangled(*row),)) for k, row in enumerate(zip(features, targets, strict=True))]
    state = {"global.weight": weight, "global.bias": bias}
    trained, _ = world.method.server_step(world.server, state, uploads, generator(0))
    # d/dW of sum_k sum_c y_kc CE_c is (softmax(z_k) - y_k) r_k^T, summed over the uploads.
    delta = torch.softmax(features @ weight.T + bias, 1) - targets
    expect_close(trained["global.weight"], weight - 0.1 * delta.T @ features, atol=1e-6)
    expect_close(trained["global.bias"], bias - 0.1 * delta.sum(0), atol=1e-6)


@pytest.mark.parametrize(("name", "payload"), [("fedgh", Prototypes), ("fedallrep", Representations)])
def test_fedgh_and_fedallrep_train_the_head_by_mean_cross_entropy(name, payload):
    world = World(name, {"server": {"learning_rate": 0.5, "batch_size": 100}})
    server, broadcast, states = world.start()
    after, _, _, uploads = world.round(1, server, broadcast, states)
    rows = [get_payload(upload, payload) for _, upload in uploads]
    features = torch.cat([row.features for row in rows])
    labels = torch.cat([row.classes if payload is Prototypes else row.labels for row in rows])
    weight, bias = server["global.weight"], server["global.bias"]
    delta = torch.softmax(features @ weight.T + bias, 1) - torch.eye(CLASSES)[labels]
    expect_close(after["global.weight"], weight - 0.5 * delta.T @ features / len(labels), atol=1e-5)
    expect_close(after["global.bias"], bias - 0.5 * delta.mean(0), atol=1e-5)


def test_fixed_weights_stay_and_resampled_weights_change():
    for sampling, stays in (("fixed", True), ("resampled", False)):
        world = World("fedre", {"sampling": sampling})
        server, broadcast, states = world.start()
        server, broadcast, first, _ = world.round(1, server, broadcast, states)
        before = world.setups[0].trace.weights
        _, _, second, uploads = world.round(2, server, broadcast, first)
        weights = world.setups[0].trace.weights
        assert torch.equal(before, weights) is stays
        assert (WEIGHTS in second[0]) is stays
        encoding = get_payload(uploads[0][1], Entangled).label_encoding
        for c in range(CLASSES):
            of_class = weights[world.setups[0].train.labels == c]
            assert float(encoding[c]) == pytest.approx(float(of_class.sum()), abs=1e-6)


def test_fedproto_averages_uniformly_or_by_counts_and_keeps_what_nobody_sent():
    state = {fedproto.FEATURES: torch.tensor([[9.0], [9.0], [9.0]]), fedproto.KNOWN: torch.tensor([False, False, True])}
    a = Prototypes(torch.tensor([[1.0], [4.0]]), torch.tensor([0, 1]), torch.tensor([1, 5]))
    b = Prototypes(torch.tensor([[5.0]]), torch.tensor([0]), torch.tensor([3]))
    averaged, (sent,) = fedproto.PROTOTYPES.average(None, state, [(0, (a,)), (1, (b,))], None)
    assert averaged[fedproto.FEATURES].tolist() == [[4.0], [4.0], [9.0]]  # (1 * 1 + 5 * 3) / 4
    assert averaged[fedproto.KNOWN].tolist() == [True, True, True]
    assert (sent.features.tolist(), sent.classes.tolist()) == ([[4.0], [4.0], [9.0]], [0, 1, 2])
    plain = [(k, (Prototypes(p.features, p.classes),)) for k, p in enumerate((a, b))]
    assert fedproto.PROTOTYPES.average(None, state, plain, None)[0][fedproto.FEATURES].tolist() == [[3.0], [4.0], [9.0]]


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


def test_fd_averages_each_class_over_its_holders_and_keeps_what_nobody_sent():
    world = World("fd")
    eye = torch.eye(CLASSES)
    old = {OUTPUTS.values: eye[3].repeat(4, 1), OUTPUTS.known: torch.tensor([True, True, True, False])}
    sent = ((eye[:2], [0, 1]), (eye[2:3], [0]), (eye[:0], []))
    uploads = [(k, (ClassLogits(values, torch.tensor(c, dtype=torch.int64)),)) for k, (values, c) in enumerate(sent)]
    state, broadcast = world.method.server_step(world.server, old, uploads, generator(0))
    sent = get_payload(broadcast, ClassLogits)
    assert sent.classes.tolist() == [0, 1, 2]
    assert sent.values.tolist() == [[0.5, 0, 0.5, 0], [0, 1, 0, 0], [0, 0, 0, 1]]
    assert state[OUTPUTS.known].tolist() == [True, True, True, False]


def test_a_step_of_fd_is_its_loss_by_hand():
    world = World("fd", {"weight": 0.7}, batch_size=100, learning_rate=0.2)
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
        target = values[known.tolist().index(label)] if label in (0, 2) else row.detach().softmax(0)
        terms.append(-(target * row.log_softmax(0)).sum())
    loss = cross_entropy(logits, labels) + 0.7 * torch.stack(terms).mean()
    expect_step(model, state, loss, 0.2)


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
