"""Matching the direction of updates: what the objective is, several steps, projections, and controls."""

from dataclasses import replace

import pytest
import torch
from compare import expect_same
from gradient_cases import CPU, RATE, SHAPE, attack, clients, images_and_labels, knowledge_of, psnr, sigmoid_net
from torch import nn

from fedpriv.algebra.low_rank import compress
from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.inverting import (
    InvertingGradients,
    NetworkKind,
    TargetInfo,
    absolute_variation,
    has_kinks,
)
from fedpriv.attacks.gradients.matching import Matcher
from fedpriv.attacks.gradients.update import batch_sizes, local_step, one_hot
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.observation import BatchFacts, Observation
from fedpriv.attacks.priors.dip import Hourglass
from fedpriv.uploads.payloads import LowRankModel, Model

SMOOTH = InvertingGradients(iterations=400, total_variation=0.002)
SMALL = Hourglass(channels=(8, 16), input_channels=8)


@pytest.mark.parametrize("given", [True, False])
def test_positive_control_single_images_come_back(given):
    images, labels = images_and_labels(4)
    found = attack(SMOOTH, sigmoid_net(), images, labels, given=given)
    assert found.images.shape == (4, 1, *SHAPE)
    assert (psnr(found.images[:, 0], images) > 25).all()
    assert found.labels[:, 0].tolist() == labels.tolist()


def test_negative_control_another_clients_upload_gives_the_floor():
    images, labels = images_and_labels(4)
    model = sigmoid_net()
    seen = clients(model, images, labels)
    shuffled = tuple(replace(own, upload=other.upload) for own, other in zip(seen, seen[1:] + seen[:1], strict=True))
    found = attack(SMOOTH, model, images, labels, observations=shuffled)
    floor = psnr(images.mean(0, keepdim=True).expand_as(images), images)
    assert (psnr(found.images[:, 0], images) < floor + 2).all()


@pytest.mark.parametrize("steps", [1, 3])
def test_the_true_images_match_exactly(steps):
    images, labels = images_and_labels(2 * steps)
    model = sigmoid_net()
    (seen,) = clients(model, images, labels, batch_size=2, steps=steps)
    step = local_step(seen, model, RATE, CPU)
    rows, probabilities = torch.tensor([0]), one_hot(labels.unsqueeze(0), 10)
    matching = Matcher(model, SHAPE, BatchFacts(2, RATE, steps), CPU).against([step], [2 * steps])
    assert abs(matching.cosine(images.unsqueeze(0), probabilities, rows).item()) < 1e-5
    assert matching.cosine(images.roll(1, 0).unsqueeze(0), probabilities, rows).item() > 1e-3
    scale = sum(value.square().sum() for value in step.gradient.values())
    assert matching.squared(images.unsqueeze(0), probabilities, rows) < 1e-6 * scale


@pytest.mark.slow
def test_images_of_several_steps_come_back():
    images, labels = images_and_labels(2)
    found = attack(SMOOTH, sigmoid_net(), images, labels, steps=2, rate=0.1)
    assert found.images.shape == (1, 2, *SHAPE)
    scores = torch.stack([psnr(found.images[0], images).mean(), psnr(found.images[0].flip(0), images).mean()])
    assert scores.max() > 20


def test_the_objective_is_that_of_the_returned_images():
    images, labels = images_and_labels(4)
    model = sigmoid_net()
    seen = clients(model, images, labels, batch_size=2)
    found = attack(InvertingGradients(iterations=30, total_variation=0.15), model, images, labels, batch_size=2)
    steps = [local_step(one, model, RATE, CPU) for one in seen]
    matching = Matcher(model, SHAPE, BatchFacts(2, RATE, 1), CPU).against(steps, [2, 2])
    value = matching.cosine(found.images, one_hot(labels.view(2, 2), 10), torch.arange(2))
    value = value * (0.02 + absolute_variation(found.images)) ** 2
    torch.testing.assert_close(value, found.objective[:, 0], rtol=1e-3, atol=1e-6)


ONE = TargetInfo(1)
KINKED_NETWORK, SMOOTH_NETWORK = NetworkKind(kinked=True, normed=False), NetworkKind(kinked=False, normed=False)


KNOWN = TargetInfo(4, apart=True, determined=True)


@pytest.mark.parametrize(
    ("network", "wanted", "iterations", "framed"),
    [
        (KINKED_NETWORK, ONE, 2000, True),
        (SMOOTH_NETWORK, TargetInfo(16), 125, True),
        (NetworkKind(kinked=True, normed=True), ONE, 2000, True),
        (NetworkKind(kinked=True, normed=True), KNOWN, 2000, True),
        (NetworkKind(kinked=False, normed=True), ONE, 2000, False),
        (KINKED_NETWORK, KNOWN, 125, False),
        (KINKED_NETWORK, replace(KNOWN, own_images=True), 125, True),
        (KINKED_NETWORK, replace(KNOWN, own_images=True), 500, False),
        (SMOOTH_NETWORK, KNOWN, 500, True),
    ],
)
def test_coordinates_of_a_spectrum_are_taken_where_they_help_or_where_they_are_asked_for(
    network, wanted, iterations, framed
):
    attacks = [InvertingGradients(iterations=iterations, prior=prior) for prior in ("auto", "spectrum", "variation")]
    found, asked, plain = (attack.configs(network, wanted) for attack in attacks)
    assert all(way.framed for way in asked)
    assert not any(way.framed for way in plain)
    assert found == (asked if framed else plain)
    told = InvertingGradients(total_variation=0.1, iterations=iterations).configs(network, wanted)
    assert [(way.framed, way.variation) for way in told] == [(False, 0.1)]


