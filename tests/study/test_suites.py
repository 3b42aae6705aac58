"""A suite: its options, what is granted, and the attacks adapted to a defense."""

import json
import re

import pytest
import torch
from looped import each
from torch import nn

import fedpriv
from fedpriv.attacks.observation import ThreatModel
from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.federation.defense import defense_facts
from fedpriv.pipeline.plan import adapted_suite, attack_names, build_attacks, granted, options_by_attack, with_settings
from fedpriv.util.errors import UserError


def adapted(target, *defenses, rounds=10, **changes):
    facts = [defense_facts(made) for made in build_defenses([parse_choice(text) for text in defenses])]
    return adapted_suite(target, attack_names(target, ()), facts, rounds, **changes)


def test_attacks_that_run_only_by_name_join_where_they_answer_a_defense():
    plain = attack_names("prototype", ())
    noisy = adapted("prototype", "noise:scale=1")
    assert noisy.names == (*plain, "all-rounds")
    assert noisy.lines[0].startswith("adapted to noise scale=1.0: all-rounds")
    assert adapted("prototype").names == plain
    assert adapted("prototype").lines == ()


def test_options_adapt_attacks_and_the_users_own_stand_above_them():
    suite = adapted("entangled", "hide-labels")
    assert suite.options == {
        "unmix": {"weights": "hidden"},
        "membership": {"classes": "any"},
        "property": {"encodings": "hidden"},
        "labels": {"encodings": "hidden"},
    }
    made = with_settings(suite.names, {"attack_option": ["unmix.weights=sent"]}, suite.options)
    assert (made["unmix"].weights, made["property"].encodings) == ("sent", "hidden")


def test_answers_fit_the_options_of_the_defense_and_the_first_defense_is_heard_first():
    assert adapted("entangled", "diagonal").options["unmix"] == {"zeros": "missing"}
    assert adapted("representation", "diagonal:schedule=fixed").options["dip"] == {"match": "nonzero"}
    both = adapted("representation", "prune:keep=0.1", "clip:bound=1")
    assert both.options["dip"] == {"match": "pruned"}
    assert both.lines[0].startswith("adapted to prune: all-rounds, dip with match=pruned")
    assert len(both.lines) == 1  # nothing is left for the second to add


def test_what_takes_more_rounds_than_there_are_is_told_of_and_not_run():
    few = adapted("prototype", "noise:scale=1", rounds=1)
    assert few.names == attack_names("prototype", ())
    assert few.lines[0].startswith(
        "not run: all-rounds, which is adapted to noise scale=1.0, takes uploads of 2 rounds"
    )
    bare = adapted("prototype", "noise:scale=1", every_extractor=False)
    assert bare.names == few.names
    assert "all-rounds" in bare.lines[0]
    assert "and the clients' extractors of every one" in bare.lines[0]


def test_uploads_of_ones_own_are_attacked_by_what_is_adapted_to_the_stated_defense():
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Sigmoid())
    images = [torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    classes, auxiliary = torch.arange(3), torch.rand(30, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    sent = [fedpriv.Prototypes(network(own).detach(), classes) for own in images]
    shared = {"extractor": network, "images": images, "labels": [classes, classes], "auxiliary": auxiliary}
    result = fedpriv.attack_uploads(sent, target="prototype", defense="prune:keep=0.5", iterations=2, **shared)
    told = {name: json.loads((result.path / name / "about.json").read_text())["options"] for name in ("dip",)}
    assert {name: own["match"] for name, own in told.items()} == {"dip": "pruned"}
    assert any(line.startswith("adapted to prune keep=0.5: ") for line in result.notices)
    assert any(line.startswith("not run: all-rounds, which is adapted to prune keep=0.5") for line in result.notices)


def test_an_option_reaches_every_attack_that_has_it_and_a_named_one_wins():
    names = ("dip", "pixels", "membership")
    found = options_by_attack(names, ["learning_rate=0.1", "pixels.learning_rate=0.2", "candidates=7"], restarts=2)
    assert found["dip"] == {"learning_rate": 0.1, "restarts": 2}
    assert found["pixels"] == {"learning_rate": 0.2, "restarts": 2}
    assert found["membership"] == {"candidates": 7}
    assert build_attacks(names, found)["membership"].candidates == 7


def test_iterations_are_the_budget_of_each():
    found = options_by_attack(("dip", "membership"), [], iterations=9)
    assert found == {"dip": {"iterations": 9}, "membership": {}}
    assert options_by_attack(("dlg",), [], iterations=9)["dlg"] == {"outer_steps": 9}


@each(
    "names, pairs, more, complaint",
    [
        (("dip", "pixels"), ["learning_rat=1"], {}, "unknown key 'learning_rat'; did you mean 'learning_rate'"),
        (("dip",), ["pixels.patience=3"], {}, "attack 'pixels' does not run here; there are: dip"),
        (("dip",), ["dip=3"], {}, ": expected dip.KEY=VALUE"),
        (("membership",), [], {"iterations": 5}, "iterations: membership takes none"),
        (("dip",), ["iterations=4"], {"iterations": 5}, "attack_option iterations: iterations sets it"),
        (("dlg",), ["dlg.outer_steps=4"], {"iterations": 5}, "attack_option outer_steps: iterations sets it"),
        (("dip", "pixels"), ["pixels.restarts=4"], {"restarts": 2}, "restarts sets it for attack 'pixels'"),
        (("dip",), ["restarts=2"], {"restarts": 2}, "attack_option restarts: restarts sets it for attack 'dip'"),
        (("membership",), [], {"restarts": 2}, "restarts: membership takes none; drop the flag"),
    ],
)
def test_options_that_nobody_has_are_refused(names, pairs, more, complaint):
    with pytest.raises(UserError, match=re.escape(complaint)):
        options_by_attack(names, pairs, **more)


def test_a_named_attack_without_its_grant_is_refused_and_others_are_left_out():
    chosen = build_attacks(("dip", "membership"), {})
    card = ThreatModel(extractor="query")
    kept, lines = granted(chosen, (), "prototype", card, None)
    assert list(kept) == ["membership"]
    assert "attack 'dip' needs extractor=white_box or shadow" in lines[0]
    with pytest.raises(UserError, match="attack 'dip' needs"):
        granted(chosen, ("dip",), "prototype", card, None)
