"""Simulators of extractors that nobody sent: what comes through them is the client's, and nothing where nothing was sent."""

import math

import pytest
import torch
from compare import expect_close, expect_same
from torch.nn import functional

from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.decoder_network import Pairs
from fedpriv.attacks.inversion.surrogate import (
    Answers,
    SimulatedInversion,
    SimulatorTraining,
    class_means,
    discrepancy,
    simulator_network,
    train_simulator,
    worth_among,
)
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.datasets import SourceOptions, load_dataset
from fedpriv.datasets.types import Samples, as_unit
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator
from fedpriv.wire.payloads import Classifier, Prototypes, Representations

CARD = ThreatModel(extractor="none", attacker_data="same_domain")
BRIEF = SimulatedInversion(iterations=250, simulators=2)
WIDTH = 48


@pytest.fixture(scope="module")
def halves():
    """The client's images, and the attacker's."""
    samples = load_dataset("digits", SourceOptions(None, False, None, None)).samples
    order = torch.randperm(len(samples), generator=generator(0, "shuffle"))
    images, labels = as_unit(samples.images)[order], samples.labels[order]
    return Samples(images[:400], labels[:400]), Samples(images[400:1200], labels[400:1200])


@pytest.fixture(scope="module")
def upload(halves):
    """What a client uploads of its images, by a network that it trained, and the head that it was sent."""
    model = build_model(Blueprint("small-mlp", (1, 8, 8), 10, WIDTH), 5)
    optimiser, rng = torch.optim.Adam(model.parameters(), lr=3e-3), generator(0, "client")
    for _ in range(6):
        for index in torch.randperm(400, generator=rng).split(32):
            loss = functional.cross_entropy(model(halves[0].images[index]), halves[0].labels[index])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    model.eval().requires_grad_(False)
    head = Classifier({"weight": model.head.weight.detach(), "bias": model.head.bias.detach()})
    return Representations(model.represent(halves[0].images), halves[0].labels), head


@pytest.fixture(scope="module")
def known(halves):
    return Knowledge(CARD, (1, 8, 8), 10, public_images=halves[1].images, public_labels=halves[1].labels)


def seen(upload, head=None):
    return (Observation(1, 0, (upload,), () if head is None else (head,)),)


def psnr(found, images):
    return -10 * (found - images).square().flatten(1).mean(1).clamp_min(1e-10).log10()


def advantage(found, halves):
    """Return how far images are ahead of the mean image of the class, in dB."""
    blind = class_means(halves[1], 10)[halves[0].labels]
    return (psnr(found, halves[0].images) - psnr(blind, halves[0].images)).mean()


def test_private_images_come_back_without_their_extractor_and_those_of_a_strange_upload_do_not(halves, upload, known):
    rows, head = upload
    own = seen(rows, head)
    found = BRIEF(own, known, list_targets(own, "representation"), seed=0)
    assert advantage(found.images[:, 0], halves) > 0.5
    # Every row is another image's of the same class: the distribution is the same, the images are not.
    order = torch.argsort(rows.labels, stable=True)
    others = torch.empty_like(order)
    for label in rows.labels.unique():
        mine = order[rows.labels[order] == label]
        others[mine] = mine.roll(1)
    strange = seen(Representations(rows.features[others], rows.labels), head)
    assert advantage(BRIEF(strange, known, list_targets(strange, "representation"), seed=0).images[:, 0], halves) < 0


def test_vectors_that_have_nothing_to_do_with_images_give_the_mean_image_of_the_class(halves, upload, known):
    rows = Representations(torch.randn(400, WIDTH, generator=generator(0, "noise")), upload[0].labels)
    noise = seen(rows)
    found = BRIEF(noise, known, list_targets(noise, "representation"), seed=0)
    assert -0.2 < advantage(found.images[:, 0], halves) < 0.1


def test_a_discrepancy_by_hand():
    ours, theirs = torch.tensor([[0.0]]), torch.tensor([[0.0], [2.0]])
    # The mean squared distance of theirs, themselves included, is 2: distances of 0 and 4 give kernels of 1 and k.
    k = sum(math.exp(-4 / (scale * 2)) for scale in (0.25, 0.5, 1, 2, 4)) / 5
    expect_close(discrepancy(ours, theirs, torch.ones(1), torch.ones(2)), torch.tensor(1 + (1 + k) / 2 - (1 + k)))
    # Classes: ours 1, theirs 1 and 2; pairs of two classes weigh a quarter.
    with_classes = 1 + (1 + k / 4) / 2 - (1 + k / 4)
    expect_close(discrepancy(ours, theirs, torch.tensor([1]), torch.tensor([1, 2])), torch.tensor(with_classes))


