"""Soteria, PRECODE, transformed inputs and mixup: each rule by hand or by a slow oracle; whole runs; the answers to them."""

from dataclasses import replace

import pytest
import torch
from compare import expect_close
from defense_cases import CLASSES, OWN, SHAPE, WIDTH, batch, build, plan_for, worked
from federations import CPU

from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation, TargetId, ThreatModel
from fedpriv.defenses.training import pruned_step, scores
from fedpriv.federation.defense import DefensePipeline, plain_step
from fedpriv.federation.states import parameters
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
from fedpriv.uploads.payloads import Model
from fedpriv.util.errors import UserError

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
