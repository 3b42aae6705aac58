"""Attacks on outputs on public samples: they find what is there, and nothing where there is nothing."""

import math

import numpy as np
import pytest
import torch
from compare import expect_close
from torch.nn.functional import cosine_similarity

from fedpriv.attacks.inference.base import Candidates, InferenceProblem
from fedpriv.attacks.inference.membership import MembershipInference
from fedpriv.attacks.inference.property import PropertyInference, public_logit_shares
from fedpriv.attacks.inversion.paired_logits import PairedLogits
from fedpriv.attacks.observation import Knowledge, Observation, TargetId, ThreatModel
from fedpriv.eval.inference_case import area
from fedpriv.eval.metrics import psnr_of_mse
from fedpriv.sources.source import shuffle
from fedpriv.uploads.payloads import Kernel, PublicLogits
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator

C = 4
CARD = ThreatModel(extractor="none", attacker_data="same_domain")


def seen(client, values, samples=None, round_=1):
    """An upload of outputs on the first public samples, or others."""
    places = torch.arange(len(values)) if samples is None else samples
    return Observation(round_, client, (PublicLogits(values.float(), places),), ())


def knowing(images, n_classes=C, card=CARD):
    shape = tuple(images.shape[1:])
    return Knowledge(card, shape, n_classes, public_images=images, public_labels=torch.zeros(len(images)).long())


def bayes_clients(number, *, tell=True, softmax=True, noise=0.3):
    """Clients that classify one public set optimally for their own class shares, or for even ones; and their counts."""
    rng = generator(3, "bayes")
    centres, points = torch.randn(C, 5, generator=rng), 2 * torch.randn(60, 5, generator=rng)
    fit = -torch.cdist(points, centres).square() / 2
    uploads, counts = {}, []
    for client in range(number):
        held = torch.randint(0, 40, (C,), generator=rng) * (torch.rand(C, generator=rng) < 0.7)
        held[int(torch.randint(C, (1,), generator=rng))] += 5
        shares = (held + 0.5) / (held + 0.5).sum() if tell else torch.full((C,), 1 / C)
        logits = fit + shares.log() + noise * torch.randn(60, C, generator=rng)
        uploads[client] = seen(client, logits.softmax(1) if softmax else logits)
        counts.append(held)
    return uploads, torch.stack(counts)


def asked_of(uploads, question):
    attack = PropertyInference(question=question)
    knowledge = Knowledge(ThreatModel(extractor="none"), (1, 2, 2), C)
    return attack, attack(InferenceProblem(tuple(uploads.values()), knowledge, "public-logits"))


def area_of(number, question, **making):
    uploads, counts = bayes_clients(number, **making)
    attack, found = asked_of(uploads, question)
    answers = torch.stack([attack.answers(own, question) for own in counts])
    return area(torch.stack([found.values[k] for k in uploads]).flatten().numpy(), answers.flatten().numpy())


@pytest.mark.parametrize("softmax", [True, False])
@pytest.mark.parametrize(("question", "least"), [("holds", 0.95), ("majority", 0.85)])
def test_positive_control_outputs_tell_the_classes_of_a_client(question, least, softmax):
    assert area_of(20, question, softmax=softmax) > least


@pytest.mark.parametrize("question", ["holds", "majority"])
def test_negative_control_outputs_that_do_not_depend_on_shares_tell_nothing(question):
    assert 0.4 < area_of(60, question, tell=False) < 0.6


def test_without_noise_the_bias_is_the_logarithm_of_shares_beside_the_others():
    uploads, counts = bayes_clients(3, noise=0.0)
    shares = (counts + 0.5) / (counts + 0.5).sum(1, keepdim=True)
    logs = shares.double().log()
    for client, found in public_logit_shares(uploads).items():
        others = logs[torch.arange(3) != client].mean(0)
        expected = logs[client] - others
        expect_close(found, expected - expected.mean(), atol=1e-4)


def test_nothing_is_learned_and_what_cannot_be_compared_is_refused():
    uploads, _ = bayes_clients(3)
    attack, found = asked_of(uploads, "holds")
    assert found.source == "the other public outputs of the round"
    assert found.asked.question == "holds"
    assert not attack.requirements_for("public-logits").attacker_data
    with pytest.raises(UserError, match=r"2 client\(s\), so too few public outputs to compare; expected at least 3"):
        asked_of({k: uploads[k] for k in (0, 1)}, "holds")


def membership_world(*, tell, clients=4, per_client=30):
    """Clients with members, public samples near to all of them, and outputs that are sure near to own members or not."""
    rng = generator(5, "members")
    held = torch.rand(clients, per_client, 1, 6, 6, generator=rng)
    labels = torch.randint(C, (clients, per_client), generator=rng)
    public = (held.flatten(0, 1) + 0.02 * torch.randn(clients * per_client, 1, 6, 6, generator=rng)).clamp(0, 1)
    owner = torch.arange(clients).repeat_interleave(per_client)
    observations, candidates, member = [], {}, []
    for client in range(clients):
        logits = torch.randn(len(public), C, generator=rng)
        if tell:
            logits[torch.arange(len(public)), labels.flatten()] += 2.0 + 3.0 * (owner == client)
        observations.append(seen(client, logits))
        other = (client + 1) % clients
        asked = torch.cat([held[client], held[other]]), torch.cat([labels[client], labels[other]])
        candidates[client] = Candidates(client, *asked)
        member.append(torch.arange(2 * per_client) < per_client)
    return tuple(observations), candidates, torch.cat(member).numpy(), knowing(public)


