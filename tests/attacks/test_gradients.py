"""Gradient matching: what the server computes, which labels it reads, and a control that must succeed."""

import pytest
import torch
from gradient_cases import CPU, RATE, SHAPE, attack, clients, images_and_labels, psnr, sigmoid_net
from torch import nn
from torch.nn import functional

from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.gradients.update import StepModel, labels_of_head, last_layer, local_step
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation, ThreatModel
from fedpriv.uploads.payloads import Model
from fedpriv.util.errors import UserError


@pytest.mark.parametrize("given", [True, False])
def test_positive_control_single_images_come_back(given):
    images, labels = images_and_labels(4)
    found = attack(DeepLeakage(outer_steps=40), sigmoid_net(), images, labels, given=given)
    assert found.images.shape == (4, 1, *SHAPE)
    assert (psnr(found.images[:, 0], images) > 30).sum() >= 3
    assert found.labels[:, 0].tolist() == labels.tolist()


def test_two_images_at_once_come_back_in_some_order():
    images, labels = images_and_labels(2)
    found = attack(DeepLeakage(outer_steps=60, restarts=2), sigmoid_net(), images, labels, batch_size=2)
    assert found.images.shape == (1, 2, *SHAPE)
    assert found.objective.shape == (1, 2)
    orders = [psnr(found.images[0], images).mean(), psnr(found.images[0].flip(0), images).mean()]
    assert max(orders) > 25


def test_labels_can_be_optimised_too():
    images, labels = images_and_labels(4)
    found = attack(DeepLeakage(outer_steps=40, labels="joint"), sigmoid_net(), images, labels, given=False)
    good = psnr(found.images[:, 0], images) > 30
    assert good.sum() >= 2
    assert (found.labels[good, 0] == labels[good]).all()


def test_negative_control_noise_for_a_gradient_gives_no_image():
    images, labels = images_and_labels(2)
    model = sigmoid_net()
    observations = []
    for seen in clients(model, images, labels):
        draw = torch.Generator().manual_seed(seen.client)
        sent = seen.broadcast[0].state
        noise = {name: value + 0.01 * torch.randn(value.shape, generator=draw) for name, value in sent.items()}
        observations.append(Observation(0, seen.client, (Model(noise),), seen.broadcast))
    found = attack(DeepLeakage(outer_steps=10), model, images, labels, observations=tuple(observations))
    floor = psnr(torch.full_like(images, 0.5), images)
    assert (psnr(found.images[:, 0], images) < floor + 1).all()
    assert not found.converged.any()


def test_the_objective_is_that_of_the_returned_image():
    images, labels = images_and_labels(2)
    model = sigmoid_net()
    found = attack(DeepLeakage(outer_steps=4), model, images, labels)
    for row, seen in enumerate(clients(model, images, labels)):
        step = local_step(seen, model, RATE, CPU)
        hot = functional.one_hot(labels[row : row + 1], 10).float()
        own = StepModel(model, CPU).gradient(step.weights, found.images[row], hot)
        distance = sum((own[name] - step.gradient[name]).square().sum() for name in own)
        scale = sum(value.square().sum() for value in step.gradient.values())
        torch.testing.assert_close(distance / scale, found.objective[row, 0], rtol=1e-2, atol=1e-9)


def test_the_gradient_is_the_clients_own():
    """With batch norm the client steps in training mode, and its running statistics must have no part."""
    model = sigmoid_net()
    model.insert(1, nn.BatchNorm2d(12))
    model[1].running_mean.fill_(3.0)
    images, labels = images_and_labels(3)
    (seen,) = clients(model, images, labels, 3)
    step = local_step(seen, model, RATE, CPU)
    hot = functional.one_hot(labels, 10).float()
    own = StepModel(model, CPU).gradient(step.weights, images, hot)
    assert list(own) == [name for name, _ in model.named_parameters()]
    for name, value in own.items():
        torch.testing.assert_close(value, step.gradient[name], rtol=1e-3, atol=2e-6)


@pytest.mark.parametrize("labels", [[3], [2, 7, 9], [1, 1, 1, 4], [5, 5, 0, 0, 8, 8]])
def test_labels_are_counted_from_the_bias(labels):
    model = sigmoid_net()
    truth = torch.tensor(labels)
    images, _ = images_and_labels(len(labels))
    loss = functional.cross_entropy(model(images) * 0.05, truth)  # soft predictions, as in the first round
    weight, bias = torch.autograd.grad(loss, [model[5].weight, model[5].bias])
    assert labels_of_head(weight, bias, len(labels)).tolist() == sorted(labels)


def test_labels_without_bias_are_read_from_the_weight():
    model = sigmoid_net(bias=False)
    images, labels = images_and_labels(1)
    (seen,) = clients(model, images, labels)
    weight, bias = last_layer(local_step(seen, model, RATE, CPU).gradient, 10)
    assert bias is None
    assert labels_of_head(weight, bias, 1).tolist() == labels.tolist()


def test_a_model_without_such_a_layer_has_no_labels_to_read():
    with pytest.raises(UserError, match="no linear layer with 7 outputs"):
        last_layer(dict(sigmoid_net().named_parameters()), 7)


def test_missing_labels_model_and_facts_are_named():
    images, labels = images_and_labels(1)
    model = sigmoid_net()
    observations = clients(model, images, labels)
    targets = list_targets(observations, "model")
    facts = BatchFacts(1, RATE, 1)
    cases = {
        "shared architecture": Knowledge(ThreatModel(), SHAPE, 10, batch=facts),
        "batch facts": Knowledge(ThreatModel(batch=False), SHAPE, 10, model=model),
        "none were handed over": Knowledge(ThreatModel(), SHAPE, 10, model=model, batch=facts),
        r"3 labels .* expected 1 to 1: 1 step\(s\) of a batch of 1": Knowledge(
            ThreatModel(), SHAPE, 10, model=model, batch=facts, labels={(0, 0): labels.repeat(3)}
        ),
    }
    for message, knowledge in cases.items():
        with pytest.raises(UserError, match=message):
            DeepLeakage()(observations, knowledge, targets)


def test_a_broadcast_of_another_model_is_refused():
    images, labels = images_and_labels(1)
    (seen,) = clients(sigmoid_net(), images, labels)
    with pytest.raises(UserError, match=r"broadcast parameter '0\.weight' should be \(3, 1, 5, 5\)"):
        local_step(seen, nn.Sequential(nn.Conv2d(1, 3, 5)), RATE, CPU)