def test_samples_alike_have_no_discrepancy_and_classes_exchanged_have_one():
    features, labels = torch.randn(40, 3, generator=generator(0, "x")), torch.arange(40) % 2
    features[labels == 1] += 2
    assert discrepancy(features, features, labels, labels).abs() < 1e-5
    assert discrepancy(features, features, labels, 1 - labels) > 0.05


def test_a_simulator_comes_to_answer_as_the_private_extractor_does(halves, upload):
    rows, head = upload
    answers = Answers(
        rows.features, rows.labels, lambda f: functional.linear(f, head.state["weight"], head.state["bias"])
    )
    network = simulator_network(answers, halves[1], 0, 0)
    before = network(halves[1].images).detach()
    train_simulator(network, answers, halves[1], SimulatorTraining(steps=250), 0)
    after = network(halves[1].images)
    assert not after.requires_grad
    apart = [discrepancy(one, rows.features, halves[1].labels, rows.labels) for one in (before, after)]
    assert apart[1] < 0.2 * apart[0]
    answered = answers.head(network(halves[0].images)).argmax(1)
    assert (answered == halves[0].labels).float().mean() > 0.7


def test_a_head_that_takes_other_vectors_is_left_aside(upload, known):
    attack, rows = SimulatedInversion(iterations=3, simulators=2), upload[0]
    targets = list_targets(seen(rows), "representation")[:2]
    other = Classifier({"weight": torch.ones(10, WIDTH + 1), "bias": torch.zeros(10)})
    without, beside = (attack(seen(rows, head), known, targets, seed=0).images for head in (None, other))
    expect_same(without, beside)


def test_images_are_drawn_as_often_of_each_class_as_the_client_has_it(halves):
    drawn = []

    class Watching(torch.nn.Linear):
        def forward(self, images):
            drawn.append(images)
            return super().forward(images.flatten(1))

    own = Samples(halves[1].labels.float().view(-1, 1, 1, 1) / 10, halves[1].labels)
    labels = torch.tensor([3] * 30 + [5] * 10)
    answers = Answers(torch.randn(40, 4, generator=generator(0, "rows")), labels)
    train_simulator(Watching(1, 4), answers, own, SimulatorTraining(steps=20), 0)
    classes = (torch.cat(drawn) * 10).round().flatten()
    assert set(classes.tolist()) == {3.0, 5.0}
    assert 0.7 < (classes == 3).float().mean() < 0.8


class FixedDecoder:
    """Decodes vectors by a factor of each extractor."""

    def __call__(self, features, extractor):
        return (features * (1, 2)[extractor]).reshape(-1, 1, 1, 2)


def test_the_worth_of_decoded_images_by_hand():
    images = torch.tensor([[0.4, 0.2]]).reshape(1, 1, 1, 2)
    held = Pairs([torch.tensor([[0.1, 0.1]]), torch.tensor([[0.2, 0.1]])], images)
    # The first is decoded as the second's: (0.2, 0.2); the second as the first's: (0.2, 0.1).
    along, squares = 0.2 * 0.4 + 0.2 * 0.2 + 0.2 * 0.4 + 0.1 * 0.2, 0.08 + 0.05
    assert along > squares  # more than all the way is not gone
    assert worth_among(FixedDecoder(), held, torch.zeros(1, 1, 1, 2)) == 1.0
    half = Pairs(held.features, images / 4)
    assert worth_among(FixedDecoder(), half, torch.zeros(1, 1, 1, 2)) == pytest.approx(along / 4 / squares)


def test_the_same_seed_gives_the_same_images_and_another_others(upload, known):
    attack, own = SimulatedInversion(iterations=5, simulators=2), seen(*upload)
    targets = list_targets(own, "representation")[:3]
    first, again, other = (attack(own, known, targets, seed=seed).images for seed in (0, 0, 1))
    expect_same(first, again)
    assert not first.equal(other)


def test_what_is_missing_is_said(halves, upload, known):
    rows, head = upload
    attack = SimulatedInversion(iterations=1, simulators=2)

    def refused(upload, knowledge):
        own = seen(upload, head)
        targets = list_targets(own, "representation") or list_targets(own, "prototype")
        with pytest.raises(UserError) as caught:
            attack(own, knowledge, targets, seed=0)
        return str(caught.value)

    for few in (1, 5):
        assert f"got {few} uploaded representations" in refused(
            Representations(rows.features[:few], rows.labels[:few]), known
        )
    images = Knowledge(CARD, (1, 8, 8), 10, public_images=halves[1].images[:3], public_labels=halves[1].labels[:3])
    assert "images of a client's classes; expected at least 16" in refused(rows, images)
    assert "needs labelled images" in refused(rows, Knowledge(CARD, (1, 8, 8), 10, public_images=halves[1].images))
    means = Prototypes(rows.features[:2], torch.arange(2))
    assert "uploaded no representations of images" in refused(means, known)
