"""The metric of identification from hand-made images: attack, guesses and control by one rule, and who is left out."""

import math

import pytest
import torch

from fedpriv.attacks.observation import TargetId
from fedpriv.evidence.pool import Pool
from fedpriv.evidence.truth import Truth
from fedpriv.scoring.definitions import ComparisonSet
from fedpriv.scoring.floors import NEAREST, PERMUTED
from fedpriv.scoring.identification import control_of, identification
from fedpriv.scoring.intervals import clustered
from fedpriv.scoring.panel import ScoredGuesses, measure, own_guesses
from fedpriv.scoring.sections import Means

MEANS = Means((0, 1, 2))


def flat(*values):
    return torch.tensor(values)[:, None, None, None].expand(-1, 1, 8, 8).clone()


def a_truth(value, n_decoys=10):
    """One image, and decoys of its class at 0.1 and below."""
    labels = torch.zeros(n_decoys, dtype=torch.int64)
    decoys = flat(*(0.1 - 0.001 * place for place in range(n_decoys)))
    return Truth.equal(flat(value), torch.tensor([0]), Pool(flat(0.3), torch.tensor([0]), decoys, labels))


TRUTHS = (a_truth(0.9), a_truth(0.8, 12), a_truth(0.7, 9))  # the last one has too few decoys
TARGETS = [TargetId(1, client, 0, 0) for client in range(3)]


def panel(*values, of=TRUTHS) -> ScoredGuesses:
    return measure([flat(value) for value in values], of, [ComparisonSet(None, "none")] * len(of))


RIGHT, HALF, WRONG = panel(0.9, 0.8, 0.7), panel(0.9, 0.1, 0.7), panel(0.0, 0.1, 0.1)


def test_attack_and_guesses_by_one_rule():
    found = identification(TARGETS, TRUTHS, RIGHT, {"noise": WRONG, "mean_image": HALF, NEAREST: RIGHT}, MEANS)
    own = found.record
    assert own.per_target == (1, 1, None)
    assert (own.mean, own.n, own.n_left_out, own.mean_rank, own.decoys) == (1, 2, 1, 1, (10, 12))
    assert own.ci95 == clustered([1.0, 1.0], [0, 1], "share").interval()
    assert own.blind == {"noise": 0, "mean_image": 0.5}  # the nearest stranger is not blind
    assert (own.chance, own.chance_of, own.permuted, own.not_measured) == (0.5, "mean_image", None, "")
    assert found.rows == (0, 1)
    assert {name: gains.tolist() for name, gains in found.gains.items()} == {"noise": [1, 1], "mean_image": [0, 1]}


def test_the_control_is_compared_target_by_target():
    own = identification(TARGETS, TRUTHS, RIGHT, {"noise": WRONG, PERMUTED: HALF}, MEANS).record
    assert (own.chance, own.chance_of) == (0.5, PERMUTED)
    assert (own.permuted.mean, own.permuted.median) == (0.5, 0.5)
    assert own.permuted.difference.mean == 0.5
    assert own.permuted.difference.ci95 == clustered([0.0, 1.0], [0, 1], "difference").interval()


def test_ranks_are_averaged():
    own = identification(TARGETS, TRUTHS, WRONG, {"noise": WRONG}, MEANS).record
    assert own.per_target == (0, 0, None)
    assert own.mean_rank == pytest.approx((11 + 13) / 2)


def test_where_nobody_has_enough_decoys_nothing_is_measured():
    poor = (a_truth(0.9, 9), a_truth(0.8, 3), a_truth(0.7, 0))
    found = identification(TARGETS, poor, panel(0.9, 0.8, 0.7, of=poor), {"noise": panel(0, 0, 0, of=poor)}, MEANS)
    own = found.record
    assert own.per_target == (None, None, None)
    assert (own.mean, own.ci95, own.n, own.n_left_out, own.mean_rank, own.decoys) == (None, None, 0, 3, None, ())
    assert (own.chance, own.chance_of, own.permuted, own.blind) == (None, None, None, {})
    assert own.not_measured == "not measured: no target has 10 strangers of its class as decoys"
    assert (found.rows, found.gains) == ((), {})


def test_a_control_beside_its_attack():
    own = MEANS.finite([3.0, 5.0, 7.0])
    found = control_of(own, [1.0, 5.0, 3.0], MEANS)
    assert (found.mean, found.median, found.difference.mean, found.difference.n) == (3, 3, 2, 3)
    assert found.difference.ci95 == clustered([2.0, 0.0, 4.0], [0, 1, 2]).interval()
    told = control_of(MEANS.finite([1.0, 1.0, 0.0], "share"), [0.0, 1.0, 1.0], MEANS, "difference")
    assert told.difference.ci95 == clustered([1.0, 0.0, -1.0], [0, 1, 2], "difference").interval()
    assert dict(control_of(own, [1.0, math.inf, 3.0], MEANS)) == {"mean": None, "median": None, "difference": None}
    unknown = control_of(MEANS.summary([1.0, math.nan, 2.0]), [1.0, 2.0, 6.0], MEANS)
    assert (unknown.mean, unknown.median, unknown.difference) == (3, 2, None)


def test_images_of_a_batch_are_told_by_the_guess_that_each_was_compared_with():
    decoys = flat(*(0.02 * place for place in range(10)))
    pool = Pool(flat(0.3), torch.tensor([0]), decoys, torch.zeros(10, dtype=torch.int64))
    batch = (Truth(flat(0.9, 0.5), torch.tensor([0.25, 0.75]), torch.tensor([0, 0]), pool),)
    shots = own_guesses(flat(0.15, 0.8)[None], batch)
    found = measure(shots, batch, [ComparisonSet(None, "none")])
    own = identification(TARGETS[:1], batch, found, {"noise": found}, Means((0,))).record
    assert own.per_target == (0.25,)  # 0.8 is nearest to 0.9; 0.15 is nearer to decoys than to 0.5
    assert own.ci95 is None
