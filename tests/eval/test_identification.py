"""The metric of identification from hand-made images: attack, guesses and control by one rule, and who is left out."""

import pytest
import torch

from fedpriv.attacks.observation import TargetId
from fedpriv.eval.floors import NEAREST, SHUFFLED
from fedpriv.eval.identification import identification, identify
from fedpriv.eval.intervals import Means, clustered
from fedpriv.eval.metrics import ScoredGuesses, measure, own_guesses
from fedpriv.sources.truth import Pool, Truth

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
    return measure([flat(value) for value in values], of)


RIGHT, HALF, WRONG = panel(0.9, 0.8, 0.7), panel(0.9, 0.1, 0.7), panel(0.0, 0.1, 0.1)


def test_attack_and_guesses_by_one_rule():
    found = identification(TARGETS, TRUTHS, RIGHT, {"noise": WRONG, "mean_image": HALF, NEAREST: RIGHT}, MEANS)
    own = found.record
    assert own.per_target == (1, 1, None)
    assert (own.mean, own.n, own.n_left_out, own.mean_rank, own.decoys) == (1, 2, 1, 1, (10, 12))
    assert own.ci95 == clustered([1.0, 1.0], [0, 1], "share").interval()
    assert own.blind == {"noise": 0, "mean_image": 0.5}  # the nearest auxiliary image is not blind
    assert (own.chance, own.chance_of, own.shuffled, own.not_measured) == (0.5, "mean_image", None, "")
    assert found.rows == (0, 1)
    assert {name: gains.tolist() for name, gains in found.gains.items()} == {"noise": [1, 1], "mean_image": [0, 1]}


def test_the_control_is_compared_target_by_target():
    own = identification(TARGETS, TRUTHS, RIGHT, {"noise": WRONG, SHUFFLED: HALF}, MEANS).record
    assert (own.chance, own.chance_of) == (0.5, SHUFFLED)
    assert (own.shuffled.mean, own.shuffled.median) == (0.5, 0.5)
    assert own.shuffled.difference.mean == 0.5
    assert own.shuffled.difference.ci95 == clustered([0.0, 1.0], [0, 1], "difference").interval()


def test_where_nobody_has_enough_decoys_nothing_is_measured():
    poor = (a_truth(0.9, 9), a_truth(0.8, 3), a_truth(0.7, 0))
    found = identification(TARGETS, poor, panel(0.9, 0.8, 0.7, of=poor), {"noise": panel(0, 0, 0, of=poor)}, MEANS)
    own = found.record
    assert own.per_target == (None, None, None)
    assert (own.mean, own.ci95, own.n, own.n_left_out, own.mean_rank, own.decoys) == (None, None, 0, 3, None, ())
    assert (own.chance, own.chance_of, own.shuffled, own.blind) == (None, None, None, {})
    assert own.not_measured == "not measured: no target has 10 auxiliary images of its class as decoys"
    assert (found.rows, found.gains) == ((), {})


def a_batch(decoys, *members, **shares):
    labels = torch.zeros(len(decoys), dtype=torch.int64)
    pool = Pool(flat(0.3), torch.tensor([0]), flat(*decoys), labels)
    weights = torch.tensor(shares.get("weights", [1 / len(members)] * len(members)))
    return Truth(flat(*members), weights, torch.zeros(len(members), dtype=torch.int64), pool)


def told(truth, *guesses):
    shots = own_guesses(flat(*guesses)[None], (truth,))
    scored = measure(shots, (truth,))
    return identify(shots[0], truth, scored.scores[0].assigned).top1


SPREAD = [0.02 * place for place in range(10)]


@pytest.mark.parametrize("number", [1, 5])
def test_whoever_knows_nothing_tells_one_image_in_as_many_as_there_are(number):
    rng = torch.Generator().manual_seed(number)
    wins = []
    for _ in range(3000):
        values = torch.randn(12, generator=rng)  # one member and eleven decoys, drawn alike
        guesses = 0.5 * torch.randn(number, generator=rng)
        pixels = flat(*(0.5 + 0.1 * values).clamp(0, 1).tolist())
        pool = Pool(flat(0.3), torch.tensor([0]), pixels[1:], torch.zeros(11, dtype=torch.int64))
        truth = Truth.equal(pixels[:1], torch.tensor([0]), pool)
        shots = flat(*(0.5 + 0.1 * guesses).tolist())
        found = identify(shots, truth, torch.zeros(1, dtype=torch.int64))
        wins.append(found.top1)
    assert abs(sum(wins) / len(wins) - 1 / 12) < 3 * (1 / 12 * 11 / 12 / len(wins)) ** 0.5
