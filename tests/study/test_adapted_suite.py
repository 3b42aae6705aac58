"""A suite that nobody named attacks a defense by what is adapted to it."""

import json

import torch
from torch import nn

import fedpriv
from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.federation.defense import defense_facts
from fedpriv.pipeline.plan import adapted_suite, attack_names, with_settings


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
