"""Defenses on rows of the attacker's own: the same rules, other draws, as many rows at a time as were sent."""

import pytest
import torch
from compare import expect_close, expect_same
from defense_cases import build

from fedpriv.algebra.low_rank import compress, recover
from fedpriv.attacks.observation import Observation
from fedpriv.federation.defense import DefensePipeline, Sender
from fedpriv.sources.rehearsal import changes_rows, changes_weights, rehearsed, rehearsed_weights
from fedpriv.wire.payloads import (
    AngleMatrix,
    Classifier,
    Entangled,
    LowRankModel,
    Model,
    Prototypes,
    Representations,
    SampleCount,
)

LABELS = torch.arange(6).repeat_interleave(2)
COUNTS = torch.full((12,), 3)
WIDTH = 32
SEED = 0


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sent(*texts, kind="representation", counts=None, number=12):
    """The defenses, what a client uploads behind them, and its own rows."""
    rows, pipeline = draw(12, WIDTH), DefensePipeline(build(*texts))
    held = Representations(rows, LABELS) if kind == "representation" else Prototypes(rows, torch.arange(12), counts)
    sender = Sender(3, 1, 12, torch.arange(12).repeat_interleave(number), (), 10)
    return pipeline, Observation(3, 1, pipeline.upload((held,), sender, SEED), ()), rows


def rehearse(*texts, kind="representation", **given):
    pipeline, seen, rows = sent(*texts, kind=kind, **given)
    return rehearsed(pipeline, seen, kind, 12, 10), seen.upload[0].features, rows


@pytest.mark.parametrize("kind", ["representation", "prototype"])
@pytest.mark.parametrize(
    "text", ["clip:bound=2", "prune:keep=0.3", "diagonal:blocks=4", "diagonal:blocks=4,schedule=fixed"]
)
def test_rules_without_draws_do_to_the_clients_rows_what_they_did(text, kind):
    found, uploaded, rows = rehearse(text, kind=kind)
    expect_close(found(rows, 7), uploaded)


@pytest.mark.parametrize("text", ["noise:scale=0.5", "quantise:bits=3", "dp-noise:noise_multiplier=0.1,bound=100"])
def test_draws_are_the_attackers_own_and_of_the_right_size(text):
    found, uploaded, rows = rehearse(text)
    one, again, other = found(rows, 7), found(rows, 7), found(rows, 8)
    expect_same(one, again)
    for seed in (SEED, 7):
        assert not torch.allclose(found(rows, seed), uploaded, atol=1e-3)
    assert not torch.allclose(one, other, atol=1e-3)
    own, theirs = (one - rows).square().mean().sqrt(), (uploaded - rows).square().mean().sqrt()
    assert float(own / theirs) == pytest.approx(1, abs=0.2)


def test_classes_that_were_sent_are_held_often_enough_to_be_sent():
    texts = ("count-floor:least=5", "noise:scale=0.1")
    hidden, _, rows = rehearse(*texts, kind="prototype")
    told, _, _ = rehearse(*texts, kind="prototype", counts=torch.full((12,), 12))
    for found in (hidden, told):
        assert found(rows, 0).shape == rows.shape
    assert rehearse(*texts, kind="prototype", counts=COUNTS)[0] is None  # what it says it could not have sent


def test_other_kinds_of_upload_and_none_at_all_are_not_rehearsed():
    pipeline, seen, _ = sent("noise:scale=1")
    assert changes_rows(pipeline, "representation")
    assert not changes_rows(pipeline, "model")
    assert not changes_rows(DefensePipeline(()), "representation")
    assert not changes_rows(DefensePipeline(build("dp-sgd:noise_multiplier=1")), "representation")
    assert rehearsed(pipeline, seen, "prototype", 12, 10) is None
    assert rehearsed(pipeline, Observation(1, 0, (), ()), "representation", 12, 10) is None


WEIGHTS = torch.tensor([0.5, 0.3, 0.2] + [0.0] * 9)


def mixed(*texts):
    """The defenses of a mixture, the mixture as it is sent, and as it was."""
    pipeline, row = DefensePipeline(build(*texts)), draw(WIDTH)
    sender = Sender(3, 1, 12, torch.arange(12).repeat_interleave(12), (), 10)
    return pipeline, Observation(3, 1, pipeline.upload((Entangled(row, WEIGHTS),), sender, SEED), ()), row


@pytest.mark.parametrize("text", ["clip:bound=2", "prune:keep=0.3", "diagonal:blocks=4"])
def test_mixtures_go_through_the_rules_one_by_one(text):
    pipeline, seen, row = mixed(text)
    found = rehearsed(pipeline, seen, "entangled", 12, 10)
    by = found(torch.stack([row, 2 * row]), 7)
    assert by.shape == (2, WIDTH)
    expect_close(by[0], seen.upload[0].feature)
    assert not torch.allclose(by[0], row)


