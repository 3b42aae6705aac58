"""What every weighty upload says of the batch behind it: the read-out gradient against the client's own loss."""

import dataclasses

import pytest
import torch
from federations import CPU, small, trained_small
from looped import each
from torch.nn import functional
from torch.nn.functional import cosine_similarity

from fedpriv.attacks.gradients.linear_layer import LinearLayer
from fedpriv.attacks.gradients.update import StepModel, local_step
from fedpriv.attacks.observation import ThreatModel
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.states import put
from fedpriv.models.build import build_model
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


def steps_of(directory, federation, kind, card=CARD):
    """Return evidence, truths and the step of each target."""
    evidence = build_case(RunSource(directory, federation, kind), card, n_targets=9, seed=0)
    found = RunSource(directory, federation, kind).truths(evidence.targets, seed=0)
    knowledge = evidence.knowledge
    seen = {o.client: o for o in evidence.observations}
    steps = [
        local_step(seen[t.client], knowledge.model, RATE, CPU, knowledge.heads.get(t.client)) for t in evidence.targets
    ]
    return evidence, found, steps


def candidate(knowledge, step, truth, labels):
    """Return the gradient that plain cross-entropy with soft ``labels`` would have on the true batch."""
    found = StepModel(knowledge.model, CPU).gradient(step.weights, truth.members, labels, step.fixed)
    return found if step.project is None else step.project(found)


def cosine(first, second):
    names = list(second)
    return float(
        cosine_similarity(*(torch.cat([part[name].flatten() for name in names]) for part in (first, second)), dim=0)
    )


def hot(truth):
    return functional.one_hot(truth.labels, 10).float()


def private_logits(federation, client, truth, step):
    """Return what the private model and the small one answer before the step."""
    model = build_model(federation.clients[client].blueprint, 0)
    put(model, federation.initial_state(client), "model")
    small = torch.func.functional_call(model, step.weights, (truth.members,))  # of one architecture here
    return model(truth.members).detach(), small.detach()


@each("method", ["fedavg", "fedrep"])
def test_the_gradient_of_plain_cross_entropy_is_the_uploads_own(method, world):
    directory, federation = world(method)
    evidence, found, steps = steps_of(directory, federation, KINDS[method])
    for truth, step in zip(found, steps, strict=True):
        own = candidate(evidence.knowledge, step, truth, hot(truth))
        for name, value in step.gradient.items():
            torch.testing.assert_close(own[name], value, rtol=1e-3, atol=5e-6)


@each("method", KINDS)
@each("batch_size", [1, 4])
def test_whatever_the_loss_the_first_layer_gives_the_batch_away(method, batch_size, world):
    directory, federation = world(method, batch_size)
    card = dataclasses.replace(CARD, extractor="none")  # nothing private is needed
    evidence, found, _ = steps_of(directory, federation, KINDS[method], CARD)
    knowledge = dataclasses.replace(evidence.knowledge, card=card, heads={})
    result = LinearLayer()(evidence.observations, knowledge, evidence.targets, seed=0, device=CPU)
    for images, truth in zip(result.images, found, strict=True):
        errors = (images[:, None] - truth.members[None]).square().flatten(2).mean(2).min(0).values
        assert float(errors.max()) < 1e-6  # 60 dB
    assert result.converged.all()
