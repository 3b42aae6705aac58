"""What the update of a linear layer gives away: exact where the algebra says so, contrasts or nothing where it does not."""

from dataclasses import replace

import pytest
import torch
from compare import expect_close
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from fedpriv.attacks.features.closed_form import HeadStep, means_of_head, recover_from_head
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation, ThreatModel
from fedpriv.uploads.payloads import Classifier
from fedpriv.util.errors import UserError

CLASSES, WIDTH = 10, 64


def head(seed, scale=0.1):
    rng = torch.Generator().manual_seed(seed)
    weight = scale * torch.randn(CLASSES, WIDTH, generator=rng, dtype=torch.float64)
    return weight, 0.1 * torch.randn(CLASSES, generator=rng, dtype=torch.float64)


def images_behind(seed, number):
    return torch.rand(number, WIDTH, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)


def gradient(weight, bias, features, labels):
    """The gradient of the mean cross-entropy, by autograd."""
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    return torch.autograd.grad(cross_entropy(features @ weight.T + bias, labels), (weight, bias))


def error(found, true):
    return float(((found.double() - true).norm(dim=1) / true.norm(dim=1)).max())


def seen(features, labels, *, seed=0, learning_rate=0.1, scale=0.1):
    """One SGD step in float32, as a server sees it."""
    weight, bias = head(seed, scale)
    slopes = gradient(weight, bias, features, labels)
    before = {"weight": weight.float(), "bias": bias.float()}
    after = {name: (before[name] - learning_rate * slope).float() for name, slope in zip(before, slopes, strict=True)}
    return Observation(1, 0, (Classifier(after),), (Classifier(before),))


def knowledge(batch_size, *, labels=None, steps=1):
    card, facts = ThreatModel(labels="inferred" if labels is None else "given"), BatchFacts(batch_size, 0.1, steps)
    told = {} if labels is None else {(1, 0): labels}
    return Knowledge(card, (1, 8, 8), CLASSES, batch=facts, labels=told)


def alone(weight, bias, state):
    """What is recovered of an update by one image."""
    before = {"weight": state[0], "bias": state[1]}
    after = {"weight": state[0] - 0.1 * weight, "bias": state[1] - 0.1 * bias}
    return recover_from_head(Observation(1, 0, (Classifier(after),), (Classifier(before),)), knowledge(1))


def test_one_image_by_hand_and_no_update():
    # Two classes, zero weights: p = (1/2, 1/2), label 1, so delta = (1/2, -1/2) and dW = delta r^T for r = (3, 4).
    start = torch.zeros(2, 2), torch.zeros(2)
    found = alone(torch.tensor([[1.5, 2.0], [-1.5, -2.0]]), torch.tensor([0.5, -0.5]), start)
    expect_close(found.means.float(), torch.tensor([[3.0, 4.0]]))
    assert (found.classes.tolist(), found.settled) == ([1], True)
    nothing = alone(torch.zeros(2, 2), torch.zeros(2), start)
    assert (nothing.means.tolist(), nothing.settled) == ([[0.0, 0.0]], False)


@given(st.integers(0, 999), st.integers(0, CLASSES - 1))
def test_one_image_is_exact_above_60_db_and_its_label_is_read_off(seed, label):
    image = torch.rand(WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    # An extractor of one invertible layer, so that the image follows from its representation.
    layer = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(seed)).double())[0]
    found = recover_from_head(seen((layer @ image)[None], torch.tensor([label]), seed=seed), knowledge(1))
    back = (layer.T @ found.means[0].double()).clamp(0, 1)
    assert -10 * torch.log10((back - image).square().mean()) > 60
    assert found.classes.tolist() == [label]


@given(st.integers(0, 99), st.integers(2, 6))
@example(61, 4)  # these two have a second solution in the rows of the classes that were trained on
@example(1375, 6)
def test_images_of_distinct_classes_in_one_step_are_all_exact(seed, number):
    weight, bias = head(seed)
    features = images_behind(seed, number)
    labels = torch.randperm(CLASSES, generator=torch.Generator().manual_seed(seed))[:number].sort().values
    slopes = gradient(weight, bias, features, labels)
    found = means_of_head(HeadStep(*slopes, ((weight, bias),), torch.full((number,), 1 / number)), labels)
    assert found.settled
    assert error(found.means, features) < 1e-4
    assert found.residual < 1e-6


def test_a_client_with_every_class_gives_contrasts_and_the_condition_says_so():
    weight, bias = torch.zeros(CLASSES, WIDTH).double(), torch.zeros(CLASSES).double()
    features = images_behind(0, CLASSES)
    slopes = gradient(weight, bias, features, torch.arange(CLASSES))
    found = means_of_head(HeadStep(*slopes, ((weight, bias),), torch.full((10,), 0.1)), torch.arange(CLASSES))
    assert found.condition == float("inf")
    assert error(found.means, features) > 0.5
    centred = features - features.mean(0)
    assert error(found.means - found.means.mean(0), centred) < 1e-4


def test_shuffled_uploads_give_somebody_elses_representation():
    other = images_behind(20, 1)
    found = recover_from_head(seen(other, torch.tensor([2])), knowledge(1))
    assert error(found.means, other) < 1e-4
    assert error(found.means, images_behind(7, 1)) > 0.3


def test_what_is_missing_is_named():
    step = seen(images_behind(0, 1), torch.tensor([0]))
    with pytest.raises(UserError, match="holds no classifier"):
        recover_from_head(Observation(1, 0, (), step.broadcast), knowledge(1))


def test_class_means_of_differing_images_are_exact_where_single_images_come_apart():
    labels = torch.tensor([3, 3, 7, 1])
    features = images_behind(11, 4)
    observation = seen(features, labels, scale=0.5)
    solved = recover_from_head(observation, knowledge(4, labels=labels))
    assert solved.classes.tolist() == [1, 3, 7]
    means = torch.stack([features[labels == label].mean(0) for label in solved.classes])
    assert error(solved.means, means) < 1e-3
    assert solved.residual < 1e-3


def test_means_that_are_not_exact_say_no_numbers():
    """Differing images of a class, noise on the update, all classes at once: the equations do not hold, or not alone."""
    spread = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 4, 4])
    features = images_behind(7, len(spread)) * 3
    solved = recover_from_head(seen(features, spread, scale=0.5), knowledge(12, labels=spread))
    assert error(solved.means, torch.stack([features[spread == one].mean(0) for one in range(5)])) > 0.01
    assert solved.counts is None
    labels = torch.tensor([2, 5, 8])
    clean = seen(images_behind(4, 3), labels)
    (sent,) = clean.upload
    state = dict(sent.state)
    state["weight"] = state["weight"] + 2e-3 * torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(0))
    noisy = replace(clean, upload=(Classifier(state),))
    assert recover_from_head(noisy, knowledge(3, labels=labels)).counts is None
    assert recover_from_head(clean, knowledge(3, labels=labels, steps=2)).counts is None
    guessed = recover_from_head(clean, knowledge(3))  # shares of classes that are inferred are not exact
    assert guessed.classes.tolist() == labels.tolist()
    assert guessed.counts is None
    every = torch.arange(CLASSES)
    whole = recover_from_head(seen(images_behind(4, CLASSES), every), knowledge(CLASSES, labels=every))
    assert whole.counts is None
