"""What a client does to an upload before it leaves: one contract for all of it, and each rule by hand."""

from fedpriv.defenses import DEFENSES
from fedpriv.protection import Defense
from fedpriv.registry import resolve


def test_every_defense_says_what_it_guarantees_and_what_answers_it():
    for name in DEFENSES:
        defense = resolve("defense", name, DEFENSES)
        assert issubclass(defense, Defense)
        assert defense.name == name
        assert defense.source
        assert defense.guarantee
        assert defense.answer
        assert defense.__doc__
