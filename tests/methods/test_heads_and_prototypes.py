"""Heads that the server trains, and the uploads that it trains them on: FedGH, FedAllRep, FedRE, FedProto."""

import pytest
import torch
from compare import expect_close
from method_cases import CLASSES, SHAPE, World

from fedpriv.federation.local_training import represent
from fedpriv.federation.states import put
from fedpriv.methods import fedproto
from fedpriv.methods.fedre import WEIGHTS
from fedpriv.methods.shared import global_head
from fedpriv.util.seeds import generator
from fedpriv.wire.payloads import Entangled, Prototypes, Representations, get_payload


def test_fedres_server_takes_one_step_down_the_sum_of_soft_cross_entropies():
    torch.manual_seed(0)
    features, targets = torch.randn(3, 5), torch.softmax(torch.randn(3, 4), 1)
    weight, bias = torch.randn(4, 5), torch.randn(4)
    options = global_head.HeadTraining(learning_rate=0.1, batch_size=10, epochs=1)
    trained, _ = global_head.train_head(
        {"global.weight": weight, "global.bias": bias}, features, targets, options, generator(0), "sum"
    )
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
