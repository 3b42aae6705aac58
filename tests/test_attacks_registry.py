"""The table of attacks: what it promises is what the classes do."""

import subprocess
import sys

import pytest

from fedpriv.attacks import ATTACKS, TARGETS, attacks_for
from fedpriv.registry import resolve
from fedpriv.uploads import KINDS


@pytest.mark.parametrize("name", ATTACKS)
def test_the_table_agrees_with_the_classes(name):
    attack = resolve("attack", name, ATTACKS)()
    assert attack.name == name
    assert attack.targets == TARGETS[name]
    assert set(attack.targets) <= set(KINDS)


def test_every_attack_has_targets():
    assert set(ATTACKS) == set(TARGETS)


def test_attacks_are_found_by_target():
    assert attacks_for("representation")[0] == "dip"
    assert "dlg" in attacks_for("model")
    assert attacks_for("no such kind") == ()


def test_the_table_needs_no_torch():
    code = "import sys, fedpriv.attacks as a; a.attacks_for('model'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
