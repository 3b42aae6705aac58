"""Membership: what assumed networks tell without the upload, by hand; what is claimed beside it, and of trained weights."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from eval_cases import ABOUT, answers
from gradient_cases import clients, knowledge_of, linear_net, noise_images
from torch import nn
from torch.nn.functional import cross_entropy
from worlds import World

from fedpriv.attacks.inference.base import Candidates, Inference, InferenceProblem, Moment, Scores
from fedpriv.attacks.inference.membership import MembershipInference
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.datasets.types import Samples
from fedpriv.eval.inference_case import InferenceCase
from fedpriv.eval.membership import baseline_scores, evaluate
from fedpriv.eval.records import Provenance
from fedpriv.sources.case import Case
from fedpriv.sources.source import shuffle
from fedpriv.sources.truth import Holdings
from fedpriv.uploads.payloads import Prototypes

IMAGES, LABELS = noise_images(6, 0), torch.arange(6) % 2
ASKED = {0: Candidates(0, IMAGES, LABELS)}
SEEN = (Observation(1, 0, (Prototypes(torch.zeros(2, 64), torch.arange(2)),), ()),)
PROVENANCE = Provenance(**{name: value for name, value in ABOUT if name in Provenance.model_fields})


def of_membership(record):
    return next(one for one in answers(record) if one.endpoint == "membership")


def known(**changes):
    return Knowledge(ThreatModel(), (1, 8, 8), 10, extractors={0: nn.Flatten()}, **changes)


def problem(kind, knowledge, seen=SEEN):
    return InferenceProblem(seen, knowledge, kind, ASKED)


def test_the_extractor_alone_by_hand():
    flat, own = IMAGES.flatten(1).double(), noise_images(4, 1)
    for public, labels in ((None, None), (own, torch.tensor([1, 0, 0, 1]))):
        name, found = baseline_scores(problem("prototype", known(public_images=public, public_labels=labels)))
        images, classes = (flat, LABELS) if public is None else (own.flatten(1).double(), labels)
        means = torch.stack([images[classes == label].mean(0) for label in (0, 1)])
        distances = ((flat[:, None] - means) ** 2).sum(2)
        wanted = -cross_entropy(-distances / distances.mean(), LABELS, reduction="none")
        assert name == "assumed_extractor"
        assert torch.allclose(found[0], wanted)


def test_the_losses_of_assumed_models_by_hand():
    weight, bias = torch.randn(10, 64, generator=torch.Generator().manual_seed(2)), torch.zeros(10)
    name, found = baseline_scores(problem("logits", known(heads={0: (weight, bias)})))
    wanted = -cross_entropy(IMAGES.flatten(1).double() @ weight.T.double(), LABELS, reduction="none")
    assert name == "assumed_model"
    assert torch.allclose(found[0], wanted)

    model = linear_net()
    (first,) = clients(model, IMAGES, LABELS, batch_size=6, rate=0.5)[:1]
    after = {key: value + 1 for key, value in model.state_dict().items()}
    later = replace(first, round=first.round + 1, broadcast=(type(first.broadcast[0])(after),))
    granted = knowledge_of(model, LABELS, batch_size=6)
    wanted = -cross_entropy(model(IMAGES), LABELS, reduction="none").detach().double()
    asked = replace(problem("model", granted, (later,)), earlier=(Moment((first,), granted),))
    name, found = baseline_scores(asked)
    assert name == "broadcast_model"
    assert torch.allclose(found[0], wanted, atol=1e-5)  # what was broadcast before the first of the attacked rounds
    assert baseline_scores(replace(asked, earlier=(Moment((replace(first, continued=True),), granted),))) == ("", {})


@dataclass(frozen=True, kw_only=True)
class Shown(Inference):
    """Scores candidates by a rule that never looks at an upload: the client's look, or the baseline itself."""

    world: World
    by: str = "look"

    name: ClassVar[str] = "shown"
    asks: ClassVar = "images"

    def run(self, problem):
        if self.by == "baseline":
            return Scores(self.ask(problem), baseline_scores(problem)[1])
        alike = {}
        for client, one in problem.candidates.items():
            own = 0.5 + self.world.look * float(self.world.looks[client, 0])
            alike[client] = -(one.images.double().mean((1, 2, 3)) - own).abs()
        return Scores(self.ask(problem), alike)


def test_a_clients_look_is_not_claimed_as_membership():
    world = World(3, 12, look=0.1)
    evidence = world.evidence(ThreatModel())
    record = evaluate(Shown(world=world), InferenceCase(evidence, world.held, "prototype", 3), PROVENANCE)
    assert record.nonmembers == "held_out"
    assert record.n_candidates == 2 * 12 * 24
    assert abs(record.auc.value - 0.5) < 0.06
    assert of_membership(record).verdict != "leak"
    truth = replace(world.held, held_out={})
    evidence = replace(evidence, shuffled=None)  # an upload gives the look away, another client's does not
    case = InferenceCase(evidence, truth, "prototype", 3)
    others = evaluate(Shown(world=world), case, PROVENANCE)
    assert others.auc.value > 0.7  # the look tells whose image it is
    assert of_membership(others.model_copy(update={"nonmembers": "held_out"})).verdict == "leak"
    assert of_membership(others).why == "no held-out images"


def test_what_the_assumed_networks_tell_is_no_leak_of_the_upload():
    world = World(4, 12)
    held, members = world.held, world.held.samples.images[: world.counts.sum()]
    knowing = {k: lambda images: world.represent((images + near(images, members)) / 2) for k in range(12)}
    evidence = world.evidence(ThreatModel())
    evidence = replace(evidence, shuffled=None, knowledge=replace(evidence.knowledge, extractors=knowing))
    record = evaluate(Shown(world=world, by="baseline"), InferenceCase(evidence, held, "prototype", 0), PROVENANCE)
    assert record.baseline.name == record.comparisons[0].against == "assumed_extractor"
    assert record.baseline.auc.value == record.auc.value > 0.6
    assert record.comparisons[0].mean == pytest.approx(0, abs=1e-12)
    answer = of_membership(record)
    assert answer.verdict != "leak"
    assert answer.baseline == pytest.approx(record.auc.value)


def near(images, members):
    """The class pattern of members, and grey of all others: a network that has learned its members by heart."""
    known = torch.cdist(images.flatten(1), members.flatten(1)).min(1).values < 1e-5
    return torch.where(known[:, None, None, None], images.round(), torch.full_like(images, 0.5))


# ---------------------------------------------------------------- of weights

CLIENTS, EACH, ROUNDS = 6, 12, 2


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
