"""Every grant of a card by itself: who gets an extractor, a head, images, facts of batches; what is refused, and how."""

import dataclasses

import pytest
import torch
from compare import expect_close, expect_same
from federations import CPU, small, train_small
from fedpriv.evidence import grants
from fedpriv.evidence.grants import build_knowledge

from fedpriv.attacks.observation import KnowledgeCard
from fedpriv.attacks.trained import Trained
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.run_directory import DefenseChoice
from fedpriv.models.split import SplitModel
from fedpriv.sources.case import build_case
from fedpriv.sources.federation import prepare
from fedpriv.sources.run import RunSource
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError

CARD = KnowledgeCard()


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    made = {}

    def get(method, **settings):
        key = (method, *sorted(settings))
        if key not in made:
            known = {"per_class": 20, "clients": 3, "rounds": 1, "models": "small-mlp", "alpha": 1.0}
            made[key] = train_small(tmp_path_factory.mktemp("grants") / "run", small(method, **(known | settings)))
        return made[key]

    return get


def granted(world, kind, card=CARD, clients=(0, 2), **more):
    return build_knowledge(*world, kind, card, 1, set(clients), **more)


def but(card=CARD, **changes):
    return dataclasses.replace(card, **changes)


# ---------------------------------------------------------------- extractors and heads


def test_attacked_clients_alone_have_their_extractors_and_heads_handed_over(worlds):
    world = worlds("fd")
    found = granted(world, "logits")
    assert list(found.extractors) == list(found.heads) == [0, 2]
    assert found.card == CARD
    assert (found.image_shape, found.n_classes, found.model) == ((1, 8, 8), 10, None)
    assert granted(world, "logits", but(extractor="query")).heads == {}
    nothing = granted(world, "logits", but(extractor="none"))
    assert (nothing.extractors, nothing.heads) == ({}, {})
    prototypes = granted(worlds("fedgh"), "prototype")
    assert list(prototypes.extractors) == [0, 2]
    assert prototypes.heads == {}  # no private head had a part in them


def test_an_extractor_and_its_head_answer_as_the_clients_model_does(worlds):
    directory, federation = worlds("fd")
    found = granted((directory, federation), "logits")
    pictures = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    asked = grants._Grants(directory, federation, "logits", CARD, 1, (), 0, Trained())
    for client in (0, 2):
        model = grants.build_model(federation.clients[client].blueprint, 7)
        grants.put(model, asked._state(client), "model")
        model.eval()
        expect_close(found.extractors[client](pictures), model.represent(pictures), atol=1e-6)
        weight, bias = found.heads[client]
        logits = found.extractors[client](pictures) @ weight.T + bias
        expect_close(logits, model(pictures), atol=1e-5)


def test_whoever_may_only_ask_gets_no_slopes(worlds):
    world = worlds("fd")
    pictures = torch.rand(2, 1, 8, 8).requires_grad_()
    assert granted(world, "logits").extractors[0](pictures).requires_grad
    assert not granted(world, "logits", but(extractor="query")).extractors[0](pictures).requires_grad
    owner = granted(world, "logits").extractors[0].__self__
    assert isinstance(owner, SplitModel)
    assert not owner.training
    assert not any(part.requires_grad for part in owner.parameters())


def test_extractors_are_loaded_once_and_never_mixed_up(worlds):
    world, kept = worlds("fd"), Trained()
    first = granted(world, "logits", trained=kept).extractors
    again = granted(world, "logits", trained=kept).extractors
    assert first[0] is again[0]
    assert first[0] is not first[2]
    asked = granted(world, "logits", but(extractor="query"), trained=kept).extractors
    assert asked[0] is not first[0]
    other = granted(world, "logits", but(batch_norm="none"), trained=kept).extractors
    assert other[0] is not first[0]


# ---------------------------------------------------------------- images of the attacker's own


def test_images_that_were_set_aside_come_with_their_labels(worlds):
    world = worlds("fedgh", strangers=0.4)
    own = world[1].attacker
    found = granted(world, "prototype", but(attacker_data="same_domain"))
    expect_same(found.public_images, own.images)
    expect_same(found.public_labels, own.labels)
    nothing = granted(world, "prototype")
    assert nothing.public_images is nothing.public_labels is None


