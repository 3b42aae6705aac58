"""Columns of images found by what labels make of them: in a span of many, by alike and by differing predictions."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpriv.attacks.gradients.separated_batch import label_slopes, logits_behind, rectified_head
from fedpriv.attacks.gradients.separation import LabelSlopes, linear_gradient, masked_columns, separate

OUTPUTS, CLASSES = 256, 10


def batch(count, spread, seed=0, inputs=300):
    """A head, labels, and the columns ``(m, n)`` and inputs ``(n, k)`` of images whose predictions vary so widely."""
    draw = torch.Generator().manual_seed(seed)
    head = torch.randn(CLASSES, OUTPUTS, generator=draw, dtype=torch.float64)
    labels = torch.randint(CLASSES, (count,), generator=draw)
    chances = (spread * torch.randn(count, CLASSES, generator=draw, dtype=torch.float64)).softmax(1)
    errors = (chances - functional.one_hot(labels, CLASSES)) @ head
    errors = errors * (torch.rand(count, OUTPUTS, generator=draw) < 0.5)
    known = LabelSlopes(head, chances.mean(0), torch.bincount(labels, minlength=CLASSES))
    return known, errors.T, torch.rand(count, inputs, generator=draw, dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("count", "spread", "least"), [(8, 0.01, 8), (48, 0.01, 48), (16, 1.0, 10)])
def test_columns_are_the_masked_slopes_of_their_labels(count, spread, least):
    known, columns, _ = batch(count, spread)
    mixed = columns @ torch.randn(count, count, generator=generator(1), dtype=torch.float64)
    found = mixed @ masked_columns(mixed, known, generator()).T
    alike = functional.cosine_similarity(found.T.unsqueeze(1), columns.T, dim=2).abs()
    assert int((alike > 0.999).any(0).sum()) >= least
    assert (alike > 0.999).any(1).float().mean() > 0.9  # hardly anything else is taken for one


def test_labels_that_are_not_there_find_nothing():
    known, columns, _ = batch(8, 0.01)
    absent = torch.where(known.counts > 0, 0, 4)
    assert not len(masked_columns(columns, LabelSlopes(known.head, known.chances, absent), generator()))


def test_more_images_than_zeros_alone_tell_apart():
    known, columns, inputs = batch(48, 0.01)
    weight, bias = columns @ inputs, columns.sum(1)
    found = separate(weight, bias, 48, generator(), known)
    assert found.attested == 48
    order = torch.cdist(found.errors.T, columns.T).argmin(1)
    assert sorted(order.tolist()) == list(range(48))
    torch.testing.assert_close(found.errors, columns[:, order], rtol=1e-4, atol=1e-5)


class Network(nn.Module):
    """Two layers, between them an activation."""

    def __init__(self, activation):
        super().__init__()
        self.body, self.head, self.activation = nn.Linear(12, 30), nn.Linear(30, 5), activation

    def forward(self, images):
        return self.head(self.activation(self.body(images.flatten(1))))


def test_the_head_behind_a_relu_is_read_off_and_no_other():
    model = Network(nn.ReLU())
    weights = {name: value.detach() for name, value in model.named_parameters()}
    weight, bias = rectified_head(logits_behind(model, weights, "body", (3, 2, 2)), weights["body.bias"])
    torch.testing.assert_close(weight, weights["head.weight"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(bias, weights["head.bias"], rtol=1e-4, atol=1e-5)
    for other in (nn.Sigmoid(), nn.LeakyReLU(0.1), nn.Identity()):
        assert rectified_head(logits_behind(Network(other), weights, "body", (3, 2, 2)), weights["body.bias"]) is None


def test_the_mean_prediction_is_that_of_the_gradient_of_the_heads_bias():
    torch.manual_seed(0)
    model, images, labels = Network(nn.ReLU()), torch.rand(6, 3, 2, 2), torch.tensor([0, 0, 3, 4, 1, 3])
    logits = model(images)
    functional.cross_entropy(logits, labels).backward()
    weights = {name: value.detach() for name, value in model.named_parameters()}
    gradient = {name: value.grad for name, value in model.named_parameters()}
    behind = logits_behind(model, weights, "body", (3, 2, 2))
    found = label_slopes(behind, weights["body.bias"], labels, gradient)
    torch.testing.assert_close(found.chances, logits.softmax(1).mean(0).double(), rtol=1e-4, atol=1e-5)
    assert found.counts.tolist() == [2, 1, 0, 2, 1]
    unsent = {name: value for name, value in gradient.items() if not name.startswith("head")}
    typical = label_slopes(behind, weights["body.bias"], labels, unsent)
    torch.testing.assert_close(typical.chances, weights["head.bias"].softmax(0).double(), rtol=1e-4, atol=1e-5)
    for strange in ([-1, 0], [0, 5], []):
        assert label_slopes(behind, weights["body.bias"], torch.tensor(strange, dtype=torch.int64), gradient) is None
    still = {name: value * ("head" not in name) for name, value in weights.items()}
    assert label_slopes(logits_behind(model, still, "body", (3, 2, 2)), weights["body.bias"], labels, gradient) is None


def test_of_an_image_that_the_network_is_sure_of_the_rest_is_told_apart_all_the_same():
    known, columns, inputs = batch(8, 0.01)
    gradient = {"f.weight": columns @ inputs, "f.bias": columns.sum(1)}
    surplus = LabelSlopes(known.head, known.chances, known.counts + functional.one_hot(torch.tensor(4), CLASSES))
    parts = linear_gradient(gradient, None, "f").parts(9, generator(), surplus)
    assert parts.explained
    assert not parts.attested
    assert int((parts.derivatives == 0).all(1).sum()) == int((parts.inputs == 0).all(1).sum()) == 1
    alike = functional.cosine_similarity(parts.derivatives.double().unsqueeze(1), columns.T, dim=2)
    assert int((alike > 0.999).any(0).sum()) == 8
    assert linear_gradient(gradient, None, "f").parts(9, generator()) is None