@pytest.mark.parametrize(
    ("layer", "expected"),
    [(nn.ReLU(), True), (nn.LeakyReLU(0.2), True), (nn.ReLU6(), True), (nn.Sigmoid(), False), (nn.GELU(), False)],
)
def test_kinks_and_batch_norms_of_a_network_are_seen(layer, expected):
    normed = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), layer, nn.MaxPool2d(2))
    assert has_kinks(normed, SHAPE) is expected
    assert NetworkKind.of(normed, SHAPE) == NetworkKind(kinked=expected, normed=True)
    assert not NetworkKind.of(nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), layer), SHAPE).normed


def test_results_do_not_depend_on_chunks():
    made, (images, labels) = InvertingGradients(iterations=300, restarts=2), images_and_labels(3)
    whole = attack(made, sigmoid_net(), images, labels)
    for chunk_rows in (1, 4):
        parts = attack(made, sigmoid_net(), images, labels, chunk_rows=chunk_rows)
        # Signs of all but equal gradients may differ, so a few pixels may.
        assert (parts.images - whole.images).abs().mean() < 1e-3
        torch.testing.assert_close(parts.objective, whole.objective, rtol=0.05, atol=1e-4)


def test_clients_with_different_weights_and_numbers_of_images_share_a_chunk():
    images, labels = images_and_labels(3)
    model, other = sigmoid_net(), sigmoid_net()
    with torch.no_grad():
        other[0].weight.mul_(1.1)
    (first,) = clients(model, images[:2], labels[:2], batch_size=2)
    (second,) = clients(other, images[2:], labels[2:])
    observations = (first, Observation(0, 1, second.upload, second.broadcast))
    knowledge = replace(knowledge_of(model, labels, 2), labels={(0, 0): labels[:2], (0, 1): labels[2:]})
    found = SMOOTH(observations, knowledge, list_targets(observations, "model"))
    assert found.images.shape == (2, 2, *SHAPE)
    expect_same(found.images[1, 0], found.images[1, 1])  # the second has one image; it is shown again
    assert found.labels[1].tolist() == [labels[2].item()] * 2
    assert psnr(found.images[1, :1], images[2:]) > 20


def test_truncated_uploads_are_compared_as_truncated():
    images, labels = images_and_labels(1)
    model = sigmoid_net()
    (seen,) = clients(model, images, labels)
    factors = compress({name: value.detach() for name, value in seen.upload[0].state.items()}, 0.9)
    low_rank = Observation(0, 0, (LowRankModel(factors),), (Model(dict(seen.broadcast[0].state)),))
    step = local_step(low_rank, model, RATE, CPU)
    assert step.project is not None
    matching = Matcher(model, SHAPE, BatchFacts(1, RATE, 1), CPU).against([step], [1])
    probabilities = one_hot(labels.unsqueeze(0), 10)
    assert abs(matching.cosine(images.unsqueeze(0), probabilities, torch.tensor([0])).item()) < 1e-4
    assert matching.cosine(1 - images.unsqueeze(0), probabilities, torch.tensor([0])).item() > 1e-3


def test_rounds_split_into_batches():
    cases = [(1, 1, 1, [1]), (6, 2, 3, [2, 2, 2]), (5, 2, 3, [2, 2, 1]), (5, 2, 2, [2, 3]), (3, 8, 1, [3])]
    for count, size, steps, expected in cases:
        assert batch_sizes(count, BatchFacts(size, RATE, steps)) == expected


def test_inferred_labels_are_dealt_out_over_the_steps():
    images, _ = images_and_labels(4)
    labels = torch.tensor([1, 7, 1, 7])
    model = sigmoid_net()
    observations = clients(model, images, labels, batch_size=2, steps=2, rate=0.01)
    knowledge = knowledge_of(model, labels, 2, 2, given=False, rate=0.01)
    asked = AttackProblem(observations, knowledge, list_targets(observations, "model"))
    problem = InvertingGradients(apart=False).read(asked)
    assert problem.labels.tolist() == [[1, 7, 1, 7]]


def test_total_variation_by_hand():
    images = torch.tensor([[0.0, 1.0], [0.5, 0.5]]).view(1, 1, 1, 2, 2)
    assert absolute_variation(images).item() == pytest.approx((1 + 0) / 2 + (0.5 + 0.5) / 2)
