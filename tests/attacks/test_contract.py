"""Every attack that is registered, from one table: what it declares, that it changes nothing, and says the same twice."""

import dataclasses
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from federations import small, trained_small
from looped import each

from fedpriv.attacks import ATTACKS
from fedpriv.attacks.contract import Attack, AttackProblem, refuse_no_attack
from fedpriv.attacks.features.base import INVERSIONS, RecoverThenInvert
from fedpriv.attacks.inference.base import Candidates, Inference, InferenceProblem
from fedpriv.attacks.observation import Cost, Needs, Reconstruction, ThreatModel
from fedpriv.defenses import parse_choice
from fedpriv.federation.method import LocalTraining
from fedpriv.sources.case import build_case
from fedpriv.sources.run import RunSource
from fedpriv.uploads import PAYLOADS
from fedpriv.util.errors import UserError


@dataclass(frozen=True)
class Case:
    """On what an attack is tried."""

    method: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    card: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    n_targets: int = 2


SUMMED: dict[str, Any] = {"defenses": (parse_choice("secure-aggregation"),)}

CASES = {
    "dip": Case("fedproto", "prototype"),
    "pixels": Case("fedproto", "prototype"),
    "decoder": Case("fedproto", "prototype", {"width": 16}, {"attacker_data": "same_domain"}),
    "unmix": Case("fedre", "entangled", card={"rounds_seen": 2}),
    "all-rounds": Case("fedproto", "prototype", card={"rounds_seen": 2}, config={"keep": (1, 2)}),
    "linear-layer": Case("fedavg", "model"),
    "dlg": Case("fedavg", "model", {"redraws": 0}),
    "inverting-gradients": Case("fedavg", "model"),
    "pooled": Case("fedavg", "model", config=SUMMED, n_targets=3),
    "head-update": Case("lg-fedavg", "classifier"),
    "angle-update": Case("fedral", "angle-matrix"),
    "class-inversion": Case("fd", "logits"),
    "paired-logits": Case("fedmd", "public-logits", {"width": 16}, {"attacker_data": "same_domain"}),
    "membership": Case("fedproto", "prototype"),
    "property": Case(
        "fedproto",
        "prototype",
        {"shadow_clients": 2, "steps": 2},
        {"attacker_data": "same_domain", "extractor": "none"},
    ),
    "labels": Case("fedproto", "prototype"),
}
"""One line an attack; a new one has one here too."""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Return runs of three clients by method and what is special, each trained once."""
    home, made = tmp_path_factory.mktemp("contract"), {}

    def of(method, **special):
        name = repr((method, special))
        if name not in made:
            settings = {"clients": 3, "rounds": 2, "per_class": 12, "public": 40, "models": "small-cnn"}
            settings |= {"capture": "all", "keep": (1, 2)}
            settings["training"] = LocalTraining(learning_rate=0.1, batch_size=1, max_steps=1)
            made[name] = trained_small(home / str(len(made)), small(method, **settings | special))
        return made[name]

    return of


def evidence_for(world, name, **options):
    """Return an attack with little budget, and what a run gives it."""
    case, kind = CASES[name], ATTACKS.load(name)
    little = {kind.budget: 2} if kind.budget else {}
    attack = kind(**case.options | little | options)
    card, source = ThreatModel(**case.card), RunSource(*world(case.method, **case.config), case.kind)
    if kind.result == "scores":
        return attack, build_case(source, attack.card(card, case.kind), n_targets=99, seed=0)
    return attack, build_case(source, card, attack, n_targets=case.n_targets, seed=0)


def problem_for(attack, seen):
    own = {o.client: torch.arange(len(seen.observations)) for o in seen.observations}
    images = torch.rand(len(own), 1, 8, 8, generator=torch.Generator().manual_seed(0))
    candidates = {client: Candidates(client, images, labels) for client, labels in own.items()}
    asked = candidates if attack.asks == "images" else {}
    return InferenceProblem(seen.observations, seen.knowledge, "prototype", asked)


def called(name, attack, seen):
    """Return tensors that an attack makes of evidence, by name."""
    if attack.result == "scores":
        return {str(client): values for client, values in attack(problem_for(attack, seen)).values.items()}
    found = attack(seen.observations, seen.knowledge, seen.targets, kind=CASES[name].kind, seed=1)
    assert found.cost.seconds > 0
    assert found.cost.device == "cpu"
    return {key: getattr(found, key) for key in ("images", "objective", "labels", "converged")}


def tensors_of(seen):
    for one in seen.observations:
        for payload in (*one.upload, *one.broadcast):
            for spec in dataclasses.fields(payload):
                value = getattr(payload, spec.name)
                yield from (value.values() if isinstance(value, dict) else (value,))


def test_every_attack_has_a_line():
    assert set(CASES) == set(ATTACKS)


@each("name", ATTACKS)
def test_what_an_attack_says_of_itself(name):
    kind = ATTACKS.load(name)
    family = Attack if kind.result == "images" else Inference
    refuse_no_attack(name, kind)  # which other packages are held to
    assert kind.name == name
    assert set(kind.targets) <= set(PAYLOADS)
    assert issubclass(kind, family)
    assert kind.__call__ is family.__call__
    assert kind.__dataclass_params__.frozen
    assert all(spec.kw_only for spec in dataclasses.fields(kind))
    assert kind.version >= 1
    assert not kind.summary.endswith((".", "\n"))
    assert isinstance(kind().requirements_for(CASES[name].kind), Needs)
    assert CASES[name].kind in kind.targets


@each("name", ATTACKS)
def test_an_attack_says_the_same_twice_and_leaves_its_evidence_alone(name, world):
    attack, seen = evidence_for(world, name)
    before = [value.clone() for value in tensors_of(seen) if isinstance(value, torch.Tensor)]
    first, again = called(name, attack, seen), called(name, attack, seen)
    assert first.keys() == again.keys()
    for key, values in first.items():
        assert torch.equal(values, again[key]), key
    after = [value for value in tensors_of(seen) if isinstance(value, torch.Tensor)]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


SEARCHED = ("dip", "decoder", "unmix", "head-update", "angle-update")
"""Attacks whose objective is of images and uploads alone."""

WITHOUT = ("pooled",)
"""Attacks whose images say nothing of uploads without the others' images."""


