"""Likelihood ratios by shadow clients: certain where an update is of the candidates, chance where it is not."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from compare import expect_close
from gradient_cases import clients, knowledge_of, linear_net, noise_images

from fedpriv.attacks.inference.base import Candidates, InferenceProblem
from fedpriv.attacks.inference.likelihood_ratio import LikelihoodRatio, _size, likelihood_ratios
from fedpriv.attacks.inference.shadow_clients import draw_halves, train_shadow_updates
from fedpriv.attacks.inference.update_scores import training_of
from fedpriv.attacks.observation import BatchFacts
from fedpriv.scoring.roc import area
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator
from fedpriv.wire.payloads import SampleCount

EACH = 4
"""Images of a client, and as many others."""


def problem(client=0):
    """A client's step on four of eight images, another's on the other four; the attacker holds sixty more."""
    drawn, labels = noise_images(2 * EACH + 60), torch.tensor([0, 1] * EACH)
    pictures, more = drawn[: 2 * EACH], drawn[2 * EACH :]
    model = linear_net()
    seen = clients(model, pictures, labels, batch_size=EACH, steps=1, rate=0.1)
    known = replace(
        knowledge_of(model, labels, batch_size=EACH),
        public_images=more,
        public_labels=torch.arange(60) % 2,
        batches={0: BatchFacts(EACH, 0.1, 1, (EACH,)), 1: BatchFacts(EACH, 0.1, 1, (EACH,))},
    )
    known = replace(known, card=replace(known.card, attacker_data="same_domain"))
    return InferenceProblem((seen[client],), known, "model", {client: Candidates(client, pictures, labels)})


MEMBER = np.arange(2 * EACH) < EACH


def test_members_of_a_step_are_found_and_those_of_another_client_are_not():
    found = LikelihoodRatio(shadows=16)(problem())
    assert area(found.values[0].numpy(), MEMBER) > 0.8
    assert found.source == "16 shadow clients for each client and round"
    found = LikelihoodRatio(shadows=16)(problem(1))
    assert area(found.values[1].numpy(), MEMBER) < 0.2


def ratios(signals, inside):
    """Of the first row, by all others."""
    return likelihood_ratios(signals[:, 0], signals[:, 1:], inside)


def test_ratios_of_normal_signals_tell_members():
    rng = torch.Generator().manual_seed(0)
    inside = torch.rand(32, 400, generator=rng) < 0.5
    member = torch.arange(400) < 200
    held = torch.cat([member[None], inside])
    signals = torch.randn(33, 400, generator=rng, dtype=torch.float64) + 2 * held + torch.randn(400, generator=rng)
    assert area(ratios(signals[None], inside).numpy(), member.numpy()) > 0.9
    nothing = ratios((signals - 2 * held)[None], inside)
    assert abs(area(nothing.numpy(), member.numpy()) - 0.5) < 0.1


def test_shadows_hold_half_of_the_candidates_class_by_class_and_fill_up():
    asked, spare = torch.tensor([0] * 6 + [1] * 4), torch.tensor([0, 1, 2] * 20)
    held = draw_halves(asked, spare, 6, 12, generator(1))
    inside = torch.stack([torch.isin(torch.arange(10), own) for own in held])
    assert inside.sum(0).tolist() == [3] * 10
    for own in held:
        labels = torch.cat([asked, spare])[own]
        assert len(own.unique()) == len(own) == 12
        assert int((asked[own[own < 10]] == 1).sum()) == 2
        assert 2 not in labels  # of a class that no candidate has


def test_an_attacker_without_images_or_facts_is_refused():
    asked = problem()
    few = replace(
        asked.knowledge, public_images=torch.rand(3, 1, 4, 4), public_labels=torch.zeros(3, dtype=torch.int64)
    )
    with pytest.raises(UserError, match="got 3 labelled images"):
        LikelihoodRatio()(replace(asked, knowledge=few))
    with pytest.raises(UserError, match="attacker_data"):
        LikelihoodRatio()(replace(asked, knowledge=replace(few, card=replace(few.card, attacker_data="none"))))
    with pytest.raises(UserError, match="batch facts"):
        LikelihoodRatio()(replace(asked, knowledge=replace(asked.knowledge, batch=None, batches={})))


def test_shadows_take_the_steps_that_a_defense_of_training_computes():
    asked = problem()
    (seen,) = asked.observations
    images, labels = asked.candidates[0].images, asked.candidates[0].labels
    training = training_of(seen, 0, images, asked.knowledge)
    facts, held = BatchFacts(EACH, 0.1, 1, (EACH,)), [torch.arange(EACH)]
    calls = []

    def twice(network, some, answers, rng):
        calls.append((len(some), float(torch.rand(1, generator=rng))))
        (2 * torch.nn.functional.cross_entropy(network(some), answers)).backward()

    (plain,) = train_shadow_updates(training, labels, held, facts, (1,))
    (double,) = train_shadow_updates(training, labels, held, facts, (1,), compute=twice)
    (again,) = train_shadow_updates(training, labels, held, facts, (1,), compute=twice)
    for name, before in training.before.items():
        expect_close(double.after[name] - before, 2 * (plain.after[name] - before), atol=1e-6)
        assert torch.equal(double.after[name], again.after[name])
    assert calls[0] == calls[1]
    assert calls[0][0] == EACH


def test_shadows_go_through_the_defenses_of_the_client():
    asked = problem()
    (seen,) = asked.observations
    images, labels = asked.candidates[0].images, asked.candidates[0].labels
    training = training_of(seen, 0, images, asked.knowledge)
    facts, held = BatchFacts(EACH, 0.1, 1, (EACH,)), [torch.arange(EACH)] * 2
    seeds = []

    def defend(weights, seed):
        seeds.append(seed)
        return {name: value / 2 for name, value in weights.items()}

    plain, defended = (train_shadow_updates(training, labels, held, facts, (1,), defend=one) for one in (None, defend))
    for before, after in zip(plain, defended, strict=True):
        for name, value in before.after.items():
            expect_close(after.after[name], value / 2, atol=0)
    assert len(set(seeds)) == 2
    told = {(seen.round, 0): lambda weights, seed: weights}  # what shadows upload is what was computed
    same = replace(asked, knowledge=replace(asked.knowledge, defended_weights=told))
    assert torch.equal(*(LikelihoodRatio(shadows=8)(one).values[0] for one in (asked, same)))


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_shadows_that_diverge_are_left_out(share):
    def diverging(network, some, answers, rng):
        lost = float(torch.rand(1, generator=rng)) < share
        (torch.nn.functional.cross_entropy(network(some), answers) * (torch.nan if lost else 1)).backward()

    asked = problem()
    asked = replace(asked, knowledge=replace(asked.knowledge, gradients={0: diverging}))
    if share == 1:
        with pytest.raises(UserError, match=r"16 of 16 shadow clients diverge in training at learning rate 0\.1"):
            LikelihoodRatio(shadows=16)(asked)
        return
    found = LikelihoodRatio(shadows=16)(asked)
    assert area(found.values[0].numpy(), MEMBER) > 0.8


def test_the_size_of_a_client_is_what_it_says_or_its_first_epoch():
    (seen,) = problem().observations
    facts = BatchFacts(10, 0.1, 6, (10, 10, 3, 10, 10, 3))
    silent = replace(seen, upload=tuple(one for one in seen.upload if one.kind != "sample-count"))
    assert _size(silent, facts) == 23
    assert _size(replace(seen, upload=(*silent.upload, SampleCount(torch.tensor([17])))), facts) == 17
