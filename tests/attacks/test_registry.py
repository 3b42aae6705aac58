"""The table of attacks: what it promises is what the classes do."""

import dataclasses
import subprocess
import sys
import typing

import pytest
from annotated_types import Ge, Gt

from fedpriv.attacks import ATTACKS, READ, TARGET_NAMES, TARGETS, attacks_for
from fedpriv.methods import DEFAULT_METHOD, METHODS
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError
from fedpriv.util.registry import resolve
from fedpriv.wire.payloads import KINDS


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


def loose(hint, name):
    """Names of numbers within a type that any value would fit."""
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        return [bad for spec in dataclasses.fields(hint) for bad in loose(hints[spec.name], f"{name}.{spec.name}")]
    if hint in (int, float):
        return [name]
    if typing.get_origin(hint) is typing.Annotated:
        inner, *bounds = typing.get_args(hint)
        bounded = inner in (int, float) and any(isinstance(bound, (Ge, Gt)) for bound in bounds)
        return [] if bounded else loose(inner, name)
    if typing.get_origin(hint) is typing.Literal:
        return []
    return [bad for inner in typing.get_args(hint) for bad in loose(inner, name)]


@pytest.mark.parametrize("name", ATTACKS)
def test_every_number_has_a_least_value(name):
    assert not loose(resolve("attack", name, ATTACKS), name)


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("dip", {"average": 1}, "average: input should be less than 1, got 1"),
        ("joint", {"average": -3}, "average: input should be greater than or equal to 0, got -3"),
        ("dlg", {"spread": 0}, "spread: input should be greater than 0, got 0"),
        ("dlg", {"stop_below": -1}, "stop_below: input should be greater than or equal to 0"),
        ("class-inversion", {"tolerance": -0.1}, "tolerance: input should be greater than or equal to 0"),
        ("class-inversion", {"pixels": {"jitter_until": 2}}, "jitter_until: input should be less than or equal to 1"),
        ("dip", {"generator": {"kernel": 4}}, "kernel: predicate 'odd' failed, got 4"),
    ],
)
def test_values_that_make_no_sense_are_refused(name, options, complaint):
    with pytest.raises(UserError, match=complaint):
        parse(resolve("attack", name, ATTACKS), options, name)


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
