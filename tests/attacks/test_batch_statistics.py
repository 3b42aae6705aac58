"""Statistics before batch norms: what is compared, what each card grants, and that the true batch has the exact ones."""

import dataclasses

import pytest
import torch
from compare import expect_same
from federations import CPU, small, trained_small
from torch import nn

from fedpriv.attacks.gradients.inverting import InvertingGradients
from fedpriv.attacks.gradients.row_gradients import RowGradients
from fedpriv.attacks.observation import ThreatModel
from fedpriv.federation.method import LocalTraining
from fedpriv.sources.case import build_case
from fedpriv.sources.run import RunSource
from fedpriv.util.errors import UserError

CARD = ThreatModel()


def card(access):
    return dataclasses.replace(CARD, batch_norm=access)


def trained(folder, models, **changes):
    values = {"rounds": 1, "image_size": 32, "per_class": 2, "clients": 2, "models": models} | changes
    training = LocalTraining(learning_rate=0.05, max_steps=values.pop("steps", 1), batch_size=4)
    return trained_small(folder / "run", small("fedavg", training=training, **values))


@pytest.fixture(scope="module")
def normalised(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("norm"), "resnet18")


def test_distances_are_those_computed_by_hand():
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(4, 2))
    weights = {name: value.detach() for name, value in model.named_parameters()}
    target = {"0": (torch.tensor([[0.5], [0.0]]), torch.tensor([[0.0], [1.0]]))}
    zero, one = torch.zeros(1, 2, 2), torch.ones(1, 2, 2)
    # Of two images with mean 0.5 and variance 0.25, and of two with mean 1 and variance 0.
    images = torch.stack([torch.stack([zero, one]), torch.stack([one, one])])
    found = RowGradients(model, (1, 2, 2), CPU).statistics_distance(weights, images, target)
    torch.testing.assert_close(found, torch.tensor([0.0 + 0.25, 1.0 + 1.0]), rtol=0, atol=1e-5)


def test_each_card_grants_what_it_says(normalised):
    directory, federation = normalised
    asked = {
        access: build_case(RunSource(directory, federation, "model"), card(access), n_targets=1, seed=0)
        for access in ("none", "running")
    }
    assert asked["none"].knowledge.statistics == {}
    client = asked["running"].targets[0].client
    state = directory.client_state(1, client)
    for name, (mean, variance) in asked["running"].knowledge.statistics[1, client].items():
        expect_same(mean, state[f"model.{name}.running_mean"])
        expect_same(variance, state[f"model.{name}.running_var"])
    attack = InvertingGradients(iterations=1, total_variation=0.0)
    objectives = {float(attack(seen.observations, seen.knowledge, seen.targets).objective) for seen in asked.values()}
    assert len(objectives) == 2


def test_statistics_that_a_run_does_not_have_are_refused(tmp_path):
    made = trained(tmp_path, "mobilenet-v2", steps=2, rounds=2, capture="all", checkpoint_every=2)
    source, asked = RunSource(*made, "model"), {"n_targets": 2, "seed": 0, "round_": 1}
    with pytest.raises(UserError, match=r"pass knowledge={.batch_norm.: .none.}, or train with keep=.1."):
        build_case(source, card("running"), **asked)
    assert build_case(source, card("none"), **asked).knowledge.statistics == {}
