import dataclasses
import math

import pytest
import torch
from compare import expect_same
from hypothesis import given, settings
from hypothesis import strategies as st
from looped import each
from torch import nn

from fedpriv.models import FAMILIES, MAPPINGS, MODELS, default_width, family
from fedpriv.models.build import build_model, count_parameters, extractor_parameters
from fedpriv.models.split import AveragePooling, Blueprint, MaxPooling, SplitModel
from fedpriv.models.zoo import Halving
from fedpriv.util.errors import UserError

CIFAR = (3, 32, 32)
GRAY = (1, 28, 28)
DIGITS = (1, 8, 8)
POINT = (1, 1, 2)
HEAVY = {"resnet101", "resnet152", "vit-b16", "vit-b32"}
LIGHT = [name for name in MODELS if name not in HEAVY]
SMALL = FAMILIES["small"]


def blueprint(name, image_shape=None, n_classes=10, width=None, mapping="ap"):
    image_shape = image_shape or (POINT if name == "plane-mlp" else CIFAR)
    return Blueprint(name, image_shape, n_classes, width or default_width(name, image_shape), mapping)


@each(
    "name, image_shape, expected",
    [
        ("cnn4", CIFAR, 873_408),
        ("cnn4", (3, 64, 64), 5_592_000),
        ("googlenet", CIFAR, 5_599_904),
        ("mobilenet-v2", CIFAR, 2_223_872),
        ("resnet4", CIFAR, 83_520),
        ("resnet6", CIFAR, 313_664),
        ("resnet8", CIFAR, 1_232_704),
        ("resnet10", CIFAR, 4_905_792),
        ("resnet18", CIFAR, 11_176_512),
        ("resnet34", CIFAR, 21_284_672),
        ("resnet50", CIFAR, 23_508_032),
        ("resnet101", CIFAR, 42_500_160),
        ("resnet152", CIFAR, 58_143_808),
        ("vit-b16", CIFAR, 85_651_200),
        ("vit-b32", CIFAR, 87_418_368),
        # A gray image drops two thirds of the first convolution: 2 * 64 * 7 * 7 and 2 * 768 * 16 * 16.
        ("resnet18", (1, 32, 32), 11_176_512 - 6_272),
        ("vit-b16", (1, 32, 32), 85_651_200 - 393_216),
        ("lenet-sigmoid", CIFAR, 12 * 3 * 25 + 12 + 2 * (12 * 12 * 25 + 12)),
    ],
)
def test_extractors_have_the_published_sizes(name, image_shape, expected):
    assert extractor_parameters(blueprint(name, image_shape)) == expected


def whole(name, image_shape):
    return count_parameters(build_model(blueprint(name, image_shape), seed=0))


def mebibytes(parameters):
    return 4 * parameters / 2**20


def test_the_five_cnns_weigh_what_fedrals_tables_1_and_2_state():
    # Of float32, in MiB, rounded up to two digits.
    for image_shape, stated in ((GRAY, (0.47, 0.33, 0.26, 0.19, 0.12)), (CIFAR, (10.01, 6.93, 5.04, 4.05, 2.56))):
        sizes = [mebibytes(whole(f"cnn-{i}", image_shape)) for i in range(1, 6)]
        assert [math.ceil(100 * size) / 100 for size in sizes] == list(stated)


def test_fedhenns_cnns_go_from_one_layer_of_each_kind_to_three():
    kinds = []
    for i in range(1, 6):
        layers = build_model(blueprint(f"fedhenn-cnn-{i}"), seed=0).extractor
        convolutions = sum(isinstance(layer, torch.nn.Conv2d) for layer in layers)
        kinds.append((convolutions, 1 + sum(isinstance(layer, torch.nn.Linear) for layer in layers)))  # and the head
    assert kinds == [(1, 1), (1, 2), (2, 2), (2, 3), (3, 3)]
    # By hand: convolutions 1,216, 12,832 and 51,264; linear layers from 4,096, 2,048 and 1,024 numbers.
    assert [extractor_parameters(blueprint(f"fedhenn-cnn-{i}")) for i in range(1, 6)] == [
        1_216,
        1_216 + 4_097 * 128,
        14_048 + 2_049 * 128,
        14_048 + 2_049 * 256 + 257 * 128,
        65_312 + 1_025 * 256 + 257 * 128,
    ]


def check_shapes(model, plan, images):
    represented, logits = model.represent(images), model(images)
    assert represented.shape == (len(images), plan.width)
    assert logits.shape == (len(images), plan.n_classes)
    return logits


@each("name, mapping", [*((name, "fc") for name in MODELS), *(("small-cnn", mapping) for mapping in MAPPINGS)])
def test_every_model_gives_representations_and_logits_through_every_mapping(name, mapping):
    plan = blueprint(name, width=48, mapping=mapping)
    with torch.device("meta"):
        extractor, n_vector = MODELS.load(name)(plan.image_shape)
        mapped = MAPPINGS.load(mapping)(n_vector, plan.width)
        model = SplitModel(extractor, mapped, torch.nn.Linear(plan.width, plan.n_classes))
        check_shapes(model, plan, torch.rand(2, *plan.image_shape))


@each("name", LIGHT)
def test_gradients_reach_every_image_of_a_real_model(name):
    plan = blueprint(name, n_classes=7)
    images = torch.rand(2, *plan.image_shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
    model = build_model(plan, seed=0)
    logits = check_shapes(model, plan, images)
    assert torch.isfinite(logits).all()
    logits.square().sum().backward()
    assert images.grad.abs().amax(dim=(1, 2, 3)).min() > 0
    assert model.head.weight.grad.abs().sum() > 0


@each("image_shape", [DIGITS, (3, 64, 64), (1, 9, 13)])
@each("name", [*SMALL, "lenet-sigmoid"])
def test_small_models_take_tiny_and_odd_images_and_batches_of_one(name, image_shape):
    plan = blueprint(name, image_shape)
    check_shapes(build_model(plan, seed=0).train(), plan, torch.rand(1, *image_shape))


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left.state_dict().values(), right.state_dict().values(), strict=True))


