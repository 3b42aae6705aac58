"""Defenses on rows of the attacker's own: the same rules, other draws, as many rows at a time as were sent."""

import pytest
import torch
from compare import expect_close, expect_same
from defense_cases import build

from fedpriv.attacks.observation import Observation
from fedpriv.federation.defense import DefensePipeline, Sender
from fedpriv.sources.rehearsal import changes_rows, changes_uploads, rehearsed, sends_weights
from fedpriv.uploads.payloads import Entangled, Model, Prototypes, Representations, SampleCount

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


def test_weights_are_sent_where_kinds_and_shapes_stay():
    for text in ("clip:bound=0.5", "prune:keep=0.2", "sign", "noise:scale=0.5"):
        pipeline, seen = weights_sent(text)
        assert changes_uploads(pipeline)
        assert sends_weights(pipeline, seen, "model", 12, 10)
        assert not sends_weights(pipeline, seen, "classifier", 12, 10)
    for text in ("secure-aggregation", "dp-sgd:epsilon=8"):
        assert not changes_uploads(DefensePipeline(build(text)))
