"""Thresholds set without the truth accuse as many non-members as they mean to, where what sets them is alike."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.scoring.accusations import accusations
from fedpriv.scoring.roc import Ranked

CLIENTS = 20


def ranked(scores, member):
    return Ranked.of(scores, member, range(len(scores)))


def drawn(seed, shift=0.0, drift=0.0, each=100):
    """What comes of members ``shift`` above others, where what is known to be no members lies ``drift`` below them."""
    rng = np.random.default_rng(seed)
    member = [np.arange(each) % 2 == 0] * CLIENTS
    scores = [rng.normal(size=each) + shift * one for one in member]
    return accusations(ranked(scores, member), [rng.normal(size=each) - drift for _ in range(CLIENTS)])


def test_what_is_known_to_be_no_member_sets_the_rate_and_members_above_are_found():
    for one, other in zip(drawn(0), drawn(1, shift=3.0), strict=True):
        assert one.nominal == other.nominal
        for told in (one.false, one.found, other.false):  # the first has no signal: members are accused as rarely
            assert told.value == pytest.approx(one.nominal, abs=0.015)
            assert told.ci95[0] <= one.nominal <= told.ci95[1]
        assert other.found.value > 0.5


def test_what_is_unlike_accuses_too_many_and_is_seen_to():
    for one in drawn(2, drift=1.0):
        assert one.false.ci95[0] > one.nominal


def test_too_few_known_scores_hold_no_rate():
    member = [np.array([True, False])] * 5
    scores = [np.array([1.0, 0.0])] * 5
    assert accusations(ranked(scores, member), []) == ()
    found = accusations(ranked(scores, member), [np.linspace(0, 0.9, 30)])
    assert [one.nominal for one in found] == [0.05]  # of 30 none may pass at 1 %
    assert found[0].found.value == 1.0
    assert found[0].false.value == 0.0


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.lists(st.integers(0, 9), min_size=2, max_size=30))
def test_the_rule_is_that_of_ranks(known, scores):
    values, null = np.array(scores, dtype=float), np.array(known, dtype=float)
    member = np.arange(len(values)) % 2 == 0
    for one in accusations(ranked([values, values], [member, member]), [null]):
        rank = np.array([(1 + (null >= score).sum()) / (1 + len(null)) for score in values])
        assert one.false.value == pytest.approx((rank[~member] <= one.nominal + 1e-9).mean())
        assert one.found.value == pytest.approx((rank[member] <= one.nominal + 1e-9).mean())
