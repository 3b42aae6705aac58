"""Strata of candidates: who is in which, what is compared, and that none is claimed by chance or passed over in silence."""

import numpy as np
import pytest
import torch

from fedpriv.scoring.membership_strata import RARITIES, SIZES, Strata, rarities
from fedpriv.scoring.roc import Ranked


def strata_of(n_c, rarity):
    return Strata.of(np.array(n_c), np.array(rarity, dtype=float))


def test_every_candidate_is_in_one_stratum_of_either_sort():
    found = strata_of([1, 2, 3, 4, 10, 11, 500], [0, 0.2, 1 / 3, 0.5, 2 / 3, 0.9, 1.0]).chosen
    assert [name for i in range(7) for name in SIZES if found[name][i]] == [
        "1",
        "2-3",
        "2-3",
        "4-10",
        "4-10",
        ">10",
        ">10",
    ]
    assert [name for i in range(7) for name in RARITIES if found[name][i]] == [
        "typical",
        "typical",
        "middling",
        "middling",
        "unusual",
        "unusual",
        "unusual",
    ]


def test_rarity_is_the_place_in_the_class_of_all_clients():
    values = torch.tensor([0.5, 0.6, 0.9, 0.1, 0.3, 0.9])
    images = values[:, None, None, None].expand(6, 1, 2, 2)
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    first, second = rarities([images[:2], images[2:]], [labels[:2], labels[2:]])
    assert first.tolist() == pytest.approx([1 / 3, 0.0])  # of 0.5, 0.6 and 0.9 the mean is 0.667
    assert second.tolist() == pytest.approx([2 / 3, 1 / 3, 0.0, 2 / 3])  # of 0.1, 0.3 and 0.9 it is 0.433


def scored(found, clients=8, each=40, seed=0):
    """Scores of clients whose candidates are alone of their class by halves, and found where ``found`` says so."""
    rng = np.random.default_rng(seed)
    member, alone = np.arange(each) % 2 == 0, np.arange(each) < each // 2
    n_c = np.tile(np.where(alone, 1, 50), clients)
    scores = [rng.normal(size=each) + 4 * (member & found(alone)) for _ in range(clients)]
    strata = strata_of(n_c, rng.random(clients * each))
    return Ranked.of(scores, [member] * clients, range(clients)), strata


def test_a_stratum_that_leaks_alone_is_compared_and_the_others_are_not_far_from_chance():
    ranked, strata = scored(lambda alone: alone)
    wrong, _ = scored(lambda alone: np.zeros_like(alone), seed=1)
    compared = {one.stratum: one for one in strata.compared(ranked, {"shuffled": wrong})}
    assert set(compared) == {"1", ">10", *RARITIES}
    assert {one.measure for one in compared.values()} == {"membership"}
    assert compared["1"].p_value < 1e-3 < 0.05 < compared[">10"].p_value
    areas = strata.areas(ranked, tuple(SIZES))
    assert areas["1"].auc > 0.95 > 0.6 > areas[">10"].auc
    assert areas["1"].ci95[0] > 0.9
    assert (areas["1"].n, areas["1"].n_clients) == (160, 8)


def test_strata_of_few_clients_are_shown_and_not_tested():
    ranked, strata = scored(lambda alone: alone, clients=4)
    assert strata.compared(ranked, {}) == ()
    assert "1" in strata.areas(ranked, tuple(SIZES))
