"""Soteria, PRECODE, transformed inputs and mixup: each rule by hand or by a slow oracle; whole runs; the answers to them."""

from dataclasses import replace

import pytest
import torch
from compare import expect_close, expect_same
from defense_cases import CLASSES, OWN, SHAPE, WIDTH, batch, build, plan_for, worked
from federations import CPU
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from fedpriv.algebra.augmentations import AUGMENTATIONS, read_policy
from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation, TargetId, ThreatModel
from fedpriv.defenses.training import (
    Mixup,
    Transform,
    bounded_weights,
    cropped,
    mixed_step,
    pruned_step,
    scores,
    transform,
)
from fedpriv.federation.defense import DefensePipeline, plain_step
from fedpriv.federation.states import parameters
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
from fedpriv.uploads.payloads import Model
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator

# ---------------------------------------------------------------- Soteria


@pytest.mark.parametrize("name", ["small-cnn", "small-mlp", "lenet-sigmoid"])
def test_soteria_zeroes_the_columns_that_a_loop_over_columns_says(name):
    model = build_model(replace(OWN, name=name), 0).to(memory_format=torch.channels_last)
    images, labels = batch(3)
    seen = images.clone().requires_grad_()
    features = model.represent(seen)
    expected = torch.zeros(WIDTH)
    for column in range(WIDTH):
        for row in range(3):
            (slope,) = torch.autograd.grad(features[row, column], seen, retain_graph=True)
            expected[column] += slope[row].norm() / (features[row, column].detach() + 0.1)
    expect_close(scores(features, seen), expected, rtol=1e-4, atol=1e-6)
    plain, _ = worked(model, plain_step, images, labels)
    for percentile in (0.0, 30.0, 100.0):
        found, _ = worked(model, pruned_step(plain_step, percentile), images, labels)
        hidden = expected.abs() < torch.quantile(expected, percentile / 100)
        assert not found["head.weight"][:, hidden].any()
        expect_close(found["head.weight"][:, ~hidden], plain["head.weight"][:, ~hidden], atol=1e-6)
        assert all(torch.allclose(found[key], plain[key], atol=1e-6) for key in plain if key != "head.weight")


# ---------------------------------------------------------------- together


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (("dp-sgd:noise_multiplier=1", "soteria"), "before"),
        (("dp-sgd:noise_multiplier=1", "mixup"), "leave one"),
        (("mixup", "dp-sgd:noise_multiplier=1"), "leave one"),
        (("dp-sgd:noise_multiplier=1", "dp-sgd:noise_multiplier=1"), "twice"),
    ],
)
def test_orders_that_void_a_guarantee_are_refused(texts, words):
    plan = plan_for("model", trained=(OWN,), steps=(3, 3, 3, 3))
    with pytest.raises(UserError, match=words):
        DefensePipeline(build(*texts)).check(plan)
    DefensePipeline(build("soteria", "precode", "transform", "dp-sgd:noise_multiplier=1", "precode")).check(plan)


# ---------------------------------------------------------------- the answers


def one_step(model, step, images, labels, rate=0.1):
    """Return what a server sees of one step: broadcast and upload."""
    before = parameters(model)
    found, _ = worked(model, step, images, labels)
    after = {name: value - rate * found[name] for name, value in before.items()}
    return Observation(1, 0, (Model(after),), (Model(before),))


def knowledge_of(model, labels):
    return Knowledge(
        card=ThreatModel(labels="given"),
        image_shape=SHAPE,
        n_classes=CLASSES,
        model=model,
        batch=BatchFacts(batch_size=len(labels), learning_rate=0.1, steps=1),
        labels={(1, 0): labels},
    )


def error_of(attack, seen, model, images, labels):
    found = attack((seen,), knowledge_of(model, labels), (TargetId(1, 0, 0, -1),), seed=0, device=CPU)
    return float((found.images.reshape(images.shape) - images).square().mean())


