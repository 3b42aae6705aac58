"""What every weighty upload says of the batch behind it: the read-out gradient against the client's own loss."""

import dataclasses

import pytest
from federations import small, trained_small
from looped import each

from fedpriv.attacks.gradients.linear_layer import LinearLayer
from fedpriv.attacks.observation import ThreatModel
from fedpriv.federation.method import LocalTraining
from fedpriv.sources.case import build_case
from fedpriv.sources.run import RunSource

CARD = ThreatModel()
KINDS = {
    "fedavg": "model",
    "fedrep": "extractor",
    "fml": "small-model",
    "fedmrl": "small-model",
    "fedapen": "small-model",
    "fedkd": "low-rank-model",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = {}

    def get(method, batch_size):
        if (method, batch_size) not in made:
            options = {"small_model": "small-mlp"} if method in ("fml", "fedmrl", "fedapen", "fedkd") else {}
            training = LocalTraining(learning_rate=0.05, max_steps=1, batch_size=batch_size, epochs=1)
            world = {"per_class": 6, "clients": 2, "rounds": 1, "models": "small-mlp", "training": training}
            folder = tmp_path_factory.mktemp("weighty") / "run"
            made[method, batch_size] = trained_small(folder, small(method, options=options, **world))
        return made[method, batch_size]

    return get


@each("method", KINDS)
@each("batch_size", [1, 4])
def test_whatever_the_loss_the_first_layer_gives_the_batch_away(method, batch_size, world):
    source = RunSource(*world(method, batch_size), KINDS[method])
    card = dataclasses.replace(CARD, extractor="none")  # nothing private is needed
    evidence = build_case(source, CARD, n_targets=9, seed=0)
    found = source.truths(evidence.targets, seed=0)
    knowledge = dataclasses.replace(evidence.knowledge, card=card, heads={})
    result = LinearLayer()(evidence.observations, knowledge, evidence.targets)
    for images, truth in zip(result.images, found, strict=True):
        errors = (images[:, None] - truth.members[None]).square().flatten(2).mean(2).min(0).values
        assert float(errors.max()) < 1e-6  # 60 dB
    assert result.converged.all()