@each("name", ["small-cnn", "lenet-sigmoid", "resnet18", "mobilenet-v2", "googlenet"])
def test_weights_depend_on_the_seed_alone_and_no_global_state_moves(name):
    plan = blueprint(name, mapping="fc")
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = build_model(plan, seed=3)
    expect_same(before, torch.get_rng_state())
    torch.rand(10)
    assert same(first, build_model(plan, seed=3))
    other = build_model(plan, seed=4)
    assert all(not same(getattr(first, part), getattr(other, part)) for part in ("extractor", "mapping", "head"))


def test_dlgs_network_starts_uniform_between_minus_and_plus_a_half():
    model = build_model(blueprint("lenet-sigmoid", n_classes=100), seed=0)
    assert tuple(model.head.weight.shape) == (100, 768)
    assert isinstance(model.mapping, torch.nn.Identity)
    for part in (model.extractor, model.head):
        values = torch.cat([parameter.detach().flatten() for parameter in part.parameters()])
        assert -0.5 <= values.min() < -0.49
        assert 0.49 < values.max() <= 0.5


@each(
    "name, least",
    [("cnn4", 16), ("cnn-1", 16), ("googlenet", 15), ("small-cnn", 4), ("small-cnn-wide", 4), ("fedhenn-cnn-5", 8)],
)
def test_the_least_side_runs_and_one_pixel_less_is_refused(name, least):
    plan = blueprint(name, (3, least, least + 5))
    check_shapes(build_model(plan, seed=0), plan, torch.rand(2, *plan.image_shape))
    with pytest.raises(UserError, match=f"{name} cannot take images of 3x{least - 1}x40: .* {least} pixels"):
        build_model(blueprint(name, (3, least - 1, 40)), seed=0)


@each(
    "change, message",
    [
        ({"name": "resnet19"}, "unknown model 'resnet19'; did you mean"),
        ({"mapping": "avg"}, "unknown representation mapping 'avg'.* known: ap, fc, mp"),
        ({"width": 0}, "representation width is 0"),
        ({"n_classes": 0}, "number of classes is 0"),
        ({"image_shape": (0, 8, 8)}, "image shape"),
    ],
)
def test_bad_blueprints_are_answered(change, message):
    with pytest.raises(UserError, match=message):
        build_model(dataclasses.replace(blueprint("small-cnn"), **change), seed=0)


def test_lists_keep_order_and_repeats():
    assert family("cnn4, resnet18,cnn4") == ("cnn4", "resnet18", "cnn4")
    assert family("resnet18,small")[1:] == FAMILIES["small"]


@pytest.mark.parametrize(
    ("name", "image_shape", "width"),
    [
        ("fedre-10", (3, 32, 32), 512),
        ("cnn4", (3, 64, 64), 512),
        ("fedmrl-5", (3, 32, 32), 500),
        ("fedmrl-5", (1, 28, 28), 50),
        ("lenet-sigmoid", (3, 32, 32), 768),
        ("lenet-sigmoid", (1, 9, 10), 108),
        ("small", (1, 8, 8), 128),
        ("fedhenn-5", (3, 32, 32), 128),
        ("resnet6", (3, 32, 32), 128),
        ("fedral-5", (3, 64, 64), 512),
        ("htfe-9", (3, 32, 32), 64),
        ("small-cnn,cnn4", (3, 32, 32), 128),
    ],
)
def test_default_widths(name, image_shape, width):
    assert default_width(name, image_shape) == width


widths = st.integers(1, 70)


@pytest.mark.parametrize(
    ("n_in", "n_out", "start"),
    [
        (1280, 512, [1.0, 3.0, 6.0, 8.0]),
        (512, 2048, [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 2.0]),
        (512, 512, [0.0, 1.0, 2.0, 3.0]),
    ],
)
def test_average_pooling_has_the_published_windows(n_in, n_out, start):
    out = AveragePooling(n_in, n_out)(torch.arange(float(n_in))[None])
    assert out.shape == (1, n_out)
    torch.testing.assert_close(out[0, : len(start)], torch.tensor(start))


@settings(max_examples=80, deadline=None)
@given(n_in=widths, n_out=widths, seed=st.integers(0, 999))
def test_both_poolings_equal_torchs_and_so_do_their_gradients(n_in, n_out, seed):
    draw = torch.Generator().manual_seed(seed)
    vectors = torch.randn(3, n_in, generator=draw)
    weights = torch.randn(3, n_out, generator=draw)
    for ours, oracle in ((AveragePooling, nn.AdaptiveAvgPool1d), (MaxPooling, nn.AdaptiveMaxPool1d)):
        results = []
        for module in (ours(n_in, n_out), oracle(n_out)):
            x = vectors.clone().requires_grad_()
            y = module(x)
            results.append((y.detach(), torch.autograd.grad((y * weights).sum(), x)[0]))
        torch.testing.assert_close(results[0], results[1])


@each("shape", [(2, 3, 8, 8), (1, 2, 7, 5), (3, 1, 2, 2)])
def test_pooling_without_derivatives_is_torchs_to_the_bit(shape):
    maps = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    maps[0, 0, 0, 0] = float("nan")
    with torch.no_grad():
        assert torch.equal(Halving()(maps).nan_to_num(7.0), torch.nn.functional.max_pool2d(maps, 2).nan_to_num(7.0))
