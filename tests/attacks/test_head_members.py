"""What the images of a batch put into the head, from the head's gradient alone; and what is not told by it."""

import pytest
import torch
from torch.nn import functional

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.head_equations import members_of_head
from fedpriv.attacks.gradients.inverting import InvertingGradients
from fedpriv.attacks.gradients.step_attack import read_problem
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation, ThreatModel
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
from fedpriv.wire.payloads import Model

CLASSES, WIDTH, RATE, SHAPE = 10, 40, 0.1, (3, 32, 32)


def head_step(labels, scale=1.0, seed=0, classes=CLASSES):
    """A head, what images put in ``(n, d)``, and the gradients of its weight and bias, in single precision."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.rand(len(labels), WIDTH, generator=draw)
    weight = (scale * torch.randn(classes, WIDTH, generator=draw) / WIDTH**0.5).requires_grad_()
    bias = (0.1 * torch.randn(classes, generator=draw)).requires_grad_()
    functional.cross_entropy(functional.linear(inputs, weight, bias), labels).backward()
    return (weight.detach(), bias.detach()), inputs, (weight.grad, bias.grad)


def solved(labels, **options):
    head, inputs, gradient = head_step(labels, **options)
    return members_of_head(*gradient, head, labels, torch.Generator().manual_seed(0)), inputs, head


@pytest.mark.parametrize("labels", [[3, 1, 0, 7], [9, 2], [0, 1, 2, 3, 4, 5, 6, 7, 8]])
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_images_of_different_labels_are_exact(labels, scale):
    labels = torch.tensor(labels)
    found, inputs, head = solved(labels, scale=scale)
    assert found.sure.all()
    torch.testing.assert_close(found.inputs, inputs, rtol=1e-2, atol=1e-3)
    expected = functional.linear(inputs, *head).softmax(1) - functional.one_hot(labels, CLASSES)
    torch.testing.assert_close(found.derivatives, expected, rtol=0, atol=1e-3)


def test_two_images_of_one_label_are_told_apart_by_their_predictions():
    labels = torch.tensor([4, 1, 4, 8])
    found, inputs, _ = solved(labels)
    assert found.sure.all()
    apart = torch.cdist(found.inputs[[0, 2]], inputs[[0, 2]])
    torch.testing.assert_close(found.inputs[[1, 3]], inputs[[1, 3]], rtol=1e-3, atol=1e-4)
    assert float(apart.min(1).values.max()) < 0.05 * float(inputs.norm(dim=1).mean())
    assert sorted(apart.argmin(1).tolist()) == [0, 1]


def test_nobody_is_sure_who_is_not_right():
    labels, right = torch.tensor([4, 4, 4, 8, 8, 1]), 0
    for seed in range(12):
        found, inputs, _ = solved(labels, scale=0.05, seed=seed)
        apart = torch.cdist(found.inputs, inputs).where(labels.unsqueeze(1) == labels, torch.inf).amin(1)
        wrong = apart > 0.05 * inputs.norm(dim=1)
        assert not (found.sure & wrong).any()
        assert found.sure[5]
        right += int(found.sure.sum())
    assert right > 24


@pytest.mark.parametrize(
    ("labels", "scale", "classes"),
    [
        ([4, 4, 4, 4, 1], 1e-3, 10),  # differences of predictions that rounding hides all but entirely
        ([4, 4, 4, 1], 2e-3, 10),
        ([0, 0, 0], 1.0, 4),  # few equations more than unknowns, and valleys beside the right one
        ([0, 0, 1, 1], 0.3, 5),
    ],
)
def test_nobody_is_sure_where_rounding_or_another_valley_hides_the_difference(labels, scale, classes):
    labels, right = torch.tensor(labels), 0
    for seed in range(10):
        found, inputs, _ = solved(labels, scale=scale, seed=seed, classes=classes)
        if found is None:
            continue
        apart = torch.cdist(found.inputs, inputs).where(labels.unsqueeze(1) == labels, torch.inf).amin(1)
        assert not (found.sure & (apart > 0.05 * inputs.norm(dim=1))).any()
        right += int(found.sure.sum())
    assert right >= (20 if classes < 10 else 5)


def test_more_images_than_classes_tell_and_labels_that_are_unknown_are_left():
    draw = torch.Generator().manual_seed(0)
    head, _, gradient = head_step(torch.arange(10))
    assert members_of_head(*gradient, head, torch.arange(10), draw) is None
    assert members_of_head(*gradient, head, torch.tensor([1]), draw) is None
    assert members_of_head(*gradient, head, torch.tensor([1, -1]), draw) is None


def test_a_gradient_that_no_batch_made_has_no_solution():
    head, _, gradient = head_step(torch.tensor([3, 1, 0, 7]))
    noise = torch.Generator().manual_seed(1)
    wrong = [value + value.norm() * torch.randn(value.shape, generator=noise) for value in gradient]
    found = members_of_head(*wrong, head, torch.tensor([3, 1, 0, 7]), torch.Generator().manual_seed(0))
    assert found is None or not found.sure.any()


@pytest.fixture(scope="module")
def step():
    """One step of four images on a smooth network whose one fully connected layer is the head."""
    model = build_model(Blueprint("lenet-sigmoid", SHAPE, CLASSES, 768), 1)
    draw = torch.Generator().manual_seed(5)
    images = functional.interpolate(torch.rand(4, 3, 8, 8, generator=draw), scale_factor=4, mode="bilinear")
    labels = torch.tensor([3, 1, 0, 7])
    functional.cross_entropy(model(images), labels).backward()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    after = {name: value.detach() - RATE * value.grad for name, value in model.named_parameters()}
    model.zero_grad()
    seen = (Observation(1, 0, (Model(after),), (Model(before),)),)
    facts = BatchFacts(4, RATE, 1)
    knowledge = Knowledge(ThreatModel(), SHAPE, CLASSES, model=model, batch=facts, labels={(1, 0): labels})
    return images, AttackProblem(seen, knowledge, list_targets(list(seen), "model"))


def test_batches_behind_smooth_layers_are_told_apart_by_the_head(step):
    images, problem = step
    found = read_problem("x", problem, always_apart=True).apart[0]
    assert found.step.readout.startswith("head")
    torch.testing.assert_close(found.known.inputs, found.known.view(images), rtol=1e-2, atol=1e-3)
    assert read_problem("x", problem).apart[0] is None
    objective = InvertingGradients().objective(problem)
    assert float(objective(images[None])) < 1e-4 < 0.1 * float(objective(images.flip(3)[None]))
