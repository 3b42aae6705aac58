"""Images of a batch separated by a layer's gradient: by zeros, by labels, at the head; and what is not told by it."""

from dataclasses import replace

import torch
from gradient_cases import images_and_labels
from looped import each
from torch import nn
from torch.nn import functional

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.inverting import InvertingGradients
from fedpriv.attacks.gradients.layers import cross_entropy_slopes, label_slopes, logits_behind, rectified_head
from fedpriv.attacks.gradients.separation import (
    LabelSlopes,
    LinearGradient,
    lone_inputs,
    masked_columns,
    members_of_head,
    separate,
)
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation, ThreatModel
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
from fedpriv.uploads.payloads import Model, PublicLoss

RATE, OUTPUTS, CLASSES, WIDTH = 0.1, 256, 10, 40


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def rectified(count, zeros=0.5):
    """Derivatives ``(m, n)`` behind a ReLU, and inputs ``(n, k)``."""
    draw = generator(count)
    errors = torch.randn(200, count, generator=draw, dtype=torch.float64)
    errors = errors * (torch.rand(200, count, generator=draw) > zeros) * torch.linspace(1, 5, count)
    return errors, torch.rand(count, 60, generator=draw, dtype=torch.float64)


def labelled(count, spread):
    """A head, and the columns ``(m, n)`` and inputs ``(n, k)`` of images whose predictions vary so widely."""
    draw = generator()
    head = torch.randn(CLASSES, OUTPUTS, generator=draw, dtype=torch.float64)
    labels = torch.randint(CLASSES, (count,), generator=draw)
    chances = (spread * torch.randn(count, CLASSES, generator=draw, dtype=torch.float64)).softmax(1)
    errors = (chances - functional.one_hot(labels, CLASSES)) @ head
    errors = errors * (torch.rand(count, OUTPUTS, generator=draw) < 0.5)
    known = LabelSlopes(head, chances.mean(0), torch.bincount(labels, minlength=CLASSES))
    return known, errors.T, torch.rand(count, 300, generator=draw, dtype=torch.float64)


@each("count, by_labels", [(2, False), (8, False), (48, True)])
def test_columns_are_separated_exactly_by_zeros_and_many_more_by_labels(count, by_labels):
    known, errors, inputs = labelled(count, 0.01) if by_labels else (None, *rectified(count))
    found, attested = separate(errors @ inputs, errors.sum(1), count, generator(), known)
    assert attested == count
    order = torch.cdist(found.T, errors.T).argmin(1)
    assert sorted(order.tolist()) == list(range(count))
    torch.testing.assert_close(found, errors[:, order], rtol=1e-4, atol=1e-5)
    layer = LinearGradient({"f.weight": errors @ inputs, "f.bias": errors.sum(1)}, None, "f")
    torch.testing.assert_close(layer.inputs(found), inputs[order], rtol=1e-3, atol=1e-4)
    parts = layer.parts(count, generator(), known)
    torch.testing.assert_close(parts.derivatives.mean(0), errors.sum(1).float(), rtol=1e-4, atol=1e-5)


def test_columns_without_zeros_are_none_anybody_can_tell():
    errors, inputs = rectified(5, zeros=0.0)
    layer = LinearGradient({"f.weight": errors @ inputs, "f.bias": errors.sum(1)}, None, "f")
    assert layer.parts(5, generator()) is None


@each("count, spread, least", [(8, 0.01, 8), (48, 0.01, 48), (16, 1.0, 10)])
def test_columns_are_the_masked_slopes_of_their_labels(count, spread, least):
    known, columns, _ = labelled(count, spread)
    mixed = columns @ torch.randn(count, count, generator=generator(1), dtype=torch.float64)
    found = mixed @ masked_columns(mixed, known, generator()).T
    alike = functional.cosine_similarity(found.T.unsqueeze(1), columns.T, dim=2).abs()
    assert int((alike > 0.999).any(0).sum()) >= least
    assert (alike > 0.999).any(1).float().mean() > 0.9  # hardly anything else is taken for one
    absent = torch.where(known.counts > 0, 0, 4)
    assert count > 8 or not len(masked_columns(columns, replace(known, counts=absent), generator()))


