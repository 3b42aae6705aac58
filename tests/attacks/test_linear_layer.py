"""The first fully connected layer: taken apart exactly where that is possible, and told so where it is not."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpriv.algebra.low_rank import compress, recover
from fedpriv.attacks.gradients.layers import LayerInputs, as_affine, first_linear
from fedpriv.attacks.gradients.linear_layer import LinearLayer
from fedpriv.attacks.gradients.update import labels_through_head, local_step
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation, ThreatModel
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
from fedpriv.uploads.payloads import Extractor, LowRankModel, Model
from fedpriv.util.errors import UserError

CPU = torch.device("cpu")
SHAPE = (1, 8, 8)
RATE = 0.1


def network(name="small-mlp"):
    return build_model(Blueprint(name, SHAPE, 10, 128), 1)


def pictures(count):
    draw = torch.Generator().manual_seed(5)
    coarse = torch.rand(count, 1, 4, 4, generator=draw)
    fine = functional.interpolate(coarse, scale_factor=2, mode="bilinear")
    return (fine + 0.1 * torch.rand(count, *SHAPE, generator=draw)).clamp(0, 1), torch.arange(count) % 10


def observe(model, images, labels, energy=None, kind=Model, steps=1):
    """Return what one client sends after SGD steps on a batch, the broadcast beside it."""
    if energy is not None:
        model.load_state_dict(recover(compress(dict(model.state_dict()), energy)))
    sent = [n for n, _ in model.named_parameters() if kind is not Extractor or not n.startswith("head.")]
    before = {name: model.state_dict()[name].clone() for name in sent}
    moved = [value for name, value in model.named_parameters() if name in sent]
    optimiser = torch.optim.SGD(moved, lr=RATE)
    for _ in range(steps):
        optimiser.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimiser.step()
    after = {name: model.state_dict()[name].clone() for name in sent}
    model.load_state_dict(before, strict=False)
    if energy is not None:
        return Observation(1, 0, (LowRankModel(compress(after, energy)),), (LowRankModel(compress(before, 1.0)),))
    return Observation(1, 0, (kind(after),), (kind(before),))


def run(model, seen, labels, attack=None, steps=1, given=True):
    kind = seen.upload[0].kind
    card, facts = ThreatModel(labels="given" if given else "inferred"), BatchFacts(len(labels), RATE, steps)
    told = {(1, 0): labels.repeat(steps)} if given else {}
    knowledge = Knowledge(card, SHAPE, 10, model=model, batch=facts, labels=told)
    return (attack or LinearLayer())((seen,), knowledge, list_targets([seen], kind))


def psnr(guess, truth):
    """Return the PSNR of the baseline for each true image."""
    errors = (guess[:, None] - truth[None]).square().flatten(2).mean(2)
    return -10 * errors.min(0).values.clamp_min(1e-10).log10()


@pytest.mark.parametrize("kind", [Model, Extractor])
def test_positive_control_a_single_image_is_exact(kind):
    model = network()
    images, labels = pictures(1)
    found = run(model, observe(model, images, labels, kind=kind), labels)
    assert found.images.shape == (1, 1, *SHAPE)
    assert psnr(found.images[0], images).min() > 60
    assert found.converged.all()
    assert found.labels.tolist() == [[0]]


@pytest.mark.parametrize("count", [2, 5, 8])
def test_images_of_a_batch_are_told_apart_exactly(count):
    model = network()
    images, labels = pictures(count)
    found = run(model, observe(model, images, labels), labels, given=False)
    assert psnr(found.images[0], images).min() > 60
    assert found.converged.all()
    assert found.objective[0, 0] < 1e-3


@pytest.mark.parametrize("count", [1, 4])
def test_truncated_factors_give_as_much_while_they_keep_more_dimensions_than_images(count):
    model = network()
    images, labels = pictures(count)
    seen = observe(model, images, labels, energy=0.5)
    rank = seen.upload[0].factors["extractor.1.weight.s"].shape[0]
    assert count < rank < 50  # the layer has 64 inputs: something was lost
    found = run(model, seen, labels)
    assert psnr(found.images[0], images).min() > 60


def test_negative_control_noise_for_an_update_gives_no_image():
    model = network()
    images, labels = pictures(2)
    seen = observe(model, images, labels)
    draw = torch.Generator().manual_seed(0)
    noise = {name: v + 0.01 * torch.randn(v.shape, generator=draw) for name, v in seen.broadcast[0].state.items()}
    found = run(model, Observation(1, 0, (Model(noise),), seen.broadcast), labels)
    floor = psnr(torch.full((1, *SHAPE), 0.5), images)
    assert (psnr(found.images[0], images) < floor + 1).all()
    assert not found.converged.any()


def test_several_steps_are_taken_apart_where_the_layer_takes_the_image_itself():
    model = network()
    images, labels = pictures(3)
    seen = observe(model, images, labels, steps=3)
    found = run(model, seen, labels, steps=3)
    # Nine images at most: some were seen alone by an output in all steps, whatever became of the weights.
    assert psnr(found.images[0], images).max() > 40


def test_behind_convolutions_the_representation_is_exact_and_its_image_follows():
    model = network("small-cnn")
    images, labels = pictures(1)
    seen = observe(model, images, labels)
    attack = LinearLayer(iterations=300, restarts=2)
    found = run(model, seen, labels, attack)
    view = LayerInputs(model, seen.broadcast[0].state, "extractor.7", CPU)
    best = float((view(found.images[0]) - view(images)).square().sum() / view(images).square().sum())
    assert best < 0.05
    assert psnr(found.images[0], images).min() > psnr(torch.full((1, *SHAPE), 0.5), images).min() + 3


def test_the_layer_that_takes_the_pixels_is_recognised():
    model = network()
    weights = dict(model.named_parameters())
    affine = as_affine(LayerInputs(model, weights, "extractor.1", CPU), SHAPE, CPU)
    assert affine == pytest.approx((2.0, -1.0))
    convolutions = network("small-cnn")
    for other, layer in ((model, "extractor.3"), (convolutions, "extractor.7")):
        assert as_affine(LayerInputs(other, dict(other.named_parameters()), layer, CPU), SHAPE, CPU) is None


def test_networks_without_such_a_layer_are_refused():
    lenet = build_model(Blueprint("lenet-sigmoid", SHAPE, 10, 48), 0)
    names = {name for name, _ in lenet.named_parameters()}
    assert first_linear(lenet, SHAPE, names) == "head"
    with pytest.raises(UserError, match="'linear-layer' needs an uploaded fully connected layer") as caught:
        first_linear(lenet, SHAPE, {name for name in names if not name.startswith("head.")})
    assert "\n" not in str(caught.value)
    normed = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 10))
    with pytest.raises(UserError, match=r"without batch normalisation before it \(1\)"):
        first_linear(normed, SHAPE, {name for name, _ in normed.named_parameters()})


def test_labels_behind_a_private_head_are_guessed_through_it():
    model = network()
    hits = 0
    for label in range(10):
        images = pictures(label + 1)[0][-1:]
        seen = observe(model, images, torch.tensor([label]), kind=Extractor)
        head = (model.head.weight.detach(), model.head.bias.detach())
        step = local_step(seen, model, RATE, CPU, head)
        hits += int(labels_through_head(step, model, 1, 10, SHAPE)[0] == label)
    assert hits >= 7  # 1 by chance
    images, labels = pictures(4)
    step = local_step(observe(model, images, labels, kind=Extractor), model, RATE, CPU, head)
    assert len(labels_through_head(step, model, 4, 10, SHAPE)) == 4


def test_without_the_head_images_come_back_without_labels():
    model = network()
    images, labels = pictures(2)
    found = run(model, observe(model, images, labels, kind=Extractor), labels, given=False)
    assert psnr(found.images[0], images).min() > 60
    assert found.labels.tolist() == [[-1, -1]]
