"""Which attacks count as the answer to a defense: those it names, with the option it asks for, on that kind of upload."""

from types import SimpleNamespace

import pytest

from fedpriv.attacks import ATTACKS, TARGETS
from fedpriv.defenses import DEFENSES
from fedpriv.pages.defense_answers import alternatives
from fedpriv.pages.defense_table import defenses
from fedpriv.util.registry import resolve

ROTATING, FIXED = {"schedule": "rotating"}, {"schedule": "fixed"}


def counted(defense, attack, target, options=None, of=None):
    answer = resolve("defense", defense, DEFENSES).answer
    return any(way.met_by(attack, options or {}) for way in alternatives(answer, target, of or {}))


@pytest.mark.parametrize(
    ("defense", "attack", "target", "options", "counts"),
    [
        ("clip", "dip", "prototype", {"match": "direction"}, True),
        ("clip", "dip", "prototype", {"match": "vector"}, False),
        ("clip", "dip", "logits", {"match": "direction"}, False),
        ("clip", "inverting-gradients", "model", {"match": "all"}, True),
        ("clip", "inverting-gradients", "prototype", {"match": "all"}, False),
        ("clip", "dlg", "model", {"match": "all"}, False),
        ("prune", "joint", "prototype", {"match": "pruned"}, True),
        ("prune", "dlg", "model", {"match": "sent"}, True),
        ("prune", "dlg", "model", {"match": "all"}, False),
        ("prune", "dlg", "kernel", {"match": "sent"}, False),
        ("sign", "dlg", "model", {"match": "sent"}, False),
        ("sign", "dlg", "model", {"match": "signs"}, True),
        ("noise", "average", "prototype", {"match": "vector"}, True),
        ("noise", "average", "entangled", {"match": "vector"}, False),
        ("noise", "dip", "prototype", {"match": "vector"}, False),
        ("noise", "unmix", "entangled", {}, True),
        ("noise", "unmix", "prototype", {}, False),
        ("dp-noise", "unmix", "representation", {}, False),
        ("every", "unmix", "entangled", {}, True),
        ("every", "dip", "prototype", {}, False),
        ("count-floor", "joint", "prototype", {}, True),
        ("count-floor", "joint", "representation", {}, False),
        ("quantise", "average", "prototype", {}, True),
        ("quantise", "dip", "prototype", {}, False),
        ("quantise", "dlg", "model", {}, True),
        ("soteria", "dlg", "model", {"ignore": "head.*"}, True),
        ("soteria", "dlg", "model", {"ignore": ""}, False),
        ("entangle", "unmix", "entangled", {}, True),
        ("entangle", "unmix", "prototype", {}, False),
        ("precode", "linear-layer", "model", {}, True),
        ("hide-labels", "dip", "entangled", {}, False),
        ("dp-sgd", "dlg", "model", {}, False),
    ],
)
def test_what_counts_as_an_answer(defense, attack, target, options, counts):
    assert counted(defense, attack, target, options) is counts


@pytest.mark.parametrize(
    ("attack", "target", "options", "of", "counts"),
    [
        ("average", "prototype", {"zeros": "sent"}, ROTATING, False),
        ("average", "prototype", {"zeros": "missing"}, ROTATING, True),
        ("average", "prototype", {"zeros": "missing"}, FIXED, False),
        ("dip", "prototype", {"match": "nonzero"}, FIXED, True),
        ("dip", "prototype", {"match": "nonzero"}, ROTATING, False),
        ("dip", "entangled", {"match": "nonzero"}, FIXED, False),
        ("angle-update", "angle-matrix", {}, ROTATING, True),
    ],
)
def test_an_answer_may_be_about_some_points_of_a_defense(attack, target, options, of, counts):
    assert counted("diagonal", attack, target, options, of) is counts


@pytest.mark.parametrize("name", sorted(DEFENSES))
def test_an_answer_names_an_attack_on_some_upload_or_says_that_there_is_none(name):
    answer = resolve("defense", name, DEFENSES).answer
    kinds = {kind for kinds in TARGETS.values() for kind in kinds}
    every = {kind: [w for of in (ROTATING, FIXED) for w in alternatives(answer, kind, of)] for kind in kinds}
    assert any(every.values()) is not answer.startswith("not evaluated"), answer
    read = {attack for ways in every.values() for way in ways for attack in way.attacks}
    named = set(answer.replace(",", " ").replace(":", " ").replace(";", " ").split()) & set(ATTACKS)
    assert read == named, answer
    for kind, ways in every.items():  # what an answer names for a kind of upload can be run on it
        assert all(any(kind in TARGETS[attack] for attack in way.attacks) for way in ways if way.attacks), (
            kind,
            answer,
        )


def ran(method, target, attack, *chosen, options=None, **more):
    run = {"defenses": [{"name": name, "options": own} for name, own in chosen]}
    return SimpleNamespace(
        about={"method": method, "target": target, "attack": attack, "options": options or {}, "run": run} | more
    )


NOISE = ("noise", {"scale": 0.3, "kind": "gaussian", "unit": "rms"})


def test_an_attack_on_one_kind_of_upload_is_none_on_another():
    rows = defenses(
        [
            ran("fedproto", "prototype", "dip", NOISE),
            ran("fedgh", "prototype", "dip", NOISE),
            ran("fedre", "entangled", "unmix", NOISE),
            ran("fedre", "entangled", "dip", NOISE),
            ran("fedre", "entangled", "unmix"),
        ]
    )
    assert [(row.name, row.target, row.guards) for row in rows] == [
        ("noise scale=0.3", "prototype", ("fedproto", "fedgh")),
        ("noise scale=0.3", "entangled", ("fedre",)),
    ]
    assert rows[0].evaluated == "not evaluated here: average was not run on these uploads"
    assert rows[1].evaluated == "run here: unmix"


def test_an_attack_on_one_method_is_none_on_another():
    rows = defenses([ran("fedproto", "prototype", "average", NOISE), ran("fedgh", "prototype", "dip", NOISE)])
    assert [row.evaluated for row in rows] == ["run here: average on fedproto; none on fedgh"]


def test_kinds_without_an_adapted_attack_and_chains_are_told():
    labels = {"method": "My models", "defense": "Weak"}
    (logits,) = defenses([ran("fd", "logits", "class-inversion", NOISE, labels=labels)])
    assert logits.name == "Weak (noise scale=0.3)"
    assert logits.guards == ("My models (fd)",)
    assert logits.evaluated == "not evaluated: no attack of this package is adapted to it on logits uploads"
    rows = defenses([ran("fd", "model", "dlg", ("quantise", {}), NOISE, labels=labels)])
    assert [row.name for row in rows] == ["quantise", "noise scale=0.3"]
    assert rows[0].evaluated == "run here as it is: dlg"
