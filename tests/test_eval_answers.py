"""Which attacks count as the answer to a defense: those it names, run with the option that it asks for."""

from types import SimpleNamespace

import pytest

from fedpriv.attacks import ATTACKS
from fedpriv.defenses import DEFENSES
from fedpriv.eval.report_sections import _answers
from fedpriv.registry import resolve


@pytest.mark.parametrize(
    ("defense", "attack", "options", "counts"),
    [
        ("clip", "dip", {"match": "direction"}, True),
        ("clip", "dip", {"match": "vector"}, False),
        ("clip", "inverting-gradients", {"match": "all"}, True),
        ("clip", "dlg", {"match": "all"}, False),
        ("prune", "joint", {"match": "pruned"}, True),
        ("prune", "dlg", {"match": "sent"}, True),
        ("prune", "dlg", {"match": "all"}, False),
        ("sign", "dlg", {"match": "sent"}, False),
        ("noise", "average", {"match": "vector"}, True),
        ("noise", "dip", {"match": "vector"}, False),
        ("diagonal", "average", {"zeros": "sent"}, False),
        ("diagonal", "average", {"zeros": "missing"}, True),
        ("diagonal", "angle-update", {}, True),
        ("soteria", "dlg", {"ignore": "head.*"}, True),
        ("soteria", "dlg", {"ignore": ""}, False),
        ("entangle", "unmix", {}, True),
    ],
)
def test_what_counts_as_an_answer(defense, attack, options, counts):
    answer = resolve("defense", defense, DEFENSES).answer
    assert _answers(answer, SimpleNamespace(about={"attack": attack, "options": options})) is counts


@pytest.mark.parametrize("name", sorted(DEFENSES))
def test_an_answer_names_an_attack_or_says_that_there_is_none(name):
    answer = resolve("defense", name, DEFENSES).answer
    named = any(attack in answer.replace(",", " ").replace(":", " ").split() for attack in ATTACKS)
    assert named or answer.startswith(("not evaluated", "the attacks")), answer
