"""Batches whose labels say the loss, told apart before the search: in the order of the labels, or not at all."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients import separated_batch
from fedpriv.attacks.gradients.inverting_gradients import InvertingGradients
from fedpriv.attacks.gradients.presets import NetworkKind, TargetInfo, choose_configs
from fedpriv.attacks.gradients.separated_batch import cross_entropy_slopes, logits_behind, reachable
from fedpriv.attacks.gradients.separation import Span, distinct, eliminated, separate
from fedpriv.attacks.gradients.step_problems import read_problem
from fedpriv.attacks.gradients.update import LocalStep
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.vector import PixelInversion
from fedpriv.attacks.observation import BatchFacts, Knowledge, KnowledgeCard, Observation
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
        card or KnowledgeCard(), SHAPE, 10, model=model, batch=BatchFacts(COUNT, RATE, 1), labels={(1, 0): LABELS}
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
    found = told(step(card=replace(KnowledgeCard(), labels="inferred"))[1])
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


def test_differences_of_columns_that_are_nearly_alike_are_no_columns():
    """Two images of one class: sparser at a glance, where both are active, than either by itself."""
    draw = torch.Generator().manual_seed(2)
    pull = torch.randn(300, 1, generator=draw, dtype=torch.float64)
    active = torch.rand(300, 8, generator=draw) > 0.5
    errors = pull * active * (1 + 2e-3 * torch.randn(300, 8, generator=draw, dtype=torch.float64))
    inputs = torch.rand(8, 60, generator=draw, dtype=torch.float64)
    found = separate(errors @ inputs, errors.sum(1), 8, torch.Generator().manual_seed(0), draws=0)
    assert found.attested == 8
    order = torch.cdist(found.errors.T, errors.T).argmin(1)
    assert sorted(order.tolist()) == list(range(8))
    torch.testing.assert_close(found.errors, errors[:, order], rtol=1e-5, atol=1e-6)


def test_a_column_that_is_known_is_taken_out_of_a_mixture():
    draw = torch.Generator().manual_seed(3)
    errors = torch.randn(200, 2, generator=draw, dtype=torch.float64) * (torch.rand(200, 2, generator=draw) > 0.5)
    span = Span(errors, 0.0)
    known, mixture = torch.tensor([1.0, 0.0]), torch.tensor([-0.6, 0.8])
    found = eliminated(span, torch.stack([known, mixture]).double())
    order = found.abs().argmax(1)
    assert sorted(order.tolist()) == [0, 1]
    torch.testing.assert_close(found.abs()[order], torch.eye(2, dtype=torch.float64), rtol=0, atol=1e-6)


def test_where_no_direction_is_left_known_columns_confirm_none():
    span, none = Span(torch.rand(20, 3, dtype=torch.float64), 0.0), torch.zeros(0, 3, dtype=torch.float64)
    nothing = distinct(span, none, torch.eye(3, dtype=torch.float64))
    assert (len(nothing.found), len(nothing.zeros), nothing.attested) == (0, 0, 0)


def test_inputs_behind_a_relu_are_not_negative():
    known = told(step()[1]).known
    view, inputs = known.view, known.inputs
    assert reachable(view, inputs, SHAPE)
    assert not reachable(view, inputs - inputs.max(), SHAPE)


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


def test_larger_images_are_searched_with_smaller_steps_and_more_prior():
    plain, framed = PixelInversion(coordinates="pixels"), PixelInversion()
    small, twice = (plain.schedule_at((3, size, size)).learning_rate for size in (32, 64))
    assert twice == pytest.approx(small / 4)
    assert framed.schedule_at((3, 64, 64)) == framed.schedule_at((3, 32, 32)) == framed.schedule
    large = NetworkKind(kinked=False, normed=False, large=True)
    assert [way.signed for way in choose_configs(large, TargetInfo(1), 400)] == [True]
    assert choose_configs(large, TargetInfo(1), 1600)[0].curved


def test_an_update_is_taken_apart_once_whoever_is_said_to_have_sent_it(monkeypatch):
    begun, genuine = [], separated_batch._parts_of
    monkeypatch.setattr(separated_batch, "_parts_of", lambda *given: begun.append(given[1:]) or genuine(*given))
    problem = step()[1]
    (seen,) = problem.observations
    first = told(problem)
    of_another = replace(
        problem, observations=(replace(seen, client=2),), targets=(replace(problem.targets[0], client=2),)
    )
    of_another = replace(of_another, knowledge=replace(problem.knowledge, labels={(1, 2): LABELS}))
    torch.testing.assert_close(told(of_another).derivatives, first.derivatives)
    assert len(begun) == 1
    told(replace(problem, seed=1))
    assert len(begun) == 2


def test_parts_that_labels_do_not_confirm_are_not_asked_for():
    _, problem = step()
    assert told(problem).known.sure.all()
    one_wrong = torch.tensor([3, 1, 3, 7, 3])
    found = told(replace(problem, knowledge=replace(problem.knowledge, labels={(1, 0): one_wrong})))
    assert found.known.sure.tolist() == [True, True, True, False, True]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_gradients_of_any_precision_are_known_again_by_their_bits(kind):
    def digest(shift):
        gradient = {"fc.weight": torch.arange(6.0).view(2, 3).to(kind) + shift, "fc.bias": torch.ones(2, dtype=kind)}
        return separated_batch._digest(LocalStep({}, gradient), "fc")

    assert digest(0) == digest(0) != digest(1)
