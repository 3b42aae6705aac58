"""Defenses on rows of the attacker's own: the same rules, other draws, as many rows at a time as were sent."""

import pytest
import torch
from compare import expect_close, expect_same
from defense_cases import build

from fedpriv.attacks.observation import Observation
from fedpriv.evidence.rehearsal import changes_rows, rehearsed
from fedpriv.federation.defense import DefensePipeline, Sender
from fedpriv.wire.payloads import Prototypes, Representations

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


def test_rows_go_in_messages_as_large_as_the_one_that_was_sent():
    """A clip of the whole upload shortens rows by how many there are: 12 at a time, the last message filled up."""
    found, _, rows = rehearse("dp-noise:noise_multiplier=1e-6,bound=1")
    many = torch.cat([rows, 2 * rows, rows[:5]])
    by = found(many, 0)
    assert by.shape == many.shape
    expect_close(by[:12].norm(), torch.tensor(1.0), atol=1e-3)
    expect_close(by[12:24], by[:12], atol=1e-3)
    filled = rows[:5][torch.arange(12) % 5]
    expect_close(by[24:], filled[:5] / filled.norm(), atol=1e-3)


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
    assert not changes_rows(pipeline, "entangled")
    assert not changes_rows(DefensePipeline(()), "representation")
    assert not changes_rows(DefensePipeline(build("dp-sgd:noise_multiplier=1")), "representation")
    assert rehearsed(pipeline, seen, "prototype", 12, 10) is None
    assert rehearsed(pipeline, Observation(1, 0, (), ()), "representation", 12, 10) is None
