"""Methods that share a small model beside the private ones: FedMRL, FML, FedAPEN, FedKD."""

import math

import pytest
import torch
from compare import expect_close, expect_same
from looped import each
from method_cases import CLASSES, SHAPE, WIDTH, World, same
from torch import nn
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import classify
from fedpriv.federation.method import LocalTraining, Plan
from fedpriv.federation.states import inner
from fedpriv.methods import METHODS, fedkd, fedmrl, fml
from fedpriv.methods.fml import divergence
from fedpriv.models.split import Blueprint
from fedpriv.uploads.payloads import SampleCount, SmallModel, get_payload
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator


def plan(options, name="small-cnn", width=WIDTH, shape=SHAPE, sizes=(11, 7, 5)):
    blueprint = Blueprint(name, shape, CLASSES, width)
    return Plan((blueprint,) * len(sizes), options, sizes, LocalTraining())


# ---------------------------------------------------------------- the small model


def test_small_models_are_averaged_uniformly_or_by_counts():
    models = [SmallModel({"w": torch.tensor([1.0])}), SmallModel({"w": torch.tensor([5.0])})]
    counts = [SampleCount(torch.tensor([1])), SampleCount(torch.tensor([3]))]
    counted = [(k, (model, count)) for k, (model, count) in enumerate(zip(models, counts, strict=True))]
    for name, mean in (("fedmrl", 4.0), ("fml", 3.0)):
        world, uploads = World(name), counted if name == "fedmrl" else [(k, sent[:1]) for k, sent in counted]
        state, broadcast = world.method.server_step(world.server, {}, uploads, generator(0))
        assert get_payload(broadcast, SmallModel).state["w"].tolist() == [mean]
        assert state["small.w"].tolist() == [mean]


@each("name", ["fedmrl", "fml", "fedkd", "fedapen"])
def test_unusable_small_models_are_refused_before_training(name):
    method = METHODS.load(name)
    method.check(plan(method.options()))
    with pytest.raises(UserError, match="unknown model 'small-cmm'"):
        method.check(plan(method.options(small_model="small-cmm")))
    with pytest.raises(UserError, match="model cnn4 cannot take images of 1x8x8"):
        method.check(plan(method.options(small_model="cnn4")))
    narrowing = {"narrowing": "htfllib"} if name == "fedmrl" else {}
    batch_norm = method.options(small_model="resnet18", **narrowing)
    method.check(plan(batch_norm, shape=(3, 32, 32)))
    with pytest.raises(UserError, match=r"client 1 holds one training image.*pass option={'small_model': 'small-cnn'}"):
        method.check(plan(batch_norm, shape=(3, 32, 32), sizes=(9, 1, 9)))


# ---------------------------------------------------------------- mutual learning


def test_divergence_is_kl_from_teacher_to_student():
    student, teacher = torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([[math.log(3), 0.0], [0.0, 0.0]])
    by_hand = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert float(divergence(student, teacher)) == pytest.approx(by_hand / 2, abs=1e-6)
    assert float(divergence(teacher, teacher)) == pytest.approx(0, abs=1e-7)


def test_gradients_are_clipped_model_by_model():
    first, second = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    # Gradients (30, 40) of norm 50, and (3, 4) of norm 5.
    loss = first(torch.tensor([30.0, 40.0])).sum() + second(torch.tensor([3.0, 4.0])).sum()
    value = fedkd.clip_each(loss, (first, second), 10.0)
    value.backward()
    expect_same(value.detach(), loss.detach())
    expect_close(first.weight.grad, torch.tensor([[6.0, 8.0]]))
    expect_close(second.weight.grad, torch.tensor([[3.0, 4.0]]))


# ---------------------------------------------------------------- FML


def test_fml_loss_by_hand():
    private, shared = torch.tensor([[math.log(3), 0.0]]), torch.tensor([[0.0, 0.0]])
    labels = torch.tensor([0])
    to_private = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    to_shared = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    cross_private, cross_shared = -math.log(0.75), -math.log(0.5)
    options = fml.FmlOptions(alpha=0.2, beta=0.7)
    expected = 0.2 * cross_private + 0.8 * to_private + 0.7 * cross_shared + 0.3 * to_shared
    assert float(fml.fml_loss(private, shared, labels, options)) == pytest.approx(expected, abs=1e-6)
    private.requires_grad_()  # the private model's loss alone reaches it
    (slope,) = torch.autograd.grad(fml.fml_loss(private, shared, labels, fml.FmlOptions(alpha=1.0, beta=0.0)), private)
    (alone,) = torch.autograd.grad(cross_entropy(private, labels), private)
    expect_close(slope, alone, atol=1e-7)


# ---------------------------------------------------------------- FedMRL


