"""Clients that go on from their own weights: the server knows these from the upload before, or drew them itself."""

import pytest
from compare import expect_same
from federations import CPU, small

from fedpriv.attacks.gradients.linear_layer import LinearLayer
from fedpriv.attacks.observation import ThreatModel
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.prepared import init_rng
from fedpriv.federation.states import inner
from fedpriv.methods.fedhenn import prefix
from fedpriv.sources.case import build_case
from fedpriv.sources.run import RunSource
from fedpriv.uploads.payloads import Model, find_payload, get_payload
from fedpriv.util.errors import UserError

CARD = ThreatModel()


def config(**changes):
    values = {"rounds": 3, "models": "small-mlp", "capture": "all"} | changes
    training = LocalTraining(learning_rate=0.05, max_steps=1, batch_size=1)
    return small("fedhenn", options={"weight": 0.0}, per_class=6, clients=2, public=8, training=training, **values)


@pytest.mark.parametrize("round_", [1, 2, 3])
def test_the_update_begins_where_the_client_began(round_, trained):
    directory, federation = trained(config())
    found = build_case(RunSource(directory, federation, "model"), CARD, n_targets=2, seed=0, round_=round_)
    server, sent = federation.method.start(federation.server, init_rng(directory.config))
    assert find_payload(sent, Model) is None
    for seen in found.observations:
        start, before = get_payload(seen.broadcast, Model).state, inner(server, prefix(seen.client))
        if round_ > 1:
            before = get_payload(directory.message(directory.upload_path(round_ - 1, seen.client)), Model).state
        for name, value in before.items():
            expect_same(start[name], value)
    truth = RunSource(directory, federation, "model").truths(found.targets, seed=0)
    result = LinearLayer()(found.observations, found.knowledge, found.targets, seed=0, device=CPU)
    for images, own in zip(result.images, truth, strict=True):
        assert float((images - own.members).square().mean()) < 1e-6


def test_different_architectures_are_refused(trained):
    directory, federation = trained(config(models="small-mlp,small-cnn", rounds=1))
    with pytest.raises(UserError, match="models of different architectures"):
        build_case(RunSource(directory, federation, "model"), CARD, n_targets=2, seed=0)
