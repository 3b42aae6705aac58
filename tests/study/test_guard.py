"""A client's guard: what leaks is caught, what does not is no leak, and what was not decided never reads as safe."""

import pytest
import torch
from looped import each
from torch import nn
from torch.nn.functional import cross_entropy

import fedpriv
from fedpriv.util.errors import UserError

DATA = fedpriv.load("fashion", per_class=40)
IMAGES = "leak:reconstruction"


def conv():
    layers = [nn.Conv2d(1, 12, 5, 2, 2), nn.Sigmoid(), nn.Conv2d(12, 12, 5, 2, 2), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(588, 10))


def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def guarded(make, count, *, noise=0.0, others=0, **more):
    """Guard the gradient of some images, with noise so many times as large, and so many held-out images."""
    torch.manual_seed(0)
    model, order = make(), torch.randperm(len(DATA))
    (images, unseen, rest), (labels, theirs, known) = (
        values[order].split([count, others, len(DATA) - count - others]) for values in (DATA.images, DATA.labels)
    )
    sent = torch.autograd.grad(cross_entropy(model(images), labels), model.parameters())
    sent = [one + noise * one.norm() / one.numel() ** 0.5 * torch.randn_like(one) for one in sent]
    more = {"auxiliary": rest, "auxiliary_labels": known} | ({"held_out": (unseen, theirs)} if others else {}) | more
    return fedpriv.guard(fedpriv.Gradient(sent), model=model, images=images, labels=labels, **more)


def test_one_image_behind_a_gradient_is_caught():
    result = guarded(conv, 1)
    assert (result.status, result.came_back, result.iterations, result.n_images) == ("leak", 1, 300, 1)
    assert "this 1 image alone, and no other client" in str(result)
    assert "1 of 1 images came back" in result.reasons[0]
    assert not any("Reconstruction" in line for line in result.reasons[1:])


def test_a_closed_form_takes_a_batch_and_tells_its_members():
    result = guarded(dense, 16, others=64, auxiliary=None, auxiliary_labels=None)  # guesses are made of the 64
    assert (result.status, result.iterations) == ("leak", 0)  # nothing was searched for
    assert result.came_back > 10
    found = {answer.endpoint: answer for answer in result.answers if answer.verdict == "leak"}
    assert {"reconstruction", "membership"} <= set(found)
    low, high = found["reconstruction"].ci95
    assert 0 < low < found["reconstruction"].advantage < high
    assert (found["reconstruction"].units, found["reconstruction"].n_clients) == ("images", 16)


def test_noise_that_hides_the_images_is_no_leak_and_passes_where_it_is_said():
    noise = "local-dp:clipping_norm=1,sensitivity=1,epsilon=1,delta=1e-5"
    results = [guarded(dense, 16, noise=5.0, fail_on=IMAGES, defense=each) for each in ((), noise)]
    assert [result.status for result in results] == ["inconclusive", "pass"]
    assert ["premise" in results[0].reasons[0], "at most" in results[1].reasons[0]] == [True, True]


def test_a_search_that_is_cut_short_is_inconclusive():
    """Six images' objective is below the search's own tolerance from the first step on, and above the truth's."""
    one, six = (guarded(conv, count, iterations=3, fail_on=IMAGES) for count in (1, 6))
    assert [(result.status, result.came_back) for result in (one, six)] == [("inconclusive", 0)] * 2
    assert six.answers[0].able.reached == 0.0
    assert "under-powered attack" in six.reasons[0]


def test_what_was_not_measured_is_inconclusive():
    result = guarded(conv, 20, fail_on="leak:reconstruction,leak:membership")
    assert (result.status, result.iterations, result.answers) == ("inconclusive", 0, ())
    assert [line.partition(" ")[2][:16] for line in result.reasons] == ["was not measured"] * 2


def test_prototypes_name_their_classes_in_clear():
    network, kept = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU()), DATA.labels < 3
    images, labels = DATA.images[kept][::10], DATA.labels[kept][::10]
    means = torch.stack([network(images[labels == c]).mean(0).detach() for c in range(3)])
    truth = {"images": images, "labels": labels, "auxiliary": DATA.images[~kept], "n_classes": 10}
    sent = fedpriv.Prototypes(means, torch.arange(3), torch.bincount(labels))
    result = fedpriv.guard(sent, extractor=network, iterations=5, fail_on="leak:label-disclosure", **truth)
    assert result.status == "leak"
    assert "in clear" in result.reasons[0]
    with pytest.raises(UserError, match="target: missing; a dict does not say its kind"):
        fedpriv.guard({0: means[0]}, extractor=network, **truth)
    result = fedpriv.guard(sent, extractor=network, iterations=5, fail_on="leak:membership", **truth)
    assert (result.status, result.reasons[0][:27]) == ("inconclusive", "Membership was not measured")


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
