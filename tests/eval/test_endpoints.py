"""Endpoints as data: every kind of upload and threat model has its primaries, or a reason why there is none."""

from looped import each

from fedpriv.attacks import ATTACKS, targets_of
from fedpriv.attacks.observation import ThreatModel
from fedpriv.eval.endpoints import (
    ENDPOINTS,
    INFERENCES,
    RECONSTRUCTION,
    THREATS,
    primaries,
    primary,
    protocol_card,
    threat_for,
    why_not,
)
from fedpriv.uploads.kinds import IN_CLEAR, SIGNALS

WHITE, PROTOCOL = ThreatModel(attacker_data="same_domain"), ThreatModel(extractor="none", labels="inferred")
ATTACKED = sorted(kind for kind in SIGNALS if any(kind in targets_of(name) for name in ATTACKS))


def test_every_kind_and_threat_model_has_primaries_that_fit_or_a_reason():
    for kind in (*ATTACKED, *IN_CLEAR):
        for threat in THREATS:
            named = primaries(kind, threat)
            for name in named:
                fits = kind in targets_of(name)
                assert fits or name in ("labels", "property", "membership"), (kind, threat, name)
            for endpoint in ENDPOINTS:
                fitting = [name for name in named if primary(kind, endpoint, threat, [name]) == name]
                assert fitting or why_not(kind, endpoint, threat)


def test_every_attack_of_the_order_takes_some_of_its_kinds():
    for kinds, _, order in RECONSTRUCTION:
        for name in order:
            assert any(kind in targets_of(name) for kind in kinds), name
            assert ATTACKS.load(name).result == "images"
    for endpoint, order in INFERENCES.items():
        assert all(ATTACKS.load(name).result == "scores" for name in order), endpoint


def test_the_first_of_the_order_is_primary_whatever_else_was_run():
    assert primary("prototype", "reconstruction", "white-box", ["aaa", "dip", "decoder"]) == "decoder"
    assert primary("prototype", "reconstruction", "white-box", ["aaa", "dip"]) == "dip"
    assert primary("entangled", "reconstruction", "protocol", ["pixels", "unmix"]) == "unmix"
    assert primary("prototype", "membership", "protocol", ["aaa", "membership"]) == "membership"
    assert primary("prototype", "label disclosure", "protocol", ["property", "labels"]) == "labels"
    assert primary("kernel", "reconstruction", "protocol", ["zzz", "aaa"]) == "aaa"
    assert primary("kernel", "reconstruction", "protocol", []) is None


@each(
    "kind, images, scores",
    [
        *((kind, "white-box", "white-box") for kind in ("representation", "prototype", "entangled", "logits")),
        *((kind, "white-box", "protocol") for kind in ("model", "small-model", "low-rank-model")),
        *((kind, "white-box", "white-box") for kind in ("classifier", "angle-matrix", "extractor")),
        *((kind, "protocol", "protocol") for kind in ("kernel", "public-logits")),
        ("feature-mean", "white-box", "white-box"),  # what nobody here attacks may use whatever is granted
    ],
)
def test_what_the_extractor_and_labels_are_worth_on_each_kind(kind, images, scores):
    assert (threat_for(kind, WHITE, images=True), threat_for(kind, WHITE, images=False)) == (images, scores)
    for card in (PROTOCOL, protocol_card(kind, WHITE)):
        assert threat_for(kind, card, images=True) == threat_for(kind, card, images=False) == "protocol"


def test_without_the_extractor_attackers_with_images_train_a_substitute():
    assert protocol_card("prototype", WHITE).extractor == "shadow"
    assert protocol_card("prototype", ThreatModel()).extractor == "none"
    assert protocol_card("model", WHITE).labels == "inferred"
