"""What the protocol tells of the loss: with it the true images explain every weighty upload, or the attack says why not."""

import pytest
import torch
from federations import CPU, small

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.inverting import InvertingGradients
from fedpriv.attacks.gradients.matching import Matcher
from fedpriv.attacks.observation import ThreatModel
from fedpriv.attacks.search.candidates import Row
from fedpriv.federation.method import LocalTraining
from fedpriv.methods import METHODS
from fedpriv.sources.case import build_case
from fedpriv.sources.run import RunSource
from fedpriv.uploads.kinds import NETWORKS

CARD = ThreatModel()
TRUE = 1e-3
"""Distance below which images explain an update, up to rounding."""
FLAT = 1e-4
"""Length below which an update is rounding."""

KINDS = {
    name: next(kind for kind in METHODS.load(name).uploads if kind in NETWORKS)
    for name in METHODS
    if set(METHODS.load(name).uploads) & set(NETWORKS) and name != "fedhenn"
}
"""Methods whose uploads hold weights; FedHeNN with own architectures broadcasts none."""


@pytest.fixture(scope="module")
def world(trained):
    def get(method, batch_size=1, steps=1, **more):
        found = METHODS.load(method)
        config = small(
            method,
            options=({"small_model": "small-cnn"} if "small_model" in vars(found.options()) else {}) | more,
            per_class=6,
            clients=2,
            rounds=2,
            public=8 if found.needs_public else 0,
            models="small-cnn",
            capture="all",
            keep=(1,),
            training=LocalTraining(learning_rate=0.05, max_steps=steps, batch_size=batch_size),
        )
        return trained(config)

    return get


def at_the_truth(directory, federation, kind, round_, swapped=False):
    """Return the distances at the true images, or at each other's, and what the attack says of its own objective."""
    evidence = build_case(RunSource(directory, federation, kind), CARD, n_targets=2, seed=0, round_=round_)
    found = RunSource(directory, federation, kind).truths(evidence.targets, seed=0)
    knowledge = evidence.knowledge
    problem = InvertingGradients(apart=False).read(AttackProblem(evidence.observations, knowledge, evidence.targets))
    matcher = Matcher(problem.model, knowledge.image_shape, problem.facts, CPU, knowledge.loss.proximal).against(
        problem.steps, problem.counts
    )
    members = torch.stack([truth.members for truth in found])
    rows = [Row(target, place, 0) for place, target in enumerate(evidence.targets)]
    images = members.roll(1, 0) if swapped else members
    distance = matcher.cosine(images, problem.probabilities(rows, knowledge.n_classes), torch.arange(2)).detach()
    # FedRep's head, trained first, may leave an image no loss, and its update is rounding then.
    size = torch.stack([sum(part.square().sum() for part in step.gradient.values()).sqrt() for step in problem.steps])
    assert (size > FLAT).any()
    return distance[size > FLAT], problem.misled


@pytest.mark.parametrize("round_", [1, 2])
@pytest.mark.parametrize("method", KINDS)
def test_the_true_image_of_one_step_explains_the_update(method, round_, world):
    distance, misled = at_the_truth(*world(method), KINDS[method], round_)
    others, _ = at_the_truth(*world(method), KINDS[method], round_, swapped=True)
    assert float(others.min()) > 0.02
    assert not misled
    assert float(distance.max()) < TRUE


@pytest.mark.parametrize("method", KINDS)
def test_several_steps_on_batches_are_explained_or_said_not_to_be(method, world):
    distance, misled = at_the_truth(*world(method, batch_size=3, steps=2), KINDS[method], 2)
    assert misled or float(distance.max()) < TRUE
    if method in ("fedavg", "fedprox", "fedrep"):
        assert not misled


def test_without_a_layer_before_the_head_the_heads_bias_tells_what_logits_do(world):
    deep = {"small_model": "small-cnn-deep"}
    distance, misled = at_the_truth(*world("fml", **deep), "small-model", 1)
    assert not misled
    assert float(distance.max()) < TRUE
    distance, misled = at_the_truth(*world("fedmrl", narrowing="htfllib", **deep), "small-model", 1)
    assert float(distance.max()) > TRUE
    assert misled
