"""Gradients of many candidates at once against those of each alone, on every layer the zoo has; what is asked for beside."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpriv.attacks.gradients.layers import Known, LayerInputs
from fedpriv.attacks.gradients.matching import Matcher
from fedpriv.attacks.gradients.row_gradients import Factors, RowGradients, cosine_distance, formed, tangent_part
from fedpriv.attacks.gradients.update import LocalStep, StepModel, Tangent
from fedpriv.attacks.observation import BatchFacts
from fedpriv.models import MODELS, default_width
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint

CPU = torch.device("cpu")
SHAPE = (3, 32, 32)


def case(name, rows=2, count=3):
    model = build_model(Blueprint(name, SHAPE, 10, default_width(name, SHAPE)), 0).double()
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(rows, count, *SHAPE, generator=draw, dtype=torch.float64)
    labels = functional.one_hot(torch.randint(10, (rows, count), generator=draw), 10).double()
    return model, images, labels


def one_by_one(model, weights, images, labels):
    alone = StepModel(model, CPU)
    found = [alone.gradient(weights, own, label) for own, label in zip(images, labels, strict=True)]
    return {name: torch.stack([row[name] for row in found]) for name in weights}


# ResNets in place of all deep networks: their in-place additions and batch norms; GoogLeNet has in-place functions.
@pytest.mark.parametrize(
    "name", ["lenet-sigmoid", "cnn4", "small-cnn", "small-cnn-deep", "small-mlp", "resnet18", "googlenet"]
)
def test_rows_have_the_gradients_they_have_alone(name):
    model, images, labels = case(name)
    together = RowGradients(model, SHAPE, CPU)
    assert together.supported
    weights = {name: value.detach() for name, value in model.named_parameters()}
    expected = one_by_one(model, weights, images, labels)
    found, _ = together(weights, images, labels)
    assert set(found) == set(weights)
    for parameter, value in expected.items():
        assert (formed(found[parameter]) - value).norm() <= 1e-5 * value.norm() + 1e-9, parameter


def test_the_derivative_in_the_images_is_that_of_one_row():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding="valid"),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 4, 3, dilation=2, groups=2, bias=False),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Dropout(),
        nn.LazyLinear(10),
    )
    _, images, labels = case("small-mlp", rows=2, count=2)
    model(images[0].float())
    model = model.double()
    weights = {name: value.detach() for name, value in model.named_parameters()}
    wanted = {name: torch.randn_like(value).expand(2, *value.shape) for name, value in weights.items()}
    norms = torch.stack([value.square().flatten(1).sum(1) for value in wanted.values()]).sum(0).sqrt()
    together = RowGradients(model, SHAPE, CPU)
    images.requires_grad_()
    (found,) = torch.autograd.grad(cosine_distance(together(weights, images, labels)[0], wanted, norms).sum(), images)
    alone = StepModel(model, CPU)
    for row in range(2):
        own = images[row].detach().requires_grad_()
        gradient = alone.gradient(weights, own, labels[row])
        flat = torch.cat([value.flatten() for value in gradient.values()])
        aim = torch.cat([wanted[name][row].flatten() for name in gradient])
        (expected,) = torch.autograd.grad(1 - functional.cosine_similarity(flat, aim, dim=0), own)
        torch.testing.assert_close(found[row], expected, rtol=1e-6, atol=1e-10)


def test_a_dead_network_gives_no_gradient_rather_than_none_at_all():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False))
    weights = {"1.weight": -torch.ones(3, 4), "3.weight": torch.ones(2, 3)}
    images = torch.rand(1, 1, 1, 2, 2, requires_grad=True)
    layers, _ = RowGradients(model, (1, 2, 2), CPU)(weights, images, torch.tensor([[[1.0, 0.0]]]))
    wanted = {name: value.unsqueeze(0) for name, value in weights.items()}
    distance = cosine_distance(layers, wanted, torch.ones(1))
    (gradient,) = torch.autograd.grad(distance.sum(), images)
    assert distance.item() == 1
    assert not gradient.any()


def test_networks_with_other_layers_are_left_to_the_general_way():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(12, 12)

        def forward(self, images):
            return self.layer(self.layer(images.flatten(1)))

    assert "vit-b32" in MODELS  # attention and layer norm: not one of the known kinds
    for other in (nn.Sequential(nn.Flatten(), nn.LayerNorm(12), nn.Linear(12, 2)), Twice()):
        assert not RowGradients(other, (3, 2, 2), CPU).supported


@pytest.mark.parametrize("kind", ["cosine", "squared"])
def test_candidates_with_heads_of_their_own_and_known_inputs_are_compared_as_alone(kind):
    """Each client has a private head, one a known input of its readout; of one nothing is asked."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(168, 20), nn.Linear(20, 10))
    shape, rows, count = (1, 9, 10), 3, 2
    weights = {name: value.detach() for name, value in model.named_parameters() if not name.startswith("4.")}
    images, labels = torch.rand(rows, count, *shape), torch.eye(10)[torch.tensor([[1, 2]] * rows)]
    alone, steps = StepModel(model, CPU), []
    for row in range(rows):
        head = {"4.weight": torch.rand(10, 20), "4.bias": torch.rand(10)}
        steps.append(LocalStep(weights, alone.gradient(weights, images[row], labels[row], head), head))
    view = LayerInputs(model, weights, "3", CPU)
    matcher, which = Matcher(model, shape, BatchFacts(count, 0.1, 1), CPU), torch.arange(rows)
    matching = matcher.against(steps, [count] * rows)
    assert float(matching.cosine(images, labels, which).detach().abs().max()) < 1e-5
    assert float(matching.squared(images, labels, which).detach().abs().max()) < 1e-5
    own = (0.7 * images).requires_grad_()
    found = getattr(matching, kind)(own, labels, which)
    alone = [getattr(matcher.against([step], [count]), kind) for step in steps]
    each = [one(own[[row]], labels[[row]], which[:1]) for row, one in enumerate(alone)]
    torch.testing.assert_close(found, torch.cat(each))
    some = getattr(matching, kind)(own[[2, 0]], labels[[2, 0]], torch.tensor([2, 0]))
    torch.testing.assert_close(some, found[[2, 0]])

    readout = [LocalStep(weights, {name: step.gradient[name] for name in weights}, readout="3") for step in steps]
    slopes, sure = torch.rand(rows, count, 20), torch.tensor([True, False])
    wanted = view(images.flatten(0, 1)).view(rows, count, -1)
    known = [(Known(view, wanted[0], sure), 0.3), None, (Known(view, 2 * wanted[2], sure), 0.1)]
    plain, asked = matcher.against(readout, [count] * rows), matcher.against(readout, [count] * rows, known)
    inputs = view(own.flatten(0, 1)).view(rows, count, -1)
    relative = [
        (inputs[row, 0] - times * wanted[row, 0]).square().sum() / (times * wanted[row, 0]).square().sum()
        for row, times in ((0, 1), (2, 2))
    ]
    beside = torch.stack([0.15 * relative[0], 0 * relative[0], 0.05 * relative[1]])
    expected = getattr(plain, kind)(own, slopes, which) + beside
    together = getattr(asked, kind)(own, slopes, which)
    torch.testing.assert_close(together, expected)
    slopes_of = [torch.autograd.grad(value.sum(), own)[0] for value in (together, expected)]
    torch.testing.assert_close(*slopes_of, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(asked.explained(own, slopes), plain.cosine(own, slopes, which))


@pytest.mark.parametrize("count", [1, 4])
def test_the_part_that_a_truncated_upload_tells_of_needs_no_matrix(count):
    draw = torch.Generator().manual_seed(1)
    inputs, deltas, aim = (
        torch.randn(*size, generator=draw).double() for size in ((2, count, 9), (2, count, 6), (2, 6, 9))
    )
    left = torch.linalg.qr(torch.randn(2, 6, 3, generator=draw).double()).Q
    right = torch.linalg.qr(torch.randn(2, 9, 3, generator=draw).double()).Q.mT
    tangent, factors = Tangent({"weight": left}, {"weight": right}), Factors(inputs, deltas)
    expected = tangent({"weight": deltas.mT @ inputs})["weight"]
    part = tangent_part(factors, tangent, "weight")
    assert isinstance(part, Factors)
    torch.testing.assert_close(formed(part), expected)
    distances = [
        cosine_distance({"weight": it}, {"weight": aim}, aim.flatten(1).norm(dim=1)) for it in (part, expected)
    ]
    torch.testing.assert_close(*distances)
    assert tangent_part(factors, tangent, "sent whole") is factors
    torch.testing.assert_close(tangent_part(deltas.mT @ inputs, tangent, "weight"), expected)
