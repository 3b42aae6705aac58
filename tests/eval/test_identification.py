"""The metric of identification from hand-made images: attack, guesses and control by one rule, and who is left out."""

import pytest
import torch

from fedpriv.eval.floors import NEAREST, SHUFFLED
from fedpriv.eval.identification import identification, identify
from fedpriv.eval.intervals import Means, clustered
from fedpriv.eval.metrics import ScoredGuesses, measure
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


def panel(*values, of=TRUTHS) -> ScoredGuesses:
    return measure([flat(value) for value in values], of)


RIGHT, HALF, WRONG = panel(0.9, 0.8, 0.7), panel(0.9, 0.1, 0.7), panel(0.0, 0.1, 0.1)


def test_attack_and_guesses_by_one_rule():
    guesses = {"noise": WRONG, "mean_image": HALF, NEAREST: RIGHT, SHUFFLED: WRONG}
    own, rows, gains = identification(TRUTHS, RIGHT, guesses, MEANS)
    assert own.per_target == (1, 1, None)
    assert (own.mean, own.n, own.n_left_out, own.decoys) == (1, 2, 1, (10, 12))
    assert own.ci95 == clustered([1.0, 1.0], [0, 1], "share").interval()
    assert own.guesses == {"noise": 0, "mean_image": 0.5, SHUFFLED: 0}  # the nearest auxiliary image is not blind
    assert (own.chance, own.chance_of, own.not_measured) == (0.5, "mean_image", "")
    assert rows == [0, 1]
    assert {name: gain.tolist() for name, gain in gains.items()} == {
        **{"noise": [1, 1], "mean_image": [0, 1], SHUFFLED: [1, 1]}
    }


def test_where_nobody_has_enough_decoys_nothing_is_measured():
    poor = (a_truth(0.9, 9), a_truth(0.8, 3), a_truth(0.7, 0))
    own, *nothing = identification(poor, panel(0.9, 0.8, 0.7, of=poor), {"noise": panel(0, 0, 0, of=poor)}, MEANS)
    assert own.per_target == (None, None, None)
    assert (own.mean, own.ci95, own.n, own.n_left_out, own.decoys) == (None, None, 0, 3, ())
    assert (own.chance, own.chance_of, own.guesses) == (None, None, {})
    assert own.not_measured == "not measured: no target has 10 auxiliary images of its class as decoys"
    assert nothing == [[], {}]


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
        wins.append(identify(shots, truth)[0])
    assert abs(sum(wins) / len(wins) - 1 / 12) < 3 * (1 / 12 * 11 / 12 / len(wins)) ** 0.5
