"""Positive controls and the truth's own objective: planted uploads by hand, who finds them, and who does not."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from eval_cases import ABOUT, but, reconstruction
from gradient_cases import clients, images_and_labels, sigmoid_net
from looped import each
from torch import nn
from upload_cases import AUXILIARY, CLASSES, IMAGES, NETWORK, attack, smooth

import fedpriv
from fedpriv.attacks import attacks_for
from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.inference.base import Inference, Scores
from fedpriv.attacks.observation import Knowledge, Observation, TargetId, ThreatModel
from fedpriv.datasets.types import Samples
from fedpriv.eval.inference_case import InferenceCase
from fedpriv.eval.records import Provenance
from fedpriv.eval.score import planted_advantage
from fedpriv.pipeline.execute import in_place
from fedpriv.pipeline.plan import first_look, granted, plan_of, protocol_plan, with_settings
from fedpriv.pipeline.planted import Planting, planted_images, planted_membership
from fedpriv.sources.case import Case
from fedpriv.sources.truth import Holdings, Pool, Truth
from fedpriv.uploads.payloads import Entangled, Prototypes, Representations

CPU, CLIENTS, CLASSES_OF = torch.device("cpu"), range(6), torch.tensor([2, 0])
POOL = Pool.divided(smooth(240, 8), torch.arange(240) % 3, 0)
POOLS = dict.fromkeys(CLIENTS, POOL)
WEIGHTS = torch.tensor([0.25, 0.0, 0.75])
UPLOADS = {
    "representation": Representations(torch.zeros(3, 64), torch.tensor([1, 1, 0])),
    "prototype": Prototypes(torch.zeros(2, 64), CLASSES_OF, torch.tensor([40, 7])),
    "entangled": Entangled(torch.zeros(64), WEIGHTS),
}
EXTRACTOR = nn.Sequential(nn.Flatten(), nn.Linear(64, 64))
PROVENANCE = Provenance(**{name: value for name, value in ABOUT if name in Provenance.model_fields})


def known(network, **grants):
    return Knowledge(ThreatModel(**grants), (1, 8, 8), 3, extractors=dict.fromkeys(CLIENTS, network))


def seen(kind):
    return tuple(Observation(1, client, (UPLOADS[kind],), ()) for client in CLIENTS)


@each("kind", UPLOADS)
def test_a_planted_upload_is_made_of_decoys_by_hand(kind):
    planting = Planting(POOLS, 0)
    (sent,) = planting.upload(seen(kind)[0], known(EXTRACTOR)).upload

    def values(*rows):
        decoys = [POOL.decoys[planting.decoy(0, *row)] for row in rows]
        assert len({decoy.numpy().tobytes() for decoy in decoys}) == len(rows)
        return EXTRACTOR(torch.stack(decoys)).detach()

    if kind == "representation":
        assert torch.allclose(sent.features, values((1, 0), (1, 1), (0, 0)), atol=1e-6)
    elif kind == "prototype":
        assert torch.allclose(sent.features, values((2,), (0,)), atol=1e-6)
        assert sent.counts.tolist() == [1, 1]
    else:
        assert torch.allclose(sent.feature, torch.tensor([0.25, 0.75]) @ values((0,), (2,)), atol=1e-6)
        assert torch.equal(sent.label_encoding, WEIGHTS)
    for label in (0, 1, 2):
        assert POOL.decoy_labels[planting.decoy(0, label)] == label


def test_what_cannot_be_planted_is_not():
    observation = seen("prototype")[0]
    assert Planting(POOLS, 0).upload(observation, known(nn.Sequential(nn.Flatten(), nn.Linear(64, 5)))) is None
    assert Planting({}, 0).upload(observation, known(EXTRACTOR)) is None
    owned = POOL.decoys[POOL.decoy_labels == 2]  # an attacker who owns all decoys of a class knows the answer
    assert Planting(POOLS, 0, public=owned).upload(observation, known(EXTRACTOR)) is None
    some = Planting(POOLS, 0, public=owned[:-1])
    assert torch.equal(POOL.decoys[some.decoy(0, 2)], owned[-1])


# ---------------------------------------------------------------- who is found able


@dataclass(frozen=True, kw_only=True)
class Nearest(Inference):
    """Scores candidates by their distance from the uploaded mean of their class, or by nothing."""

    looks: bool = True

    name: ClassVar[str] = "nearest"
    asks: ClassVar = "images"

    def run(self, problem):
        values = {}
        for client, one in problem.candidates.items():
            sent = problem.uploads[client].upload[0]
            rows = sent.features[(one.labels[:, None] == sent.classes).long().argmax(1)]
            blind = torch.rand(len(one.labels), generator=torch.Generator().manual_seed(client))
            values[client] = (-(one.images.flatten(1) - rows).norm(dim=1) if self.looks else blind).double()
        return Scores(self.ask(problem), values)


@each("looks, found", [(True, True), (False, False)])
def test_planted_members_of_an_identity_are_all_found_and_by_luck_none(looks, found):
    case = Case(seen("prototype"), None, known(nn.Flatten(), extractor="shadow"), ())
    nobody = Holdings(Samples(POOL.guesses, POOL.guess_labels), {})
    planted = planted_membership(Nearest(looks=looks), InferenceCase(case, nobody, "prototype", 0), POOLS, PROVENANCE)
    assert (planted.n_clients, planted.is_found) == (6, found)
    assert planted.mean == pytest.approx(0.5) if looks else planted.mean < 0.3


def test_planted_images_are_found_by_who_inverts_and_not_by_who_guesses():
    targets = tuple(TargetId(1, client, row, int(CLASSES_OF[row])) for client in CLIENTS for row in (0, 1))
    problem = AttackProblem(seen("prototype"), known(nn.Flatten()), targets, 0, CPU, None)
    case = Case(problem.observations, None, problem.knowledge, targets)
    planted, truths = planted_images(
        problem, case, POOLS, but(ABOUT, groups={client: client // 2 for client in CLIENTS})
    )
    assert [(one.client, one.label) for one in planted.targets] == [(0, 2), (2, 2), (4, 2)]  # one a unit
    rows = [planted.observations[one.client].upload[0].features[one.index] for one in planted.targets]
    read = torch.stack(rows).reshape(-1, 1, 1, 8, 8)
    assert torch.equal(read[:, 0], torch.stack([truth.members[0] for truth in truths]))
    for images, found in ((read, True), (torch.rand(read.shape, generator=torch.Generator().manual_seed(0)), False)):
        made = reconstruction(images, per_client=1)
        assert planted_advantage(made, truths, but(ABOUT, groups={})).is_found is found


# ---------------------------------------------------------------- the truth's own objective


def test_the_truth_of_a_representation_and_of_one_step_has_the_objective_zero():
    uploads = [Representations(NETWORK(own).detach(), CLASSES) for own in IMAGES]
    found = attack(uploads, target="representation", attacks="dip", iterations=2).records["dip"]
    assert [row.fit.truth for row in found.targets] == pytest.approx([0.0] * len(found.targets), abs=1e-9)
    assert all(row.fit.attack > 1e-4 and not row.reached for row in found.targets)

    images, labels = images_and_labels(2)
    model = sigmoid_net()
    updates = clients(model, images, labels)
    before = updates[0].broadcast[0].state
    found = fedpriv.attack_uploads(
        [one.upload[0].state for one in updates],
        images=list(images.split(1)),
        labels=list(labels.split(1)),
        target="model",
        attacks="dlg",
        iterations=1,
        auxiliary=AUXILIARY,
        model=model,
        broadcasts=before,
        batch=fedpriv.BatchFacts(1, 0.5, 1),
    )
    fits = [row.fit for row in found.records["dlg"].targets]
    assert [fit.truth for fit in fits] == pytest.approx([0.0, 0.0], abs=1e-6)


def test_true_images_stand_in_the_places_of_guesses_of_their_class():
    images, labels = smooth(4, 1), torch.tensor([1, 0, 1, 2])
    truth = Truth.equal(images, labels, POOL)
    assert torch.equal(in_place(truth, torch.tensor([2, 1, 0, 1])), images[[3, 0, 1, 2]])
    assert in_place(truth, torch.tensor([7, 1, 0, 1])) is None
    assert in_place(truth, torch.tensor([1, 0])) is None


def test_uploads_without_an_extractor_have_no_positive_control():
    uploads = [Prototypes(NETWORK(own).detach(), CLASSES) for own in IMAGES]
    public = {"public": smooth(60, 5), "public_labels": torch.arange(60) % 3}
    shadow = {"knowledge": ["extractor=shadow"], "iterations": 1}
    found = attack(uploads, extractor=None, attacks="decoder", **shadow, attack_option=["refine_steps=1"], **public)
    assert found.records["decoder"].planted is None


# ---------------------------------------------------------------- plans


@each("target", ["prototype", "entangled", "representation", "logits", "model", "extractor", "classifier", "kernel"])
def test_no_attack_of_a_first_look_runs_twice_on_the_same_knowledge(target):
    card = ThreatModel(attacker_data="same_domain")
    chosen, _ = granted(with_settings(first_look(target), {}), (), target, card, None)
    plan = plan_of(target, chosen, card, {}, seed=0)
    second = protocol_plan(plan)
    assert set(chosen) <= set(attacks_for(target))
    if second is None:
        assert target == "kernel"
        return
    assert not set(second.results()) & set(plan.results())  # each in its own folder
    assert all(made.card(second.card, target) != made.card(plan.card, target) for made in second.inferences.values())
    assert len(second.attacks) <= 1
    assert second.card != plan.card
    assert protocol_plan(second) is None
