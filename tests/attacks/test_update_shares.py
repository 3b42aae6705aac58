"""Changes of weights tell which classes a client trained on, and how much on each."""

from pathlib import Path

import pytest
import torch
from compare import expect_close
from federations import DIGITS
from torch.nn.functional import cross_entropy, one_hot

from fedpriv.attacks.inference.base import InferenceProblem, Moment
from fedpriv.attacks.inference.property import BY_BIASES, BY_GRADIENTS, IN_CLEAR, PropertyInference
from fedpriv.attacks.inference.update_scores import (
    Training,
    class_gradients,
    head_bias_delta,
    shares_by_gradients,
    shares_of,
)
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.cli.main import run
from fedpriv.eval.storage import load_scores
from fedpriv.uploads.payloads import Classifier, LabelCounts
from fedpriv.util.errors import UserError

C, WIDTH, EACH = 4, 6, 25
SHARES = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)


def drawn(seed, number=C * EACH):
    """Inputs of classes in turn that lie around different places, and their classes."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % C
    middles = 2 * torch.randn(C, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return middles[labels] + torch.randn(number, WIDTH, generator=draw, dtype=torch.float64), labels


def start(hidden=8, seed=1):
    """Weights of a layer and a head behind it."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return 0.3 * torch.randn(*shape, generator=draw, dtype=torch.float64)

    return {"body.weight": normal(hidden, WIDTH), "head.weight": normal(C, hidden), "head.bias": normal(C)}


def logits(state, rows):
    return (rows @ state["body.weight"].T).relu() @ state["head.weight"].T + state["head.bias"]


def trained(state, rows, labels, shares, rate, steps):
    """Steps of all images, each class by its share."""
    for _ in range(steps):
        asked = {name: value.detach().requires_grad_() for name, value in state.items()}
        each = cross_entropy(logits(asked, rows), labels, reduction="none")
        loss = (each * shares[labels] / torch.bincount(labels, minlength=C)[labels]).sum()
        slopes = torch.autograd.grad(loss, list(asked.values()))
        state = {name: (asked[name] - rate * slope).detach() for name, slope in zip(asked, slopes, strict=True)}
    return state


def followed(own, labels, kept=None, members=None, rate=0.05, steps=10, shares=SHARES):
    """Shares and what they explain of a training, of which the attacker sees the ``kept`` weights."""
    before = start()
    after = trained(before, *(members or (own, labels)), shares, rate, steps)
    seen = [name for name in before if kept is None or name.startswith(kept)]
    rest = {name: value for name, value in before.items() if name not in seen}

    def of(state, rows):
        return logits(rest | state, rows)

    return shares_of(Training({n: before[n] for n in seen}, {n: after[n] for n in seen}, own, of), labels, C)


@pytest.mark.parametrize("kept", [None, "head", "body"])
def test_a_small_step_on_the_attackers_own_images_is_taken_apart_exactly(kept):
    own, labels = drawn(2)
    shares, explained = followed(own, labels, kept, rate=1e-6, steps=1)
    expect_close(shares, SHARES, atol=1e-3)
    assert explained > 0.999


def test_the_gradient_of_a_class_is_the_mean_over_its_images_and_the_way():
    own, labels = drawn(3, 12)
    before, after = start(), start(seed=4)
    found = class_gradients(Training(before, after, own, logits), labels, C, ["head.bias"])
    ways = [{name: before[name] + place * (after[name] - before[name]) for name in before} for place in (0, 0.5, 1)]
    for label in range(C):
        likely = torch.stack([logits(state, own[labels == label]).softmax(1) for state in ways]).mean((0, 1))
        expect_close(found[label]["head.bias"], likely - one_hot(torch.tensor(label), C), atol=1e-12)


def test_nothing_that_changed_and_classes_without_an_image_say_nothing():
    own, labels = drawn(6)
    shares, explained = shares_of(Training(start(), start(), own, logits), labels, C)
    expect_close(shares, torch.full((C,), 1 / C, dtype=torch.float64), atol=0)
    assert explained == 0
    few = labels != 1
    shares, _ = followed(own[few], labels[few], members=(own, labels))
    assert float(shares[1]) == 0
    assert float(shares[0]) > float(shares[2]) > float(shares[3])