def test_of_an_image_that_the_network_is_sure_of_the_rest_is_told_apart_all_the_same():
    known, columns, inputs = labelled(8, 0.01)
    layer = LinearGradient({"f.weight": columns @ inputs, "f.bias": columns.sum(1)}, None, "f")
    parts = layer.parts(9, generator(), replace(known, counts=known.counts + (torch.arange(CLASSES) == 4)))
    assert parts.explained
    assert not parts.attested
    assert int((parts.derivatives == 0).all(1).sum()) == int((parts.inputs == 0).all(1).sum()) == 1
    alike = functional.cosine_similarity(parts.derivatives.double().unsqueeze(1), columns.T, dim=2)
    assert int((alike > 0.999).any(0).sum()) == 8
    assert layer.parts(9, generator()) is None


def test_outputs_that_one_image_alone_touched_are_found_by_their_agreement():
    draw = generator(3)
    inputs = torch.rand(3, 20, generator=draw)
    errors = torch.zeros(9, 3)
    errors[0:3, 0], errors[3:5, 1] = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([1.0, 3.0])
    errors[5:8] = torch.randn(3, 3, generator=draw)  # mixtures; the last output was touched by none
    found = lone_inputs(errors @ inputs, errors.sum(1))
    torch.testing.assert_close(found[:2], inputs[:2].double(), rtol=1e-4, atol=1e-5)
    assert len(found) == 5


class Network(nn.Module):
    """Two layers with an activation between them, and one beside that leads nowhere."""

    def __init__(self, activation):
        super().__init__()
        self.body, self.side, self.head = nn.Linear(12, 30), nn.Linear(12, 30), nn.Linear(30, 5)
        self.activation = activation

    def forward(self, images):
        self.side(images.flatten(1))
        return self.head(self.activation(self.body(images.flatten(1))))


