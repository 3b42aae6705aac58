"""Batches whose labels say the loss, separated before the search: in the order of the labels, or not at all."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.inverting import InvertingGradients
from fedpriv.attacks.gradients.separated_batch import cross_entropy_slopes, logits_behind
from fedpriv.attacks.gradients.step_attack import read_problem
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation, ThreatModel
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
from fedpriv.wire.payloads import Model

SHAPE, RATE, COUNT = (1, 8, 8), 0.1, 5
LABELS = torch.tensor([3, 1, 3, 0, 3])
"""Three of one class: before training their derivatives are nearly the same wherever they are not zero."""


def changed(values, change):
    return {name: change(value) for name, value in values.items()}


def step(change=torch.clone, card=None):
    """One step of a client of a network before training, its update changed by a defense."""
    model = build_model(Blueprint("small-cnn", SHAPE, 10, 128), 1)
    draw = torch.Generator().manual_seed(5)
    images = functional.interpolate(torch.rand(COUNT, 1, 4, 4, generator=draw), scale_factor=2, mode="bilinear")
    functional.cross_entropy(model(images), LABELS).backward()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    update = changed({name: -RATE * value.grad for name, value in model.named_parameters()}, change)
    model.zero_grad()
    seen = (Observation(1, 0, (Model({name: before[name] + update[name] for name in before}),), (Model(before),)),)
    knowledge = Knowledge(
        card or ThreatModel(), SHAPE, 10, model=model, batch=BatchFacts(COUNT, RATE, 1), labels={(1, 0): LABELS}
    )
    return images, AttackProblem(seen, knowledge, list_targets(list(seen), "model"))


def told(problem):
    return read_problem("x", problem, always_apart=True).apart[0]


@pytest.mark.parametrize("change", [torch.clone, lambda update: 0.25 * update], ids=["plain", "clipped"])
def test_every_image_is_known_in_the_order_of_the_labels(change):
    images, problem = step(change)
    found = told(problem)
    assert found.labels.tolist() == LABELS.tolist()
    view, inputs = found.known.view, found.known.inputs
    wanted = view(images)
    apart = torch.cdist(inputs, wanted)
    order = apart.argmin(1)
    assert LABELS[order].tolist() == LABELS.tolist()  # those of one class in any order
    assert sorted(order.tolist()) == list(range(COUNT))
    assert float(apart.min(1).values.max()) < 1e-2 * float(wanted.norm(dim=1).mean())
    torch.testing.assert_close(found.in_order(images.flip(0)), images[order], rtol=0, atol=0)


def test_labels_that_are_not_given_are_read_off():
    found = told(step(card=replace(ThreatModel(), labels="inferred"))[1])
    assert sorted(found.labels.tolist()) == sorted(LABELS.tolist())


@pytest.mark.parametrize(
    "change",
    [
        lambda update: update + 1e-3 * torch.randn(update.shape, generator=torch.Generator().manual_seed(0)),
        lambda update: update * (update.abs() >= update.abs().flatten().quantile(0.9)),
    ],
    ids=["noise", "pruned"],
)
def test_what_a_defense_changed_is_not_told_apart(change):
    assert told(step(change)[1]) is None


def test_labels_that_contradict_the_parts_refuse_them():
    _, problem = step()
    wrong = replace(problem.knowledge, labels={(1, 0): torch.full((COUNT,), 7)})
    assert told(replace(problem, knowledge=wrong)) is None


def test_the_true_images_are_the_best_fit_in_any_order_of_one_class():
    images, problem = step()
    objective = InvertingGradients().objective(problem)
    truth, swapped = float(objective(images[None])), float(objective(images[[2, 1, 4, 3, 0]][None]))
    other = torch.rand(1, COUNT, *SHAPE, generator=torch.Generator().manual_seed(0))
    assert max(truth, swapped) < 1e-4
    assert float(objective(other)) > 0.1


def test_images_that_are_told_apart_come_back_better():
    images, problem = step()

    def reached(attack):
        found = attack.run(problem)
        assert found.labels[0].tolist() == LABELS.tolist()
        errors = (found.images[0][:, None] - images[None]).square().flatten(2).mean(2)
        return float(-10 * errors.min(0).values.log10().mean())

    alone = reached(InvertingGradients(iterations=200))
    assert alone > reached(InvertingGradients(iterations=200, apart=False)) + 1
    assert alone > 15


class _Beside(torch.nn.Module):
    """A network with a fully connected layer that its logits do not come from."""

    def __init__(self):
        super().__init__()
        self.body, self.side = torch.nn.Linear(64, 30), torch.nn.Linear(64, 30)
        self.head = torch.nn.Linear(30, 10)

    def forward(self, images):
        self.side(images.flatten(1)).relu()
        return self.head(self.body(images.flatten(1)).relu())


def test_slopes_are_those_of_the_cross_entropy_and_none_beside_the_network():
    model, images = _Beside(), step()[0]
    weights = {name: value.detach() for name, value in model.named_parameters()}
    outputs = model.body(images.flatten(1)).detach().requires_grad_()
    found = cross_entropy_slopes(logits_behind(model, weights, "body", SHAPE), outputs, 10)
    loss = functional.cross_entropy(model.head(outputs.relu()), LABELS, reduction="sum")
    (wanted,) = torch.autograd.grad(loss, outputs)
    torch.testing.assert_close(found[torch.arange(COUNT), LABELS], wanted)
    beside = cross_entropy_slopes(logits_behind(model, weights, "side", SHAPE), outputs, 10)
    assert beside.shape == (COUNT, 10, 30)
    assert not beside.any()


def test_parts_that_labels_do_not_confirm_are_not_asked_for():
    _, problem = step()
    assert told(problem).known.sure.all()
    one_wrong = torch.tensor([3, 1, 3, 7, 3])
    found = told(replace(problem, knowledge=replace(problem.knowledge, labels={(1, 0): one_wrong})))
    assert found.known.sure.tolist() == [True, True, True, False, True]