def test_a_run_without_images_set_aside_has_none_to_grant(worlds):
    world = worlds("fedgh")
    with pytest.raises(UserError) as refused:
        granted(world, "prototype", but(attacker_data="same_domain"))
    text = str(refused.value)
    assert text.startswith(argument("knowledge", {"attacker_data": "same_domain"}))
    assert f"{world[0].path} set no images aside; train it with " in text
    assert text.endswith(" N, or grant attacker_data=none")
    assert " 0.5 or " in text
    with pytest.raises(UserError, match="the clients hold images of that data set"):
        granted(world, "prototype", but(attacker_data="other_domain", foreign="digits"))


def test_foreign_images_come_without_labels_in_the_form_of_the_clients(worlds, monkeypatch):
    asked = []

    def drawn(foreign, shape, seed):
        asked.append((foreign, shape, seed))
        return torch.zeros(2, *shape)

    monkeypatch.setattr(grants, "foreign_images", drawn)
    monkeypatch.setattr(grants, "refuse_foreign", lambda card, config: asked.append((card.foreign, config)))
    world = worlds("fedgh", strangers=0.4)
    found = granted(world, "prototype", but(attacker_data="other_domain", foreign="other"), seed=7)
    assert asked == [("other", world[0].config), ("other", (1, 8, 8), 7)]
    assert found.public_images.shape == (2, 1, 8, 8)
    assert found.public_labels is None
    granted(world, "prototype", but(attacker_data="same_domain"))
    assert len(asked) == 2


# ---------------------------------------------------------------- shadows


@pytest.fixture
def quick(monkeypatch):
    """Substitutes that say what they were made of, in place of training."""

    def named(name):
        def fit(observations, client, round_, own, n_classes, seed):
            return (lambda images: (name, client, round_, len(own), n_classes, seed, len(observations))), (
                torch.full((2, 2), float(client)),
                torch.zeros(2),
            )

        return fit

    monkeypatch.setattr(grants, "shadow_model", named("model"))
    monkeypatch.setattr(grants, "shadow_extractor", lambda *given: named("extractor")(*given)[0])


def test_substitutes_are_trained_on_the_attackers_own_images(worlds, quick):
    world = worlds("fedgh", strangers=0.4)
    card = but(extractor="shadow", attacker_data="same_domain")
    found = granted(world, "prototype", card, observations=(1, 2), seed=5)
    own = world[1].attacker
    assert [found.extractors[k](None) for k in (0, 2)] == [("extractor", k, 1, len(own), 10, 5, 2) for k in (0, 2)]
    assert found.heads == {}


def test_of_class_outputs_alone_a_whole_model_is_fitted(worlds, quick):
    world = worlds("fd", strangers=0.4)
    card = but(extractor="shadow", attacker_data="same_domain")
    kept = Trained()
    found = granted(world, "logits", card, seed=5, trained=kept)
    own = world[1].attacker
    assert [found.extractors[k](None) for k in (0, 2)] == [("model", k, 1, len(own), 10, 5, 0) for k in (0, 2)]
    assert [float(found.heads[k][0][0, 0]) for k in (0, 2)] == [0.0, 2.0]
    assert (found.card, found.image_shape, found.n_classes, found.model) == (card, (1, 8, 8), 10, None)
    expect_same(found.public_images, own.images)
    expect_same(found.public_labels, own.labels)
    again = granted(world, "logits", card, seed=5, trained=kept)
    assert again.extractors[0] is found.extractors[0]
    assert granted(world, "logits", card, seed=6, trained=kept).extractors[0](None)[5] == 6


@pytest.mark.parametrize("data", ["none", "other_domain"])
def test_a_shadow_without_images_of_the_clients_domain_is_refused(data, worlds, quick):
    card = but(extractor="shadow", attacker_data=data, foreign="" if data == "none" else "fashion-mnist")
    federation = worlds("fd", strangers=0.4)[1]
    with pytest.raises(UserError) as refused:
        grants._own_samples(federation, card)
    assert str(refused.value) == (
        "knowledge extractor=shadow: a shadow extractor is trained on the attacker's own images; grant "
        "attacker_data=same_domain too"
    )
    with pytest.raises(UserError, match="extractor=shadow"):
        grants._own_samples(worlds("fd")[1], but(extractor="shadow", attacker_data="same_domain"))
    assert grants._own_samples(federation, but(attacker_data="same_domain")) is federation.attacker


