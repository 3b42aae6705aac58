"""A client's guard: what leaks is caught, what does not is no leak, and what was not decided never reads as safe."""

import pytest
import torch
from looped import each
from torch import nn
from torch.nn.functional import cross_entropy

import fedpriv
from fedpriv.util.errors import UserError

DATA = fedpriv.load("fashion", per_class=40)


def conv():
    layers = [nn.Conv2d(1, 12, 5, 2, 2), nn.Sigmoid(), nn.Conv2d(12, 12, 5, 2, 2), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(588, 10))


def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def guarded(make, count, *, noise=0.0, send=None, **more):
    """Guard the gradient of the first images, in an order drawn by a seed, or what ``send`` makes of it."""
    torch.manual_seed(0)
    model, order = make(), torch.randperm(len(DATA))
    images, labels = DATA.images[order[:count]], DATA.labels[order[:count]]
    sent = torch.autograd.grad(cross_entropy(model(images), labels), model.parameters())
    sent = [one + noise * one.norm() / one.numel() ** 0.5 * torch.randn_like(one) for one in sent]
    rest = order[200:]
    more = {"auxiliary": DATA.images[rest], "auxiliary_labels": DATA.labels[rest]} | more
    return fedpriv.guard(fedpriv.Gradient(sent), model=model, images=images, labels=labels, **more)


def held_out(count):
    torch.manual_seed(0)
    dense()
    order = torch.randperm(len(DATA))
    return DATA.images[order[count : 5 * count]], DATA.labels[order[count : 5 * count]]


def test_one_image_behind_a_gradient_is_caught():
    result = guarded(conv, 1)
    assert (result.status, result.came_back, result.iterations, result.n_images) == ("leak", 1, 300, 1)
    assert "this 1 image alone, and no other client" in str(result)
    assert "1 of 1 images came back" in result.reasons[0]
    assert not any("Reconstruction" in line for line in result.reasons[1:])


def test_a_closed_form_takes_a_batch_and_tells_its_members():
    result = guarded(dense, 16, held_out=held_out(16))
    assert result.status == "leak"
    assert result.iterations == 0  # nothing was searched for
    assert result.came_back > 10
    found = {answer.endpoint: answer for answer in result.answers if answer.verdict == "leak"}
    assert set(found) == {"reconstruction", "membership"}
    low, high = found["reconstruction"].ci95  # over images
    assert 0 < low < found["reconstruction"].advantage < high
    assert (found["reconstruction"].units, found["reconstruction"].n_clients) == ("images", 16)


@each("noise, status", [(0.0, "leak"), (5.0, "inconclusive")])
def test_noise_that_hides_the_images_is_no_leak(noise, status):
    assert guarded(dense, 16, noise=noise, fail_on="leak:reconstruction").status == status


def test_noise_that_is_said_can_pass():
    """The premise does not forbid it where the defense is named; the bound lies below half a decibel."""
    how = {
        "noise": 5.0,
        "fail_on": "leak:reconstruction",
        "defense": "local-dp:clipping_norm=1,sensitivity=1,epsilon=1,delta=1e-5",
    }
    result = guarded(dense, 16, **how)
    assert result.status == "pass", result
    assert "at most" in result.reasons[0]


@each("count", [1, 6])
def test_a_search_that_is_cut_short_is_inconclusive(count):
    result = guarded(conv, count, iterations=3, fail_on="leak:reconstruction")
    assert (result.status, result.came_back) == ("inconclusive", 0)
    if count > 5:
        assert result.answers[0].able.reached == 0.0
        assert "under-powered attack" in result.reasons[0]


def test_what_was_not_measured_is_inconclusive():
    result = guarded(conv, 20, fail_on="leak:reconstruction,leak:membership")
    assert (result.status, result.iterations, result.answers) == ("inconclusive", 0, ())
    assert [line.split(":")[0] for line in result.reasons] == [
        "Reconstruction was not measured",
        "Membership was not measured",
    ]


def test_prototypes_name_their_classes_in_clear():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU())
    images, labels = DATA.images[:60], DATA.labels[:60]
    kept = labels < 3
    images, labels = images[kept], labels[kept]
    means = torch.stack([network(images[labels == c]).mean(0).detach() for c in labels.unique()])
    payload = fedpriv.Prototypes(means, labels.unique(), torch.bincount(labels)[labels.unique()])
    result = fedpriv.guard(
        payload,
        extractor=network,
        images=images,
        labels=labels,
        auxiliary=DATA.images[200:],
        n_classes=10,
        iterations=5,
        fail_on="leak:label-disclosure",
    )
    assert result.status == "leak"
    assert "in clear" in result.reasons[0]


@each(
    "more, words",
    [
        ({"auxiliary": None}, "auxiliary: missing; pass images that the upload was not computed from, or held_out"),
        ({"iterations": 0}, "iterations=0: expected at least 1"),
        ({"redact": "omit"}, "redact: a guard measures"),
        ({"target": "prototype"}, "prototype is no upload of weights"),
    ],
)
def test_bad_input_is_one_line(more, words):
    with pytest.raises(UserError) as caught:
        guarded(conv, 1, **more)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