def test_leaving_the_head_out_answers_soteria():
    own = Blueprint("lenet-sigmoid", SHAPE, CLASSES, 48)
    model = build_model(own, 0)
    images, labels = batch(1)
    attack = DeepLeakage(outer_steps=8)
    seen = one_step(model, pruned_step(plain_step, 80.0), images, labels)
    assert error_of(attack, seen, model, images, labels) > 1e-2
    assert error_of(replace(attack, ignore="head.weight"), seen, model, images, labels) < 1e-3


# ---------------------------------------------------------------- transformed images and mixup


def test_the_published_policy_is_what_the_authors_table_says():
    assert len(AUGMENTATIONS) == 50
    names = [[AUGMENTATIONS[number] for number in policy] for policy in read_policy(Transform().policy)]
    assert names == [
        [("translate-x", 9), ("contrast", 6), ("translate-y", 2)],
        [("translate-y", 3), ("contrast", 7), ("contrast", 7)],
    ]


def test_augmentations_by_hand():
    image = torch.zeros(1, 20, 20)
    image[0, 10, 10] = 1.0
    places = {
        tuple(transform(image, ((3,),), generator(seed), crop=False)[0].nonzero()[0].tolist()) for seed in range(12)
    }
    assert places == {(10, 1), (10, 19)}  # 9.06 pixels to either side
    half = torch.full((1, 4, 4), 0.25)
    expect_same(transform(half, ((0,),), generator(0), crop=False), 1 - half)  # invert
    bright = {round(float(transform(half, ((15,),), generator(seed), crop=False).mean()), 4) for seed in range(12)}
    assert bright == {0.125, 0.375}  # brightness 9: half more or less
    dot = torch.zeros(1, 16, 16)
    dot[0, 8, 3] = 1.0  # moved by up to 2 each way, then mirrored or not: column c becomes 15 - c
    places = {tuple(cropped(dot, generator(seed))[0].nonzero()[0].tolist()) for seed in range(400)}
    assert places == {(row, column) for row in range(6, 11) for column in (*range(1, 6), *range(10, 15))}


@given(st.integers(2, 6), st.floats(0.02, 1.0), st.integers(0, 10**6))
def test_weights_sum_to_one_and_keep_their_bound(number, slack, seed):
    most = 1 / number + slack * (1 - 1 / number)
    weights = bounded_weights(number, most, generator(seed))
    assert float(weights.sum()) == pytest.approx(1)
    assert float(weights.min()) >= 0
    assert float(weights.max()) <= most + 1e-9


def test_the_loss_of_mixed_images_weighs_every_label():
    images, labels = batch(6)
    model = build_model(OWN, 0)
    found, value = worked(model, mixed_step(plain_step, Mixup(images=2, most=0.65)), images, labels)
    rng = generator(0)
    weights = bounded_weights(2, 0.65, rng)
    order = torch.randperm(6, generator=rng)
    blend = float(weights[0]) * images + float(weights[1]) * images[order]
    soft = torch.zeros(6, CLASSES)
    for row in range(6):
        soft[row, labels[row]] += weights[0]
        soft[row, labels[order[row]]] += weights[1]
    model.zero_grad()
    expected = cross_entropy(model(blend), soft)
    expected.backward()
    expect_close(value, expected.detach(), atol=1e-6)
    assert all(torch.allclose(found[name], p.grad, atol=1e-6) for name, p in model.named_parameters())


def test_signs_mirror_pixels_at_mid_grey():
    images, labels = batch(4)
    model, seen = build_model(OWN, 0), []

    def loss(given_images, given_labels):
        seen.append(given_images)
        return cross_entropy(model(given_images), given_labels)

    for signs in (False, True):
        worked(model, mixed_step(plain_step, Mixup(images=2, signs=signs)), images, labels, loss)
    plain, flipped = seen[0], seen[2]
    same, mirrored = torch.isclose(flipped, plain), torch.isclose(flipped, 1 - plain)
    assert bool((same | mirrored).all())
    assert 0.3 < float(same.float().mean()) < 0.7
