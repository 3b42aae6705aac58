"""What an attack is asked to do: its options, before anything is trained or attacked."""

import re

import pytest
from looped import each

from fedpriv.attacks.observation import ThreatModel
from fedpriv.pipeline.plan import AttackPlan, attack_names, build_attacks, granted, options_by_attack
from fedpriv.util.errors import UserError


def plan(*names, **changes):
    return AttackPlan("entangled", build_attacks(names, {}), ThreatModel(), **changes)


def folders(asked):
    return [job.folder for job in asked.jobs()]


def test_one_job_an_attack_where_nothing_else_is_asked():
    asked = plan("dip", "pixels")
    assert folders(asked) == ["dip", "pixels"]
    assert all(job.control and job.attack == asked.attacks[job.name] for job in asked.jobs())


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


def test_names_fit_the_target():
    assert attack_names("entangled", ["dip", "dip"]) == ("dip",)
    with pytest.raises(UserError, match=r"attacks model .*not entangled"):
        attack_names("entangled", ["dlg"])
