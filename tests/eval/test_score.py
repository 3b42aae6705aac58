"""Scores: what a perfect, a failing and a guessing attack get, and what numbers and verdicts have to satisfy."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from eval_cases import answers, firsts, images, judge, reconstruction, truths
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.attacks.observation import ThreatModel
from fedpriv.eval import score as scores
from fedpriv.eval.floors import FLOORS, guess
from fedpriv.util.errors import UserError


def blind(name, secrets, ids, seed=0):
    return torch.stack([guess(name, truth, target, 1, seed) for truth, target in zip(secrets, ids, strict=True)])


def test_a_perfect_reconstruction_scores_one_hundred():
    secrets = truths([1] * 6)
    record = judge(reconstruction(firsts(secrets)), secrets)
    assert record.metrics.psnr_db.per_target == (100.0,) * 6
    assert record.metrics.mse_255.mean == 0
    assert record.metrics.ssim.mean == pytest.approx(1)
    assert record.metrics.identification_top1.mean == 1
    assert record.advantage_db.share_3db == 1
    assert answers(judge(reconstruction(firsts(secrets), per_client=1), secrets))[0].verdict == "leak"


@pytest.mark.parametrize("name", ["mean_image", "class_mean_image", "noise"])
def test_an_attack_that_returns_a_floor_has_exactly_its_score(name):
    secrets = truths([1, 2, 5, 12] * 2)
    ids = reconstruction(firsts(secrets)).targets
    record = judge(reconstruction(blind(name, secrets, ids)), secrets)
    assert record.metrics.psnr_db.mean == pytest.approx(record.floors[name].psnr_db.mean, abs=1e-9)


def test_a_diverged_row_counts_as_black_and_is_never_dropped():
    secrets = truths([1] * 4)
    pictures = firsts(secrets)
    pictures[1, 0, 0, 3, 3] = float("nan")
    pictures[2] = float("inf")
    record = judge(reconstruction(pictures), secrets)
    assert record.n_diverged == 2
    assert record.metrics.psnr_db.n == 4
    black = -10 * np.log10(float(secrets[1].members.double().square().mean()))
    assert record.metrics.psnr_db.per_target[1] == pytest.approx(black, abs=1e-6)
    json.dumps(record.model_dump(mode="json"), allow_nan=False)


def test_numbers_add_up():
    secrets = truths([1, 2, 5, 12] * 3, shape=(3, 12, 12))
    found = reconstruction(firsts(secrets) * 0.8)
    record = judge(found, secrets, reconstruction(firsts(secrets).roll(3, 0)))
    assert {*FLOORS, "shuffled"} == set(record.floors)
    best = record.advantage_db.best_floor
    assert record.floors[best].psnr_db.mean == max(floor.psnr_db.mean for floor in record.floors.values())
    gains = [row.psnr_db - row.floor_psnr_db for row in record.targets]
    assert record.advantage_db.mean == pytest.approx(np.mean(gains))
    assert record.advantage_db.share_3db == np.mean(np.array(gains) >= 3)
    row = record.targets[3]
    assert (row.round, row.client, row.index, row.n_c) == (1, 1, 3, 12)


def test_recovered_features_and_labels_are_measured():
    secrets = truths([1] * 3)
    true = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0]])
    secrets = tuple(dataclasses.replace(truth, feature=feature) for truth, feature in zip(secrets, true, strict=True))
    found = reconstruction(firsts(secrets), features=true * 1.1)
    found = dataclasses.replace(found, labels=torch.tensor([[0], [1], [0]]))
    record = judge(found, secrets, knowledge=ThreatModel(labels="inferred"))
    assert record.metrics.relative_error.mean == pytest.approx(0.1, rel=1e-5)
    assert record.metrics.cosine.mean == pytest.approx(1)
    assert record.metrics.label_accuracy.per_target == (1, 1, 0)
    assert judge(found, secrets, knowledge=ThreatModel(labels="given")).metrics.label_accuracy is None


def test_the_control_is_judged():
    secrets = truths([1] * 8)
    perfect = reconstruction(firsts(secrets))
    fine = judge(perfect, secrets, reconstruction(firsts(secrets).roll(2, 0))).control
    assert fine.passes is True
    assert fine.difference_db.mean < 0
    leaky = judge(perfect, secrets, perfect)
    assert leaky.control.passes is False
    assert leaky.advantage_db.best_floor == "shuffled"
    assert leaky.advantage_db.mean == 0
    assert judge(perfect, secrets).control.passes is None


@settings(max_examples=8, deadline=None)
@given(st.permutations(range(6)), st.integers(0, 1000))
def test_the_order_of_targets_does_not_matter(order, seed):
    secrets = truths([1, 2, 5] * 2, seed=seed, pool=40)
    found = reconstruction((firsts(secrets) + 0.1).clamp(0, 1))
    rows = ("images", "objective", "labels", "converged")
    moved = dataclasses.replace(
        found,
        targets=tuple(found.targets[i] for i in order),
        **{name: getattr(found, name)[list(order)] for name in rows},
    )
    left, right = judge(found, secrets), judge(moved, tuple(secrets[i] for i in order))
    for name in FLOORS:
        assert right.floors[name].psnr_db.mean == pytest.approx(left.floors[name].psnr_db.mean)
    assert right.advantage_db.mean == pytest.approx(left.advantage_db.mean)
    assert right.advantage_db.ci95 == pytest.approx(left.advantage_db.ci95)
    assert [right.targets[p].psnr_db for p in range(6)] == [left.targets[i].psnr_db for i in order]


def in_turn(guesses, most):
    return guesses[torch.arange(most) % len(guesses)]


def test_a_small_batch_beside_large_ones_is_scored_as_if_alone():
    """Its own guesses fill its row again and again; baselines must not gain by that."""
    sizes = [3, 12, 5, 12]
    secrets = truths(sizes, pool=300)
    own = [(truth.members * 0.7).roll(1, 0) for truth in secrets]
    wide = torch.stack([in_turn(shots, max(sizes)) for shots in own])
    control = torch.stack([in_turn(images(size, seed=50 + size), max(sizes)) for size in sizes])
    found, shuffled = reconstruction(wide), reconstruction(control)
    together = judge(found, secrets, shuffled)
    for row, size in enumerate(sizes):
        alone = judge(
            dataclasses.replace(reconstruction(wide[row : row + 1, :size]), targets=found.targets[row : row + 1]),
            secrets[row : row + 1],
            dataclasses.replace(reconstruction(control[row : row + 1, :size]), targets=found.targets[row : row + 1]),
        )
        assert together.metrics.psnr_db.per_target[row] == alone.metrics.psnr_db.mean
        for name, floor in alone.floors.items():
            assert together.floors[name].psnr_db.per_target[row] == floor.psnr_db.mean, name


def test_what_does_not_fit_is_refused():
    secrets = truths([1] * 4)
    found = reconstruction(firsts(secrets))
    for changed, control, match in (
        (
            reconstruction(images(4, shape=(1, 9, 9))[:, None]),
            None,
            r"^reconstruction: .* do not fit target 0, expected",
        ),
        (found, dataclasses.replace(found, images=found.images[:, 0]), r"^shuffled: .* do not fit target 0"),
        (dataclasses.replace(found, images=found.images[:3]), None, "4 targets, 3 rows of images, but 4 truths"),
    ):
        with pytest.raises(UserError, match=match):
            judge(changed, secrets, control)
    with pytest.raises(UserError, match="holds no targets"):
        judge(dataclasses.replace(found, targets=(), images=found.images[:0]), ())


def test_errors_of_images_by_hand():
    secrets = truths([1] * 4)
    offsets = torch.tensor([0.1, 0.2, 0.1, 0.4])[:, None, None, None, None]
    flat = tuple(dataclasses.replace(one, members=torch.full_like(one.members, 0.5)) for one in secrets)
    metrics = judge(reconstruction(firsts(flat) + offsets, per_client=1), flat).metrics
    errors = np.array([0.01, 0.04, 0.01, 0.16])
    assert metrics.mse_255.per_target == pytest.approx(errors * 65025, rel=1e-5)
    assert metrics.psnr_db.per_target == pytest.approx(-10 * np.log10(errors), rel=1e-5)


def test_perceptual_distance_is_of_the_attack_and_its_strongest_guess(monkeypatch):
    monkeypatch.setattr(scores, "lpips_unavailable", lambda: None)
    monkeypatch.setattr(scores, "lpips_backbone", lambda: "squeeze")
    monkeypatch.setattr(scores, "lpips", lambda one, two: (one - two).abs().mean((1, 2, 3)).double())
    secrets = truths([1] * 4)
    record = judge(reconstruction(0.5 * firsts(secrets), per_client=1), secrets)
    expected = [float(0.5 * truth.members.mean()) for truth in secrets]
    assert record.metrics.lpips.per_target == pytest.approx(expected, rel=1e-5)
    assert (record.versions["lpips"], record.metrics.lpips.n) == ("squeeze", 4)
    assert record.metrics.lpips.ci95 is not None
    best = record.floors[record.advantage_db.best_floor].lpips
    assert (best.n, best.ci95 is None) == (4, False)
