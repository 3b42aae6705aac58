"""Softmax vectors told from logits, also where a defense rounded, thinned out or disturbed them."""

import pytest
import torch
from compare import expect_close, expect_same
from defense_cases import build

from fedpriv.attacks.inputs.outputs import as_distributions, log_outputs
from fedpriv.federation.defense import DefensePipeline, Sender
from fedpriv.wire.payloads import ClassLogits, PublicLogits

CLASSES = 10


def logits(seed, scale=3.0):
    return scale * torch.randn(8, CLASSES, generator=torch.Generator().manual_seed(seed))


def behind(text, rows):
    pipeline = DefensePipeline(build(text))
    sent = pipeline.upload((ClassLogits(rows, torch.arange(8)),), Sender(1, 0, CLASSES, torch.arange(8), (), 1), 0)
    return sent[0].values


@pytest.mark.parametrize("text", ["quantise", "noise:scale=0.1", "prune:keep=0.3"])
@pytest.mark.parametrize("seed", range(5))
def test_softmax_vectors_are_told_from_logits_behind_defenses(text, seed):
    raw = logits(seed)
    shares = behind(text, raw.softmax(1))
    found = as_distributions(shares)
    assert found is not None
    expect_close(found.sum(1), torch.ones(8))
    assert bool((found >= 0).all())
    assert float((found - raw.softmax(1)).norm()) <= float((shares - raw.softmax(1)).norm()) + 1e-6
    assert as_distributions(behind(text, raw)) is None


@pytest.mark.parametrize("scale", [0.01, 0.1, 0.3, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("seed", range(5))
def test_logits_of_any_size_are_none(scale, seed):
    peaked = torch.eye(CLASSES)[:8] - 1 / CLASSES  # where training has begun
    for rows in (logits(seed, scale), scale * peaked, scale * peaked + 0.1 * logits(seed, scale)):
        assert as_distributions(rows - rows.mean(1, keepdim=True)) is None


def test_distributions_stay_as_they_are():
    rows = logits(0).softmax(1)
    assert as_distributions(rows) is rows
    assert as_distributions(rows[:0]) is not None
    assert as_distributions(torch.full((2, 3), torch.nan)) is None


def test_what_was_rounded_away_has_no_logarithm_of_nothing():
    shares = torch.tensor([[0.98, 0.01, 0.01, 0.0]])
    exact = log_outputs(PublicLogits(shares, torch.tensor([0])))
    expect_close(exact[0, 0], torch.tensor(0.98).double().log())
    assert float(exact.min()) < -20
    rounded = log_outputs(PublicLogits(shares + torch.tensor([[0.0, 0.02, -0.01, 0.01]]), torch.tensor([0])))
    assert float(rounded.min()) > -6
    expect_same(rounded.argmax(1), torch.tensor([0]))