# ---------------------------------------------------------------- weights: architecture, batches, batch norm

STEPS = LocalTraining(learning_rate=0.1, max_steps=2, batch_size=3)


def test_uploaded_weights_come_with_their_architecture_and_no_extractor(worlds):
    directory, federation = worlds("fedavg", training=STEPS)
    found = granted((directory, federation), "model")
    assert found.extractors == found.heads == found.statistics == {}
    assert not found.model.training
    state = federation.clients[0].model.state_dict()
    assert {name: value.shape for name, value in found.model.state_dict().items()} == {
        name: value.shape for name, value in state.items()
    }
    assert sorted(found.labels) == [(1, 0), (1, 2)]


def test_facts_of_batches_are_of_all_clients(worlds):
    world = worlds("fedavg", training=STEPS)
    found = granted(world, "model").batch
    assert (found.batch_size, found.learning_rate, found.steps) == (3, 0.1, 2)
    assert granted(world, "model", but(batch=False)).batch is None
    assert grants._public_loss(world[1], 1) == granted(world, "model").loss


def test_where_no_batch_is_known_the_protocols_own_is_told(worlds, monkeypatch):
    monkeypatch.setattr(grants, "step_sizes", lambda federation, client: [])
    found = granted(worlds("fedavg", training=STEPS), "model").batch
    assert (found.batch_size, found.steps) == (3, 1)


def test_batch_norm_is_granted_only_where_there_is_some(worlds):
    plain = worlds("fedavg", training=STEPS)
    assert granted(plain, "model", but(batch_norm="none")).card.batch_norm == CARD.batch_norm
    with pytest.raises(UserError) as refused:
        granted(plain, "model", but(batch_norm="exact"))
    assert str(refused.value) == (
        "knowledge batch_norm=exact: the uploaded network has no batch norm, and so no statistics; drop the grant"
    )
    with pytest.raises(UserError) as refused:
        granted(worlds("fedgh"), "prototype", but(batch_norm="exact"))
    assert str(refused.value) == "knowledge batch_norm=exact: runs store no batch statistics; use running or none"
    for kept in ("none", "running"):
        assert granted(worlds("fedgh"), "prototype", but(batch_norm=kept)).card.batch_norm == kept


def test_running_statistics_are_those_of_attacked_clients(worlds, monkeypatch):
    world = worlds("fedavg", training=STEPS)
    monkeypatch.setattr(grants, "batch_norms", lambda model: model is not None)
    monkeypatch.setattr(grants, "running_statistics", lambda run, model, kind, client, round_: (kind, client, round_))
    found = granted(world, "model", but(batch_norm="running"))
    assert found.statistics == {(1, 0): ("model", 0, 1), (1, 2): ("model", 2, 1)}
    nothing = granted(world, "model", but(batch_norm="none"))
    assert (nothing.statistics, nothing.card.batch_norm) == ({}, "none")
    assert granted(worlds("fedgh"), "prototype", but(batch_norm="running")).statistics == {}


# ---------------------------------------------------------------- the loss in public


def loss_of(training, **settings):
    federation = prepare(
        small("fedavg", clients=2, per_class=4, models="small-mlp", training=training, **settings), CPU
    )
    return grants._public_loss(federation, 1)


def test_what_attacks_do_not_follow_is_named():
    plain = loss_of(LocalTraining())
    assert (plain.besides, plain.later) == ("", "")
    heavy = loss_of(LocalTraining(weight_decay=0.1, momentum=0.9))
    assert heavy.besides == "weight decay moves the weights as well"
    assert heavy.later == "momentum carries gradients on"


def test_a_start_that_was_sent_through_defenses_is_named_where_the_server_sends_none_itself():
    noise = DefenseChoice("noise", {})
    federation = prepare(small("fd", clients=2, per_class=4, defenses=(noise,)), CPU)
    told = grants._public_loss(federation, 1).besides.split("; ")[-1]
    assert told == "the weights that clients began with are known only as they were sent, after their defenses"
    assert "after their defenses" not in loss_of(LocalTraining(), defenses=(noise,)).besides


def test_evidence_carries_what_was_granted(worlds):
    world = worlds("fd")
    found = build_case(RunSource(*world, "logits"), CARD, n_targets=4, seed=0)
    assert sorted(found.knowledge.extractors) == sorted({target.client for target in found.targets})
