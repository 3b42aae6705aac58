"""FD: mean logits of each class, averaged over its holders."""

import torch
from compare import expect_close, expect_same
from method_cases import CLASSES, World, trained
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import class_means, classify
from fedpriv.federation.states import put
from fedpriv.methods.prototypes import OUTPUTS
from fedpriv.util.seeds import generator
from fedpriv.wire.payloads import (
    ClassLogits,
    get_payload,
)


def test_fd_averages_each_class_over_its_holders_and_keeps_what_nobody_sent():
    world = World("fd")
    eye = torch.eye(CLASSES)
    old = {
        OUTPUTS.values: torch.stack([eye[3], eye[3], eye[3], eye[3]]),
        OUTPUTS.known: torch.tensor([True, True, True, False]),
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