@each("name", [name for name in ATTACKS if ATTACKS.load(name).result == "images"])
def test_any_images_have_an_objective_and_those_of_the_attack_the_one_it_reports(name, world):
    attack, seen = evidence_for(world, name)
    observations = seen.observations
    found = attack(observations, seen.knowledge, seen.targets, kind=CASES[name].kind, seed=1)
    objective = attack.objective(AttackProblem(observations, seen.knowledge, seen.targets, seed=1))
    assert (objective is None) == (name in WITHOUT)
    if objective is None:
        return
    own, other = objective(found.images), objective(torch.rand(found.images.shape))
    assert own.shape == other.shape == (len(seen.targets),)
    assert bool(own.isfinite().all() & other.isfinite().all())
    assert not torch.equal(own, other)
    if name in SEARCHED:
        assert torch.allclose(own, found.objective.amin(1), rtol=1e-3)


@each("name", ATTACKS)
def test_an_attack_refuses_a_card_that_lacks_what_it_says_it_needs(name, world):
    attack, seen = evidence_for(world, name)
    needs, poor = attack.requirements_for(CASES[name].kind), ThreatModel(extractor="none", batch=False)
    if not (needs.extractor or needs.batch or needs.attacker_data):
        needs.refuse(name, poor)  # which it does not
        return
    knowledge = replace(seen.knowledge, card=replace(poor, rounds_seen=needs.min_rounds))
    with pytest.raises(UserError, match=f"attack '{name}' needs"):
        called(name, attack, replace(seen, knowledge=knowledge))


class Blank(Attack):
    """Shows black images; the fields of its result can be replaced."""

    name, summary, targets, unit = "blank", "nothing", ("prototype",), "upload"
    wrong: dict[str, Any] = {}  # noqa: RUF012

    def run(self, problem):
        count = len(problem.targets)
        made = Reconstruction(
            targets=problem.targets,
            images=torch.zeros(count, 1, *problem.knowledge.image_shape),
            objective=torch.zeros(count, 1),
            labels=torch.zeros(count, 1, dtype=torch.int64),
            cost=Cost(seconds=99.0, iterations=3, rows=count),
            converged=torch.ones(count, dtype=torch.bool),
        )
        return replace(made, **self.wrong)


def test_the_call_measures_and_refuses_what_is_no_reconstruction(world):
    _, seen = evidence_for(world, "dip")
    found = Blank()(seen.observations, seen.knowledge, seen.targets)
    assert found.cost.seconds < 99
    assert (found.cost.iterations, found.cost.rows, found.cost.device) == (3, 2, "cpu")
    wrongs = {
        "converged of shape": {"converged": torch.ones(3, dtype=torch.bool)},
        "images of shape": {"images": torch.zeros(2, 1, 1, 4, 4)},
        "not finite": {"images": torch.full((2, 1, 1, 8, 8), torch.nan)},
        "other targets": {"targets": seen.targets[::-1]},
    }
    for complaint, wrong in wrongs.items():
        attack = type("Wrong", (Blank,), {"wrong": wrong})()
        with pytest.raises(UserError, match=f"attack 'blank' returned.*{complaint}"):
            attack(seen.observations, seen.knowledge, seen.targets)
    with pytest.raises(UserError, match="no targets"):
        Blank()(seen.observations, seen.knowledge, ())


@each("inversion", INVERSIONS)
@each("name", [name for name in ATTACKS if issubclass(ATTACKS.load(name), RecoverThenInvert)])
def test_every_recovery_goes_with_every_inversion(name, inversion, world):
    attack, seen = evidence_for(world, name, inversion=inversion)
    if inversion == "decoder":
        with pytest.raises(UserError, match="needs attacker_data"):
            called(name, attack, seen)
        case = CASES[name]
        card = ThreatModel(**case.card, attacker_data="same_domain")
        seen = build_case(RunSource(*world(case.method, **case.config), case.kind), card, attack, n_targets=2, seed=0)
    found = called(name, attack, seen)
    assert len(found["images"]) == len(seen.targets)