def test_fedmrl_loss_by_hand():
    world = World("fedmrl", {"small_width": 3, "small_weight": 0.5, "private_weight": 2.0})
    _, _, states = world.start()
    setup, state = world.setups[1], states[1]
    fusion = fedmrl.load(setup, state)
    images, labels = torch.rand(4, *SHAPE), torch.tensor([0, 1, 2, 3])
    both = torch.cat([fusion.small.represent(images), fusion.model.represent(images)], 1)
    assert both.shape == (4, 3 + WIDTH)
    z = both @ state["projector.weight"].T + state["projector.bias"]
    assert z.shape == (4, WIDTH)
    coarse = z[:, :3] @ state["small.head.weight"].T + state["small.head.bias"]
    fine = z @ state["model.head.weight"].T + state["model.head.bias"]
    expected = 0.5 * cross_entropy(coarse, labels) + 2 * cross_entropy(fine, labels)
    expect_close(fedmrl.nested_loss(fusion, images, labels, world.options), expected, atol=1e-6)


def test_fedmrls_four_modes_by_hand():
    modes = ("mix_large", "mix_small", "single_large", "single_small")
    worlds = {mode: World("fedmrl", {"small_width": 3, "inference": mode}) for mode in modes}
    _, _, states = worlds["mix_large"].start()
    state, images = states[1], torch.rand(4, *SHAPE)
    fusion = fedmrl.load(worlds["mix_large"].setups[1], state).eval()
    one, other = fusion.small.represent(images), fusion.model.represent(images)
    z = torch.cat([one, other], 1) @ state["projector.weight"].T + state["projector.bias"]
    expected = {
        "mix_large": z @ state["model.head.weight"].T + state["model.head.bias"],
        "mix_small": z[:, :3] @ state["small.head.weight"].T + state["small.head.bias"],
        "single_large": other @ state["model.head.weight"].T + state["model.head.bias"],
        "single_small": one @ state["small.head.weight"].T + state["small.head.bias"],
    }
    for mode, world in worlds.items():
        expect_close(world.method.predict(world.setups[1], state, images), expected[mode], atol=1e-5)


def test_fedapen_loss_by_hand():
    private, shared = torch.tensor([[math.log(3), 0.0]]), torch.tensor([[0.0, 0.0]])
    to_private = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    to_shared = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    mixed = math.log(1 + 3**-0.25)  # w P = (log 3 / 4, 0)
    expected = -math.log(0.75) + to_private - math.log(0.5) + to_shared + 2 * mixed
    loss = fml.ensemble_loss(private, shared, torch.tensor([0]), torch.tensor([0.25]))
    assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_fedapens_weight_descends_the_cross_entropy_of_the_mixture():
    torch.manual_seed(0)
    private, shared, labels = torch.randn(5, 4), torch.randn(5, 4), torch.tensor([0, 1, 3, 2, 2])
    options = fml.FedApenOptions(set_learning_rate=0.1, set_epochs=1)
    weight = torch.tensor([0.5], requires_grad=True)
    loss = cross_entropy(fml.mix(private, shared, weight), labels)
    (slope,) = torch.autograd.grad(loss, weight)
    learned = fml.learn_weight(torch.tensor([0.5]), private, shared, labels, options, 5)
    expect_close(learned, 0.5 - 0.1 * slope, atol=1e-6)
    first = fml.learn_weight(torch.tensor([0.5]), private[:3], shared[:3], labels[:3], options, 3)
    both = fml.learn_weight(first, private[3:], shared[3:], labels[3:], options, 3)
    expect_close(fml.learn_weight(torch.tensor([0.5]), private, shared, labels, options, 3), both)


def test_fedapen_learns_the_weight_on_its_set_after_aggregation():
    world = World("fedapen", {"set_learning_rate": 1.0, "set_share": 0.5})
    server, broadcast, states = world.start()
    setup = world.setups[0]
    # Nothing is learned from untrained models.
    assert world.method.apply_broadcast(setup, states[0], broadcast)["ensemble.weight"].tolist() == [0.5]
    _, broadcast, states, _ = world.round(1, server, broadcast, states)
    assert states[0]["ensemble.weight"].tolist() == [0.5]
    received = world.method.apply_broadcast(setup, states[0], broadcast)
    assert same(inner(received, "small"), dict(get_payload(broadcast, SmallModel).state))
    chosen = states[0]["ensemble.set"]
    assert len(chosen) == round(0.5 * len(setup.train)) == len(chosen.unique())
    logits = [classify(model, setup.train.images[chosen]) for model in fml.load(setup, received)]
    expected = fml.learn_weight(
        torch.tensor([0.5]), *logits, setup.train.labels[chosen], world.options, setup.training.batch_size
    )
    expect_same(received["ensemble.weight"], expected)
    assert expected.tolist() != [0.5]
    images = torch.rand(4, *SHAPE)
    private, shared = (classify(model, images) for model in fml.load(setup, received))
    w = float(expected)
    expect_close(world.method.predict(setup, received, images), w * private + (1 - w) * shared, atol=1e-6)
    # The next training mixes by the learned weight, and keeps it.
    after, _ = world.method.client_step(setup, states[0], broadcast, generator(0))
    expect_same(after["ensemble.weight"], expected)
