"""Membership from weights claims nothing of updates of somebody else's images, and finds the images of the clients' own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from eval_cases import ABOUT, answers
from gradient_cases import clients, knowledge_of, linear_net, noise_images
from torch import nn

from fedpriv.attacks.inference.membership import MembershipInference
from fedpriv.attacks.observation import Observation
from fedpriv.datasets.types import Samples
from fedpriv.eval.inference_case import InferenceCase
from fedpriv.eval.membership import evaluate
from fedpriv.eval.records import Provenance
from fedpriv.sources.case import Case
from fedpriv.sources.source import shuffle
from fedpriv.sources.truth import Holdings

CLIENTS, EACH, ROUNDS = 6, 12, 2
PROVENANCE = Provenance(**{name: value for name, value in ABOUT if name in Provenance.model_fields})


def case(seed, *, own, granted=False, net=linear_net):
    """Clients of three classes each, twelve images and a step a round; or uploads of images that nobody is asked about.

    With ``granted`` the attacker has images of its own.
    """
    images = noise_images(4 * CLIENTS * EACH, seed)
    labels = (torch.arange(len(images)) % 3) + torch.arange(len(images)) // EACH % CLIENTS
    model = net()
    used, held = slice(0, CLIENTS * EACH), slice(CLIENTS * EACH, 2 * CLIENTS * EACH)
    if own:
        held = used
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    rounds = []
    for number in range(ROUNDS):
        seen = clients(model, images[used], labels[used], batch_size=EACH, rate=0.1)
        rounds.append(tuple(Observation(number, one.client, one.upload, one.broadcast) for one in seen))
        after = {name: torch.stack([o.upload[0].state[name] for o in seen]).mean(0) for name in before}
        model.load_state_dict(after)
    known = knowledge_of(model, labels, batch_size=EACH)
    if granted:
        known = replace(known, public_images=noise_images(400, seed + 99), public_labels=torch.arange(400) % 8)
    seen = [Case(one, shuffle(one), known, ()) for one in rounds]
    places = np.arange(held.start, held.stop)
    # Nobody's images, and those asked about; what the null's uploads were made of is in neither.
    pool = np.concatenate([places, np.arange(2 * CLIENTS * EACH, len(images))])
    index = {k: np.arange(k * EACH, (k + 1) * EACH) for k in range(CLIENTS)}
    held_out = {k: own + CLIENTS * EACH for k, own in index.items()}  # after the clients' own, in the same order
    truth = Holdings(Samples(images[pool], labels[pool]), index, held_out=held_out)
    return InferenceCase(seen[-1], truth, "model", seed, earlier=tuple(seen[:-1]))


def hidden_net():
    """A fully connected layer of 32 outputs before the one that classifies."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@pytest.mark.parametrize("net", [linear_net, hidden_net])
def test_updates_of_other_images_claim_nothing(net):
    for seed in range(3):
        record = evaluate(MembershipInference(), case(seed, own=False, net=net), PROVENANCE)
        assert answers(record)[0].verdict != "leak"
        assert record.auc.ci95[0] < 0.55


@pytest.mark.parametrize("granted", [False, True])
def test_updates_of_the_clients_images_are_found_out(granted):
    record = evaluate(MembershipInference(), case(0, own=True, granted=granted), PROVENANCE)
    assert answers(record)[0].verdict == "leak"
    assert record.auc.value > 0.9
    span = evaluate(MembershipInference(), case(0, own=True, granted=granted, net=hidden_net), PROVENANCE)
    assert answers(span)[0].verdict == "leak"
    assert span.auc.value > 0.95  # a class whose candidates are members in the main loses what is usual in it
