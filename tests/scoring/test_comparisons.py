"""Identification among decoys, and every comparison with the strongest guess."""

import dataclasses

import numpy as np
import pytest
import torch
from eval_cases import firsts, images, judge, reconstruction, truths

from fedpriv.scoring.judgement import judge as judged
from fedpriv.scoring.verdict import words


def batches_of_noise(seed, n_targets=6, size=30):
    return torch.stack([images(size, seed=seed + place) for place in range(n_targets)])


def test_many_guesses_of_noise_find_no_more_than_one_image_in_as_many_as_there_are():
    secrets = truths([30] * 6, pool=240)
    found = judge(reconstruction(batches_of_noise(100), per_client=1), secrets)
    told = found.metrics.identification_top1
    assert told.mean == pytest.approx(1 / 41, abs=0.03)  # though the truth chooses which guess PSNR compares it with
    assert max(told.blind.values()) == pytest.approx(1 / 41, abs=0.06)
    assert told.chance == max(told.blind.values())
    assert judged(found).claims == ()


def test_an_attack_that_does_as_well_on_shuffled_uploads_identifies_nothing():
    secrets = truths([30] * 6, pool=240)
    control = reconstruction(batches_of_noise(500), per_client=1)
    nothing = judge(reconstruction(batches_of_noise(100), per_client=1), secrets, control)
    told = nothing.metrics.identification_top1
    low, high = told.shuffled.difference.ci95
    assert low <= 0 <= high
    assert told.shuffled.difference.mean == pytest.approx(told.mean - told.shuffled.mean)
    assert told.chance == max(told.blind.values()) >= told.shuffled.mean == told.blind["shuffled"]
    assert judged(nothing).claims == ()
    hints = torch.stack(
        [0.4 * truth.members + 0.6 * noise for truth, noise in zip(secrets, control.images, strict=True)]
    )
    something = judge(reconstruction(hints, per_client=1), secrets, control)
    # Of six clients none does worse, which leaves up to 46 % who might.
    assert something.metrics.identification_top1.shuffled.difference.ci95[0] > 0.1
    assert "re-identified among decoys" in words(judged(something))


def test_the_strongest_guess_of_each_stratum_is_what_counts():
    secrets = truths([1, 2] * 4)
    record = judge(reconstruction(firsts(secrets)), secrets, reconstruction(images(8, seed=7)[:, None]))
    for one in record.comparisons:
        rows = [row for row, target in enumerate(record.targets) if one.stratum in ("all", target.stratum)]
        assert one.n == len(rows)
        if one.measure == "images":
            own = np.array(record.metrics.psnr_db.per_target)[rows]
            gains = {
                name: float((own - np.array(floor.psnr_db.per_target)[rows]).mean())
                for name, floor in record.floor_details.items()
            }
            assert one.mean == pytest.approx(min(gains.values()))
            assert gains[one.against] == min(gains.values())
    assert {(one.measure, one.stratum) for one in record.comparisons} == {
        (measure, stratum) for measure in ("images", "beyond_3db", "identified") for stratum in ("all", "1", "2-3")
    }


def test_recovered_vectors_are_compared_with_guesses_at_them():
    secrets = truths([1, 1, 12, 12] * 3)
    true = torch.randn(12, 5, generator=torch.Generator().manual_seed(1))
    rare = torch.tensor([truth.n_c == 1 for truth in secrets])[:, None]
    close, far = true * 1.1, true * 0.2
    secrets = tuple(
        dataclasses.replace(truth, feature=feature, vectors={"auxiliary": near, "head_rows": bad})
        for truth, feature, near, bad in zip(secrets, true, torch.where(rare, far, close), far, strict=True)
    )
    record = judge(reconstruction(firsts(secrets), features=true * 1.2, per_client=4), secrets)
    assert record.floors["auxiliary"].relative_error == pytest.approx((0.8 + 0.1) / 2, rel=1e-4)
    assert record.floors["head_rows"].relative_error == pytest.approx(0.8, rel=1e-4)
    found = {one.stratum: one for one in record.comparisons if one.measure == "vectors"}
    assert found["1"].mean == pytest.approx(0.6, rel=1e-4)
    assert found["1"].least == pytest.approx(0.08, rel=1e-4)
    assert found[">10"].mean == pytest.approx(-0.1, rel=1e-4)
    assert found["all"].mean == pytest.approx(0.25, rel=1e-4)
    assert (found["all"].against, found["all"].n_clients) == ("auxiliary", 3)
    told = record.metrics.feature_identification
    assert told.blind == {name: record.floors[name].feature_identification for name in ("auxiliary", "head_rows")}
    assert told.chance == max(told.blind.values())
    assert {one.stratum for one in record.comparisons if one.measure == "vectors_identified"} == {"all", "1", ">10"}
