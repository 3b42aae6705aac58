"""What attacks are told of local steps: each client's own number of steps and sizes of batches, whoever else is attacked."""

import dataclasses

import pytest
import torch
from federations import CPU, small, trained_small

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.inverting import InvertingGradients
from fedpriv.attacks.gradients.matching import Matcher
from fedpriv.attacks.gradients.update import one_hot
from fedpriv.attacks.observation import ThreatModel
from fedpriv.federation.method import LocalTraining
from fedpriv.sources.case import build_case
from fedpriv.sources.run import RunSource, local_steps

CARD = ThreatModel()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Return a run whose clients hold different numbers of images and take two epochs of batches of ten."""
    config = small(
        "fedavg",
        per_class=12,
        clients=4,
        rounds=1,
        models="small-mlp",
        alpha=0.3,
        training=LocalTraining(learning_rate=0.05, batch_size=10, epochs=2),
    )
    return trained_small(tmp_path_factory.mktemp("facts") / "run", config)


@pytest.mark.parametrize("n_targets", [1, 4])
def test_inferred_labels_are_as_many_as_each_client_used(n_targets, world):
    directory, federation = world
    card = dataclasses.replace(CARD, labels="inferred")
    evidence = build_case(RunSource(directory, federation, "model"), card, n_targets=n_targets, seed=0)
    problem = InvertingGradients(apart=False).read(
        AttackProblem(evidence.observations, evidence.knowledge, evidence.targets)
    )
    used = [len(RunSource(directory, federation, "model").used(1, target.client)) for target in evidence.targets]
    assert list(problem.counts) == used
    assert len(set(used)) == len(used)  # else the test says nothing
    for target in evidence.targets:
        sizes = tuple(len(batch) for batch in local_steps(directory, 1, target.client))
        assert evidence.knowledge.facts_of(target.client).sizes == sizes


def test_the_true_images_take_the_clients_own_steps(world):
    evidence = build_case(RunSource(*world, "model"), CARD, n_targets=4, seed=0)
    found = RunSource(*world, "model").truths(evidence.targets, seed=0)
    problem = InvertingGradients(apart=False).read(
        AttackProblem(evidence.observations, evidence.knowledge, evidence.targets)
    )
    most = problem.labels.shape[1]
    members = torch.stack([truth.members[torch.arange(most) % truth.n_c] for truth in found])
    matcher = Matcher(problem.model, evidence.knowledge.image_shape, problem.facts, CPU)
    matching = matcher.against(problem.steps, problem.counts)
    distance = matching.cosine(members, one_hot(problem.labels, 10), torch.arange(len(found)))
    assert float(distance.max()) < 1e-5
