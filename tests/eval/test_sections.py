"""Parts of a record from hand-made scores: comparisons, rows, strata, definitions, and the control in words."""

import numpy as np
import pytest
import torch

from fedpriv.eval.floors import NEAREST, SHUFFLED
from fedpriv.eval.intervals import Means
from fedpriv.eval.metrics import ScoredGuesses, TargetScore
from fedpriv.eval.score import best_floor, control_part, image_comparisons

MEANS = Means((0, 0, 1, 2))


def panel(*psnr):
    """Scores of four targets."""
    scores = tuple(TargetScore(one, 0.01, torch.zeros(1, dtype=torch.int64)) for one in psnr)
    return ScoredGuesses((torch.zeros(1, 1, 2, 2),) * len(psnr), scores, None)


ATTACK = panel(20.0, 22.0, 10.0, 14.0)
FLOORS = {
    "noise": panel(8.0, 8.0, 8.0, 9.0),
    "mean_image": panel(12.0, 12.0, 13.0, 12.0),
    "mid_grey": panel(16.0, 9.0, 9.0, 9.0),
    NEAREST: panel(30.0, 30.0, 30.0, 30.0),
}


def test_comparisons_are_with_the_strongest_guess_of_all_targets_and_of_each_stratum():
    gains = {"a": np.array([4.0, 4.0, 1.0, 1.0]), "b": np.array([2.0, 2.0, 3.0, 5.0])}
    strata = ["1", "1", ">10", ">10"]
    whole, first, last = MEANS.compare(gains, "images", 0.5, strata)
    assert [(one.stratum, one.against, one.mean, one.n) for one in (whole, first, last)] == [
        *(("all", "a", 2.5, 4), ("1", "b", 2.0, 2), (">10", "a", 1.0, 2)),
    ]
    assert [one.n_clients for one in (whole, first, last)] == [3, 1, 2]
    assert {one.measure for one in (whole, first, last)} == {"images"}
    assert {one.least for one in (whole, first, last)} == {0.5}
    least = {name: own / 10 for name, own in gains.items()}
    assert [one.least for one in MEANS.compare(gains, "vectors", least, strata)] == pytest.approx([0.25, 0.2, 0.1])
    (alone,) = MEANS.compare(gains, "images", 0.5, ["1"] * 4)  # one stratum is all there is
    assert alone == whole
    assert MEANS.compare(gains, "images", 0.5) == (whole,)
    assert MEANS.compare({}, "images", 0.5) == Means(()).compare(gains, "images", 0.5) == ()


def test_images_by_hand():
    assert best_floor(FLOORS) == "mean_image"  # 12.25 on average; what the upload picks is not blind
    gain, beyond = image_comparisons(ATTACK, FLOORS, ["1"] * 4, MEANS)
    assert (gain.measure, gain.against, gain.mean, gain.least) == ("images", "mean_image", 4.25, 0.5)
    # Beyond it by 3 dB: targets 0 and 1. Mid-grey is so at target 0 alone, noise nowhere.
    assert (beyond.measure, beyond.against, beyond.mean, beyond.least) == ("beyond_3db", "mid_grey", 0.25, 0.05)
    just = image_comparisons(panel(15.0, 14.999, 16.0, 15.0), {"mean_image": FLOORS["mean_image"]}, ["1"] * 4, MEANS)
    assert [one.measure for one in just] == ["images"]  # no other guess to compare the share with
    two = {name: FLOORS[name] for name in ("mean_image", "noise")}
    assert image_comparisons(panel(15.0, 14.999, 16.0, 15.0), two, ["1"] * 4, MEANS)[1].mean == 0.75


# ---------------------------------------------------------------- the control


def controlled(*psnr, means=MEANS):
    return control_part({"noise": FLOORS["noise"], SHUFFLED: panel(*psnr)}, "noise", means)


def test_the_control_stays_at_a_guess_or_reaches_more():
    missing = control_part(FLOORS, "noise", MEANS)
    assert (missing.shuffled, missing.passes, missing.verdict.endswith("not run.")) == (None, None, True)
    below = controlled(6.0, 7.0, 7.0, 8.0)
    assert (below.passes, below.floor, below.shuffled.mean, below.difference_db.mean) == (True, "noise", 7, -1.25)
    assert " 1.2 dB below the baseline (uniform noise): no leak" in below.verdict
    assert " 0.0 dB above the baseline " in controlled(8.0, 8.0, 8.0, 9.0).verdict
    unsure = controlled(8.0, 9.0, 30.0, 9.0)
    assert unsure.difference_db.ci95[0] <= 0 < unsure.difference_db.mean
    assert unsure.passes is True
    above = controlled(18.0, 18.0, 18.0, 18.5)
    assert (above.passes, "part of what it reaches" in above.verdict) == (False, True)