def heads(client, rose, round_=1, bias=True):
    before = {"weight": torch.zeros(C, WIDTH), "bias": torch.zeros(C)}
    after = {"weight": torch.outer(torch.as_tensor(rose), torch.ones(WIDTH)), "bias": torch.as_tensor(rose)}
    if not bias:
        before, after = ({"weight": state["weight"]} for state in (before, after))
    return Observation(round_, client, (Classifier(after),), (Classifier(before),))


def stepped(client, shares, own):
    """A small step of a head of zeros on own images, each class by its share."""
    rows, labels = own
    off = (1 / C - one_hot(labels, C)).double() * (shares[labels] / torch.bincount(labels)[labels])[:, None]
    before = {"weight": torch.zeros(C, WIDTH), "bias": torch.zeros(C)}
    after = {"weight": (-1e-4 * off.T @ rows).float(), "bias": (-1e-4 * off.sum(0)).float()}
    return Observation(1, client, (Classifier(after),), (Classifier(before),))


def knowing(own=None, extractors=()):
    images, labels = own or (None, None)
    return Knowledge(
        ThreatModel(attacker_data="none" if own is None else "same_domain"),
        (1, 1, WIDTH),
        C,
        extractors=dict.fromkeys(extractors, lambda images: images.flatten(1)),
        public_images=None if images is None else images.float().view(-1, 1, 1, WIDTH),
        public_labels=labels,
    )


def test_rises_by_hand_over_rounds():
    seen = (heads(0, [0.2, -0.1, -0.1, 0.0]), heads(0, [3.0, 1.0, -4.0, 0.0], 2))
    problem = InferenceProblem(seen[1:], knowing(), "classifier", earlier=(Moment(seen[:1], knowing()),))
    expect_close(head_bias_delta(problem)[0], torch.tensor([1.75, -0.25, -1.5, 0.0], dtype=torch.float64), atol=1e-6)


def test_heads_are_told_by_gradients_biases_or_not_at_all():
    own = drawn(7)
    uploads = (stepped(0, SHARES, own), stepped(1, SHARES.flip(0), own))
    everything = InferenceProblem(uploads, knowing(own, (0, 1)), "classifier")
    expect_close(shares_by_gradients(everything)[0], SHARES, atol=1e-2)
    expect_close(shares_by_gradients(everything)[1], SHARES.flip(0), atol=1e-2)
    assert PropertyInference()(everything).source == BY_GRADIENTS
    for known in (knowing(own, (0,)), knowing()):  # an extractor too few; none, and no images
        problem = InferenceProblem(uploads, known, "classifier")
        found = PropertyInference()(problem)
        assert found.source == BY_BIASES
        assert found.values[0].argsort(descending=True).tolist() == [0, 1, 2, 3]
    said = (*uploads[0].upload, LabelCounts(torch.tensor([5, 1, 1, 1])))
    told = InferenceProblem((Observation(1, 0, said, uploads[0].broadcast), uploads[1]), knowing(), "classifier")
    assert PropertyInference()(told).source == f"{IN_CLEAR[1]} of 1 clients, and {BY_BIASES}"
    unanswered = tuple(Observation(1, one.client, one.upload, ()) for one in uploads)
    with pytest.raises(UserError, match="nothing to learn it from"):
        PropertyInference()(InferenceProblem(unanswered, knowing(), "classifier"))


SEVERAL = [
    *("--auxiliary", "0.5", "--per-class", "60", "--clients", "5", "--alpha", "0.5", "--rounds", "4"),
    *("--epochs", "1", "--batch-size", "10", "--lr", "0.05"),
]
ASKED = ["--attack", "property", "--reach", "none", "--quiet"]


def record(target, *extra, out="out"):
    assert run(["attack", "--target", target, *ASKED, *extra, "--out", out]) == 0
    return load_scores(Path(out, "property"))


@pytest.mark.parametrize(
    "target", ["model", "small-model", "low-rank-model", "extractor", "classifier", "angle-matrix"]
)
def test_every_kind_of_trained_weights_tells_its_clients_classes(target):
    found = record(target, *DIGITS, *SEVERAL, "--capture", "all", "--keep", "all")
    assert (found.learned_from, found.question) == (BY_GRADIENTS, "majority")
    assert found.knowledge.rounds_seen == 4
    least = 0.65 if target == "small-model" else 0.75  # FedMRL trains it beside another one, which is not followed
    assert found.auc.value > least
    assert found.auc.value > found.shuffled.auc.value
    one = record(target, "--run", "out/run", "--rounds-seen", "1", out="one")
    assert one.knowledge.rounds_seen == 1