def test_slopes_of_labels_follow_from_the_head_behind_a_relu_and_from_no_other():
    torch.manual_seed(0)
    model, images, labels = Network(nn.ReLU()), torch.rand(6, 3, 2, 2), torch.tensor([0, 0, 3, 4, 1, 3])
    weights = {name: value.detach() for name, value in model.named_parameters()}
    behind, like = logits_behind(model, weights, "body", (3, 2, 2)), weights["body.bias"]
    for found, wanted in zip(rectified_head(behind, like), (weights["head.weight"], weights["head.bias"]), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    for other in (nn.Sigmoid(), nn.LeakyReLU(0.1), nn.Identity()):
        assert rectified_head(logits_behind(Network(other), weights, "body", (3, 2, 2)), like) is None

    outputs = model.body(images.flatten(1)).detach().requires_grad_()
    (wanted,) = torch.autograd.grad(functional.cross_entropy(behind(outputs), labels, reduction="sum"), outputs)
    torch.testing.assert_close(cross_entropy_slopes(behind, outputs, 5)[torch.arange(6), labels], wanted)
    beside = cross_entropy_slopes(logits_behind(model, weights, "side", (3, 2, 2)), outputs, 5)
    assert beside.shape == (6, 5, 30)
    assert not beside.any()

    logits = model(images)
    functional.cross_entropy(logits, labels).backward()
    gradient = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    found = label_slopes(behind, like, labels, gradient)
    torch.testing.assert_close(found.chances, logits.softmax(1).mean(0).double(), rtol=1e-4, atol=1e-5)
    assert found.counts.tolist() == [2, 1, 0, 2, 1]
    unsent = {name: value for name, value in gradient.items() if not name.startswith("head")}
    typical = label_slopes(behind, like, labels, unsent)
    torch.testing.assert_close(typical.chances, weights["head.bias"].softmax(0).double(), rtol=1e-4, atol=1e-5)
    for strange in ([-1, 0], [0, 5], []):
        assert label_slopes(behind, like, torch.tensor(strange, dtype=torch.int64), gradient) is None
    still = {name: value * ("head" not in name) for name, value in weights.items()}
    assert label_slopes(logits_behind(model, still, "body", (3, 2, 2)), like, labels, gradient) is None


def at_head(labels, scale=1.0, seed=0, classes=CLASSES, noise=0.0):
    """Return what is found of images at a head, what they put in ``(n, d)``, and the head."""
    draw, labels = generator(seed), torch.tensor(labels)
    inputs = torch.rand(len(labels), WIDTH, generator=draw)
    weight = (scale * torch.randn(classes, WIDTH, generator=draw) / WIDTH**0.5).requires_grad_()
    bias = (0.1 * torch.randn(classes, generator=draw)).requires_grad_()
    functional.cross_entropy(functional.linear(inputs, weight, bias), labels.clamp(min=0)).backward()
    sent = [v.grad + noise * v.grad.norm() * torch.randn(v.shape, generator=draw) for v in (weight, bias)]
    head = (weight.detach(), bias.detach())
    return members_of_head(*sent, head, labels, generator()), inputs, head


@each("labels, scale", [([3, 1, 0, 7], 0.3), ([9, 2], 3.0), ([0, 1, 2, 3, 4, 5, 6, 7, 8], 0.3)])
def test_images_of_different_labels_are_exact_at_the_head(labels, scale):
    found, inputs, head = at_head(labels, scale)
    assert found.sure.all()
    torch.testing.assert_close(found.inputs, inputs, rtol=1e-2, atol=1e-3)
    expected = functional.linear(inputs, *head).softmax(1) - functional.one_hot(torch.tensor(labels), CLASSES)
    torch.testing.assert_close(found.derivatives, expected, rtol=0, atol=1e-3)


@each(
    "labels, scale, classes, least",
    [
        ([4, 1, 4, 8], 1.0, 10, 20),
        ([4, 4, 4, 8, 8, 1], 0.05, 10, 20),
        ([4, 4, 4, 4, 1], 1e-3, 10, 5),  # differences of predictions that rounding hides all but entirely
        ([4, 4, 4, 1], 2e-3, 10, 5),
        ([0, 0, 0], 1.0, 4, 20),  # few equations more than unknowns, and valleys beside the right one
        ([0, 0, 1, 1], 0.3, 5, 20),
    ],
)
def test_images_of_one_label_are_told_apart_by_their_predictions_and_nobody_is_sure_who_is_not_right(
    labels, scale, classes, least
):
    right, own = 0, torch.tensor(labels)
    for seed in range(10):
        found, inputs, _ = at_head(labels, scale, seed, classes)
        if found is not None:
            apart = torch.cdist(found.inputs, inputs).where(own.unsqueeze(1) == own, torch.inf).amin(1)
            assert not (found.sure & (apart > 0.05 * inputs.norm(dim=1))).any()
            right += int(found.sure.sum())
    assert right >= least


def test_too_many_images_unknown_labels_and_noise_have_no_solution_at_the_head():
    for labels in (list(range(10)), [1], [1, -1]):
        assert at_head(labels)[0] is None
    found = at_head([3, 1, 0, 7], noise=1.0)[0]
    assert found is None or not found.sure.any()


LABELS = torch.tensor([3, 1, 3, 0, 3])
"""Three of one class: before training their derivatives are nearly the same wherever they are not zero."""


def problem_of(truth, change=torch.clone, network="small-cnn", private=False, **granted):
    """One step of a client of a network before training, its update changed by a defense: its images, and the problem."""
    shape, count = ((3, 32, 32), 768) if network == "lenet-sigmoid" else ((1, 8, 8), 128)
    model = build_model(Blueprint(network, shape, CLASSES, count), 1)
    images = images_and_labels(len(truth))[0]
    images = functional.interpolate(images.expand(-1, *shape[:1], -1, -1), shape[1:], mode="bilinear")
    if private:  # private parts pull at the representations
        loss = (torch.randn(len(truth), 128, generator=generator(5)) * model.represent(images)).sum(1).mean()
    else:
        loss = functional.cross_entropy(model(images), truth)
    names, weights = zip(*model.named_parameters(), strict=True)
    slopes = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    after = {name: before[name] + change(-RATE * slope) for name, slope in zip(names, slopes, strict=True)}
    seen = (Observation(1, 0, (Model(after),), (Model(before),)),)
    told = PublicLoss(through="representation", head_apart=True) if private else PublicLoss()
    facts, card = BatchFacts(len(truth), RATE, 1), ThreatModel(**granted)
    known = Knowledge(card, shape, CLASSES, model=model, batch=facts, labels={(1, 0): truth}, loss=told)
    return images, AttackProblem(seen, known, list_targets(list(seen), "model"))


def separated(problem, labels=None):
    if labels is not None:
        problem = replace(problem, knowledge=replace(problem.knowledge, labels={(1, 0): torch.tensor(labels)}))
    return InvertingGradients().read(problem).apart[0]


@each("change", [torch.clone, lambda update: 0.25 * update])
def test_every_image_is_known_in_the_order_of_the_labels(change):
    images, problem = problem_of(LABELS, change)
    found = separated(problem)
    assert found.labels.tolist() == LABELS.tolist()
    view, inputs = found.known.view, found.known.inputs
    apart = torch.cdist(inputs, view(images))
    order = apart.argmin(1)
    assert LABELS[order].tolist() == LABELS.tolist()  # those of one class in any order
    assert sorted(order.tolist()) == list(range(len(LABELS)))
    assert float(apart.min(1).values.max()) < 1e-2 * float(view(images).norm(dim=1).mean())
    torch.testing.assert_close(found.in_order(images.flip(0)), images[order], rtol=0, atol=0)
    unknown = separated(problem_of(LABELS, change, labels="inferred")[1])
    assert sorted(unknown.labels.tolist()) == sorted(LABELS.tolist())


def test_what_noise_or_pruning_changed_or_labels_contradict_is_not_separated():
    for change in (
        lambda update: update + 1e-3 * torch.randn(update.shape, generator=generator()),
        lambda update: update * (update.abs() >= update.abs().flatten().quantile(0.9)),
    ):
        assert separated(problem_of(LABELS, change)[1]) is None
    _, problem = problem_of(LABELS)
    assert separated(problem).known.sure.all()
    assert separated(problem, [7] * 5) is None
    assert separated(problem, [3, 1, 3, 7, 3]).known.sure.tolist() == [True, True, True, False, True]


def test_batches_behind_smooth_layers_are_separated_by_the_head():
    images, problem = problem_of(torch.tensor([3, 1, 0, 7]), network="lenet-sigmoid")
    found = separated(problem)
    assert found.step.readout.startswith("head")
    torch.testing.assert_close(found.known.inputs, found.known.view(images), rtol=1e-2, atol=1e-3)
    assert InvertingGradients(apart=False).read(problem).apart[0] is None
    objective = InvertingGradients().objective(problem)
    assert float(objective(images[None])) < 1e-4 < 0.1 * float(objective(images.flip(3)[None]))


def reached(attack, problem, images):
    guesses = attack.run(problem).images[0]
    errors = (guesses[:, None] - images[None]).square().flatten(2).mean(2)
    return float(-10 * errors.min(0).values.log10().mean())


def test_images_that_are_separated_come_back_better_and_the_true_ones_are_the_best_fit_in_any_order_of_one_class():
    images, problem = problem_of(LABELS)
    alone = reached(InvertingGradients(iterations=200), problem, images)
    assert alone > max(15, reached(InvertingGradients(iterations=200, apart=False), problem, images) + 1)
    objective = InvertingGradients().objective(problem)
    assert max(float(objective(images[order][None])) for order in ([0, 1, 2, 3, 4], [2, 1, 4, 3, 0])) < 1e-4
    assert float(objective(torch.rand(1, *images.shape, generator=generator()))) > 0.1


def test_a_batch_comes_back_that_private_parts_taught_where_cross_entropy_finds_nothing():
    images, problem = problem_of(torch.arange(3), private=True)
    plain = replace(problem, knowledge=replace(problem.knowledge, loss=PublicLoss()))
    found, fooled = (reached(InvertingGradients(iterations=400), asked, images) for asked in (problem, plain))
    assert found > max(18, fooled + 6)
