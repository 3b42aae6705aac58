"""Rankings: one a threat model, the strongest first; budgets in series; what attacks are called."""

from eval_cases import attacked, result, summary

from fedpriv.attacks.observation import ThreatModel
from fedpriv.pages.labels import (
    budget_value,
    by_budget,
    card_key,
    card_numbers,
    in_order,
    largest_budgets,
    strongest_first,
)
from fedpriv.scoring.records import Advantage, Stage

MIDDLE = Stage(name="middle", round=2, of=4, accuracy={})


def record_of(one):
    return one


def gaining(gain, **changes):
    return attacked(advantage_db=summary(gain, None, Advantage, share_3db=0.0, best_floor="noise"), **changes)


SEEN, MORE = ThreatModel(), ThreatModel(rounds_seen=3)
WEAK, STRONG, OTHER, BEST = (
    *(gaining(1.0, knowledge=SEEN), gaining(3.0, knowledge=SEEN)),
    *(gaining(-2.0, knowledge=MORE), gaining(4.0, knowledge=MORE)),
)


def test_rankings_and_their_members_begin_with_the_strongest():
    items = [WEAK, OTHER, STRONG, BEST]
    assert strongest_first(items, record_of) == [[BEST, OTHER], [STRONG, WEAK]]
    assert in_order(items, record_of) == [BEST, OTHER, STRONG, WEAK]
    assert card_numbers(items, record_of) == {card_key(MORE): 1, card_key(SEEN): 2}
    assert strongest_first([], record_of) == []


def series_of(items):
    return [
        [budget_value(one.metrics) for one in series]
        for series in by_budget(items, lambda item: item.metrics, lambda item: item.about)
    ]


def test_budgets_of_one_attack_are_a_series_in_ascending_order():
    many, few = result(budget=300), result(budget=20)
    assert series_of([many, few, result()]) == [[20, 300], [None]]
    assert series_of([result(), result()]) == [[None], [None]]  # no budgets were named: not one attack
    assert largest_budgets([many, few], lambda item: item.metrics, lambda item: item.about) == [many]
