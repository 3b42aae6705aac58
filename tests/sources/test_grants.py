"""Every grant of a card by itself: who gets an extractor, a head, images, facts of batches; what is refused, and how."""

import dataclasses

import pytest
import torch
from compare import expect_close, expect_same
from federations import small

from fedpriv.attacks.contract import Trained
from fedpriv.attacks.observation import ThreatModel
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.states import put
from fedpriv.models.build import build_model
from fedpriv.models.split import SplitModel
from fedpriv.sources import case
from fedpriv.sources.case import EVERYTHING, build_case
from fedpriv.sources.run import RunSource
from fedpriv.util.errors import UserError

CARD = ThreatModel()


@pytest.fixture(scope="module")
def worlds(trained):
    known = {"per_class": 20, "clients": 3, "rounds": 1, "models": "small-mlp", "alpha": 1.0}
    return lambda method, **settings: trained(small(method, **(known | settings)))


def granted(world, kind, card=CARD, seed=0, **more):
    return build_case(RunSource(*world, kind), card, n_targets=EVERYTHING, seed=seed, **more).knowledge


def but(card=CARD, **changes):
    return dataclasses.replace(card, **changes)


# ---------------------------------------------------------------- extractors and heads


def test_attacked_clients_alone_have_their_extractors_and_heads_handed_over(worlds):
    world = worlds("fd")
    found = build_case(RunSource(*world, "logits"), CARD, n_targets=2, seed=0)
    clients = sorted({target.client for target in found.targets})
    assert sorted(found.knowledge.extractors) == sorted(found.knowledge.heads) == clients
    assert len(clients) == 2
    assert (found.knowledge.image_shape, found.knowledge.n_classes, found.knowledge.model) == ((1, 8, 8), 10, None)
    assert granted(world, "logits", but(extractor="query")).heads == {}
    nothing = granted(world, "logits", but(extractor="none"))
    assert (nothing.extractors, nothing.heads) == ({}, {})
    assert granted(worlds("fedgh"), "prototype").heads == {}  # no private head had a part in them


def test_an_extractor_and_its_head_answer_as_the_clients_model_does(worlds):
    directory, federation = worlds("fd")
    found = granted((directory, federation), "logits")
    pictures = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for client in (0, 2):
        model = build_model(federation.clients[client].blueprint, 7)
        put(model, directory.client_state(1, client), "model")
        model.eval()
        expect_close(found.extractors[client](pictures), model.represent(pictures), atol=1e-6)
        weight, bias = found.heads[client]
        expect_close(found.extractors[client](pictures) @ weight.T + bias, model(pictures), atol=1e-5)


def test_whoever_may_only_ask_gets_no_slopes(worlds):
    world = worlds("fd")
    pictures = torch.rand(2, 1, 8, 8).requires_grad_()
    assert granted(world, "logits").extractors[0](pictures).requires_grad
    assert not granted(world, "logits", but(extractor="query")).extractors[0](pictures).requires_grad
    owner = granted(world, "logits").extractors[0].__self__
    assert isinstance(owner, SplitModel)
    assert not owner.training
    assert not any(part.requires_grad for part in owner.parameters())


# ---------------------------------------------------------------- images of the attacker's own


def test_images_that_were_set_aside_come_with_their_labels(worlds):
    world = worlds("fedgh", auxiliary=0.4)
    found = granted(world, "prototype", but(attacker_data="same_domain"))
    expect_same(found.public_images, world[1].attacker.images)
    expect_same(found.public_labels, world[1].attacker.labels)
    nothing = granted(world, "prototype")
    assert nothing.public_images is nothing.public_labels is None


# ---------------------------------------------------------------- shadows


@pytest.fixture
def quick(monkeypatch):
    """Substitutes that say what they were made of, in place of training."""

    def named(name):
        def fit(observations, client, round_, own, n_classes, seed):
            made = lambda images: (name, client, round_, len(own), n_classes, seed, len(observations))  # noqa: E731
            return made, (torch.full((2, 2), float(client)), torch.zeros(2))

        return fit

    def extractor(anchors, own, n_classes, seed):
        return lambda images: ("extractor", anchors, len(own), n_classes, seed)

    monkeypatch.setattr(case, "shadow_model", named("model"))
    monkeypatch.setattr(case, "shadow_extractor", extractor)


SHADOW = but(extractor="shadow", attacker_data="same_domain")


def test_whole_models_are_fitted_to_class_outputs_on_the_attackers_own_images(worlds, quick):
    world, kept = worlds("fd", auxiliary=0.4), Trained()
    found, number = granted(world, "logits", SHADOW, seed=5, trained=kept), len(world[1].attacker)
    assert [found.extractors[k](None) for k in (0, 2)] == [("model", k, 1, number, 10, 5, 3) for k in (0, 2)]
    assert [float(head[0][0, 0]) for head in found.heads.values()] == [0, 1, 2]
    assert granted(world, "logits", SHADOW, seed=5, trained=kept).extractors[0] is found.extractors[0]
    assert granted(world, "logits", SHADOW, seed=6, trained=kept).extractors[0](None)[5] == 6


def test_clients_with_the_same_anchors_share_a_shadow_extractor(worlds, quick):
    """Prototypes are each client's own; behind mixtures the server has the head alone, which all were sent."""
    for method, kind, shared in (("fedgh", "prototype", False), ("fedre", "entangled", True)):
        world, kept = worlds(method, auxiliary=0.4), Trained()
        found = granted(world, kind, SHADOW, seed=5, trained=kept).extractors
        assert found[0](None)[2:] == (len(world[1].attacker), 10, 5)
        assert (found[0] is found[2]) == shared
        assert granted(world, kind, SHADOW, seed=5, trained=kept).extractors[0] is found[0]


def test_a_shadow_without_images_of_the_clients_domain_is_refused(worlds, quick):
    with pytest.raises(UserError, match=r"extractor=shadow: .* attacker_data=same_domain"):
        granted(worlds("fd", auxiliary=0.4), "logits", but(SHADOW, attacker_data="none"))


# ---------------------------------------------------------------- weights: architecture, batches, batch norm

STEPS = LocalTraining(learning_rate=0.1, max_steps=2, batch_size=3)


def test_uploaded_weights_come_with_their_architecture_and_facts_of_batches_and_no_extractor(worlds):
    directory, federation = worlds("fedavg", training=STEPS)
    found = granted((directory, federation), "model")
    assert found.extractors == found.heads == found.statistics == {}
    assert not found.model.training
    networks = (found.model, federation.clients[0].model)
    shapes = [{name: value.shape for name, value in network.state_dict().items()} for network in networks]
    assert shapes[0] == shapes[1]
    assert sorted(found.labels) == [(1, 0), (1, 1), (1, 2)]
    assert (found.batch.batch_size, found.batch.learning_rate, found.batch.steps) == (3, 0.1, 2)
    assert granted((directory, federation), "model", but(batch=False)).batch is None


def test_batch_norm_is_granted_only_where_there_is_some(worlds):
    plain = worlds("fedavg", training=STEPS)
    assert granted(plain, "model", but(batch_norm="none")).card.batch_norm == CARD.batch_norm
    for kept in ("none", "running"):
        assert granted(worlds("fedgh"), "prototype", but(batch_norm=kept)).card.batch_norm == kept
