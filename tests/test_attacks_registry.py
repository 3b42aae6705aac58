"""The table of attacks: what it promises is what the classes do."""

import dataclasses
import subprocess
import sys

import pytest

from fedpriv.attacks import ATTACKS, READ, TARGET_NAMES, TARGETS, attacks_for
from fedpriv.config import parse
from fedpriv.errors import UserError
from fedpriv.methods import DEFAULT_METHOD, METHODS
from fedpriv.registry import resolve
from fedpriv.uploads import KINDS


@pytest.mark.parametrize("name", ATTACKS)
def test_the_table_agrees_with_the_classes(name):
    attack = resolve("attack", name, ATTACKS)()
    assert attack.name == name
    assert attack.targets == TARGETS[name]
    assert set(attack.targets) <= set(KINDS)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_budget_is_a_positive_number_of_the_attacks_own(name):
    kind = resolve("attack", name, ATTACKS)
    assert "budget" in vars(kind), "every attack says which field is its budget, or None"
    if kind.budget is None:
        return
    assert kind.budget in {spec.name for spec in dataclasses.fields(kind)}
    assert getattr(parse(kind, {kind.budget: 7}, name), kind.budget) == 7
    for wrong in (0, -1, 1.5):
        with pytest.raises(UserError, match=kind.budget):
            parse(kind, {kind.budget: wrong}, name)


def test_every_attack_has_targets():
    assert set(ATTACKS) == set(TARGETS)


def test_every_kind_is_a_target_once_and_needs_an_attack_or_says_why_not():
    assert len(set(TARGET_NAMES)) == len(TARGET_NAMES)
    assert {kind for kinds in TARGETS.values() for kind in kinds} <= set(TARGET_NAMES) <= set(KINDS)
    for kind in TARGET_NAMES:
        assert bool(attacks_for(kind)) != (kind in READ), kind
        method = resolve("method", DEFAULT_METHOD[kind], METHODS)
        assert kind in method.uploads
    sent = {name for method in METHODS for name in resolve("method", method, METHODS).uploads}
    # One number, and one vector sent once before training: no target of their own.
    assert sent - {"sample-count", "feature-mean"} <= set(TARGET_NAMES)


def test_attacks_are_found_by_target():
    assert attacks_for("representation")[0] == "dip"
    assert "dlg" in attacks_for("model")
    assert attacks_for("no such kind") == ()


def test_the_table_needs_no_torch():
    code = "import sys, fedpriv.attacks as a; a.attacks_for('model'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ATTACKS)
def test_a_list_of_attacks_can_say_what_a_target_is(name):
    from fedpriv.cli.list import _UNITS

    assert getattr(resolve("attack", name, ATTACKS), "unit", None) in _UNITS
