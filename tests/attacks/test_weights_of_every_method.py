"""What every weighty upload says of the batch behind it: the read-out gradient against the client's own loss."""

import dataclasses

import pytest
from federations import CPU, small, trained_small
from looped import each

from fedpriv.attacks.gradients.linear_layer import LinearLayer
from fedpriv.attacks.observation import ThreatModel
from fedpriv.federation.method import LocalTraining
from fedpriv.sources.case import build_case
from fedpriv.sources.run import RunSource

CARD = ThreatModel()
RATE = 0.05
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

    def get(method, batch_size=3, steps=1, model="small-mlp", rounds=1, epochs=1):
        key = (method, batch_size, steps, model, rounds)
        if key not in made:
            config = small(
                method,
                options={"small_model": model} if method in ("fml", "fedmrl", "fedapen", "fedkd") else {},
                per_class=6,
                clients=2,
                rounds=rounds,
                models=model,
                training=LocalTraining(learning_rate=RATE, max_steps=steps, batch_size=batch_size, epochs=epochs),
            )
            made[key] = trained_small(tmp_path_factory.mktemp("weighty") / "run", config)
        return made[key]

    return get


def evidence_of(directory, federation, kind):
    """Return evidence and truths."""
    evidence = build_case(RunSource(directory, federation, kind), CARD, n_targets=9, seed=0)
    found = RunSource(directory, federation, kind).truths(evidence.targets, seed=0)
    return evidence, found


@each("method", KINDS)
@each("batch_size", [1, 4])
def test_whatever_the_loss_the_first_layer_gives_the_batch_away(method, batch_size, world):
    directory, federation = world(method, batch_size)
    card = dataclasses.replace(CARD, extractor="none")  # nothing private is needed
    evidence, found = evidence_of(directory, federation, KINDS[method])
    knowledge = dataclasses.replace(evidence.knowledge, card=card, heads={})
    result = LinearLayer()(evidence.observations, knowledge, evidence.targets, seed=0, device=CPU)
    for images, truth in zip(result.images, found, strict=True):
        errors = (images[:, None] - truth.members[None]).square().flatten(2).mean(2).min(0).values
        assert float(errors.max()) < 1e-6  # 60 dB
    assert result.converged.all()