def member_area(observations, candidates, member, knowledge):
    problem = InferenceProblem(observations, knowledge, "public-logits", candidates)
    values = MembershipInference()(problem).values
    return area(np.concatenate([values[client].numpy() for client in candidates]), member)


def test_positive_control_outputs_that_are_sure_near_to_members_give_them_away():
    observations, candidates, member, knowledge = membership_world(tell=True)
    assert member_area(observations, candidates, member, knowledge) > 0.85
    # By another client's upload those of the next client, the non-members here, look like members.
    assert member_area(shuffle(observations), candidates, member, knowledge) < 0.5


def test_negative_control_outputs_that_are_sure_of_nobody_give_nobody_away():
    assert 0.4 < member_area(*membership_world(tell=False)) < 0.6


SIDE = 6


def template_world(*, tell=True, clients=3, number=800):
    """Clients that score public noise by its likeness to private templates, or at random; and the templates."""
    rng = generator(7, "templates")
    public = torch.rand(number, 1, SIDE, SIDE, generator=rng)
    templates = (torch.rand(clients, C, 1, SIDE, SIDE, generator=rng) < 0.5).float()
    observations = []
    for client in range(clients):
        likeness = (public - 0.5).flatten(1) @ (templates[client] - 0.5).flatten(1).T
        logits = 3 * (likeness if tell else torch.randn(number, C, generator=rng))
        observations.append(seen(client, logits))
    return tuple(observations), knowing(public), templates


def inverted(observations, knowledge):
    targets = tuple(TargetId(1, one.client, label, label) for one in observations for label in range(C))
    found = PairedLogits()(observations, knowledge, targets, kind="public-logits", seed=2)
    return found, found.images[:, 0].reshape(len(observations), C, 1, SIDE, SIDE)


def likeness(images, templates):
    return float(cosine_similarity((images - 0.5).flatten(2), (templates - 0.5).flatten(2), dim=2).mean())


def decibels(images, templates):
    return float(psnr_of_mse((images - templates).flatten(2).square().mean(2).double()).mean())


def test_positive_control_templates_that_outputs_depend_on_come_back():
    observations, knowledge, templates = template_world()
    _, images = inverted(observations, knowledge)
    floor = decibels(torch.full_like(templates, 0.5), templates)
    assert floor == pytest.approx(10 * math.log10(4), abs=0.01)
    assert decibels(images, templates) > floor + 1
    assert likeness(images, templates) > 0.6
    _, wrong = inverted(shuffle(observations), knowledge)
    assert likeness(wrong, templates) < 0.2
    assert likeness(wrong, templates[[1, 2, 0]]) > 0.6


def test_negative_control_outputs_at_random_give_the_floor():
    observations, knowledge, templates = template_world(tell=False)
    _, images = inverted(observations, knowledge)
    assert decibels(images, templates) < decibels(torch.full_like(templates, 0.5), templates) + 0.2
    assert abs(likeness(images, templates)) < 0.15


def test_the_query_by_hand():
    query = PairedLogits(alpha=5.0).query(2, C)
    at_class = math.exp(1 / 5) / (C - 1 + math.exp(1 / 5))
    assert query[C:].tolist() == [0, 0, 1, 0]
    expect_close(query[:C], torch.tensor([1, 1, math.exp(1 / 5), 1]) / (C - 1 + math.exp(1 / 5)), atol=1e-6)
    assert float(query[2]) == pytest.approx(at_class, abs=1e-6)
    certain = PairedLogits(alpha=1e-3).query(0, C)[:C]
    assert certain.tolist() == [1, 0, 0, 0]


def test_what_is_missing_is_named():
    observations, knowledge, _ = template_world(number=40)
    one = (TargetId(1, 0, 0, 1),)
    with pytest.raises(UserError, match="no class is named for target 0 of client 0"):
        PairedLogits()(observations, knowledge, (TargetId(1, 0),))
    with pytest.raises(UserError, match="client 0 was alone in its rounds"):
        PairedLogits()(observations[:1], knowledge, one)
    with pytest.raises(UserError, match="saw outputs on 9 public samples; expected at least 16"):
        PairedLogits()(tuple(seen(k, torch.randn(9, C)) for k in range(2)), knowledge, one)
    with pytest.raises(UserError, match="holds kernel; expected outputs on public samples"):
        PairedLogits()(tuple(Observation(1, k, (Kernel(torch.eye(2)),), ()) for k in range(2)), knowledge, one)