def test_what_stands_before_the_mixing_is_not_done_to_mixtures():
    rows = draw(12, WIDTH)
    sender = Sender(3, 1, 12, LABELS, (), 10)
    for texts, changes in ((("noise:scale=1", "entangle"), False), (("entangle", "clip:bound=0.1"), True)):
        pipeline = DefensePipeline(build(*texts))
        seen = Observation(3, 1, pipeline.upload((Representations(rows, LABELS),), sender, SEED), ())
        assert changes_rows(pipeline, "entangled") == changes
        row = seen.upload[0].feature
        if changes:
            expect_close(rehearsed(pipeline, seen, "entangled", 12, 10)(10 * row[None], 0)[0], row)


STATE = {"body.weight": draw(20, 8, seed=1), "head.bias": draw(4, seed=2)}
BEFORE = {name: torch.zeros_like(value) for name, value in STATE.items()}


def weights_sent(*texts):
    pipeline, sender = DefensePipeline(build(*texts)), Sender(3, 1, 12, LABELS, (Model(BEFORE),), 10)
    message = (Model(STATE), SampleCount(torch.tensor([12])))
    return pipeline, Observation(3, 1, pipeline.upload(message, sender, SEED), (Model(BEFORE),))


@pytest.mark.parametrize("text", ["clip:bound=0.5", "prune:keep=0.2", "sign"])
def test_rules_do_to_a_clients_weights_what_they_did_and_to_others_likewise(text):
    pipeline, seen = weights_sent(text)
    assert changes_weights(pipeline, "model")
    found = rehearsed_weights(pipeline, seen, "model", 12, 10)
    sent = found(STATE, 7)
    for name, value in seen.upload[0].state.items():
        expect_close(sent[name], value)
    other = {name: -2 * value.double() for name, value in STATE.items()}
    assert all(value.dtype == torch.float64 for value in found(other, 7).values())
    if text == "sign":  # of the whole change, tensor by tensor
        expect_close(found(other, 7)["head.bias"], -2 * sent["head.bias"].double())


def test_draws_on_weights_are_the_attackers_own():
    pipeline, seen = weights_sent("noise:scale=0.5")
    found = rehearsed_weights(pipeline, seen, "model", 12, 10)
    one = found(STATE, 7)
    expect_same(one["body.weight"], found(STATE, 7)["body.weight"])
    for seed in (SEED, 7):
        assert not torch.allclose(found(STATE, seed)["body.weight"], seen.upload[0].state["body.weight"], atol=1e-3)


def test_the_weights_of_one_layer_and_a_part_of_them_are_put_in_their_place():
    pipeline = DefensePipeline(build("clip:bound=1"))
    block = AngleMatrix(draw(2, 4, 4))
    seen = Observation(1, 0, (block,), (AngleMatrix(torch.zeros(2, 4, 4)),))
    found = rehearsed_weights(pipeline, seen, "angle-matrix", 12, 10)({"blocks": 3 * block.blocks}, 0)
    expect_close(found["blocks"].norm(), torch.tensor(1.0))
    head = {"weight": draw(3, 4), "bias": torch.zeros(3)}
    told = Observation(1, 0, (Classifier(head),), (Classifier({name: 0 * value for name, value in head.items()}),))
    part = rehearsed_weights(pipeline, told, "classifier", 12, 10)({"bias": torch.ones(3)}, 0)
    expect_close(part["bias"], 1 / torch.sqrt(head["weight"].square().sum() + 3) * torch.ones(3))


@pytest.mark.parametrize("texts", [(), ("quantise",)])
def test_matrices_are_truncated_as_the_clients_were(texts):
    state = {"weight": draw(12, 9, seed=3), "bias": draw(4, seed=4)}
    pipeline, sender = DefensePipeline(build(*texts)), Sender(3, 1, 12, LABELS, (), 10)
    message = (LowRankModel(compress(state, 0.8)),)
    seen = Observation(3, 1, pipeline.upload(message, sender, SEED), message)
    assert changes_weights(pipeline, "low-rank-model")
    found = rehearsed_weights(pipeline, seen, "low-rank-model", 12, 10)
    kept = recover(compress(state, 0.8))
    rank = int(torch.linalg.matrix_rank(kept["weight"]))
    assert 1 < rank < 9
    same, other = found(state, 1), found({"weight": draw(12, 9, seed=5), "bias": state["bias"]}, 1)
    assert same.keys() == state.keys()
    for name, value in kept.items():
        expect_close(same[name], value, atol=0.15 if texts else 1e-5)
    assert torch.allclose(same["weight"], kept["weight"], atol=1e-5) == (not texts)
    assert torch.equal(same["weight"], found(state, 2)["weight"]) == (not texts)
    assert int(torch.linalg.matrix_rank(other["weight"])) == rank


def test_sums_of_weights_and_defenses_of_training_are_not_rehearsed():
    assert not changes_weights(DefensePipeline(build("secure-aggregation")), "low-rank-model")
    assert not changes_weights(DefensePipeline(build("secure-aggregation")), "model")
    assert not changes_weights(DefensePipeline(build("dp-sgd:epsilon=8")), "model")
    _, seen = weights_sent("clip:bound=1")
    assert rehearsed_weights(DefensePipeline(build("clip:bound=1")), seen, "classifier", 12, 10) is None
