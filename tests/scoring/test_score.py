"""Scores: what a perfect, a failing and a guessing attack get, and what numbers and verdicts have to satisfy."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from eval_cases import ABOUT, but, firsts, images, judge, reconstruction, truths
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.attacks.observation import KnowledgeCard
from fedpriv.scoring import score as scores
from fedpriv.scoring.convergence import Convergence, convergence
from fedpriv.scoring.floors import FLOORS, guess
from fedpriv.scoring.judge import ClassEvaluator
from fedpriv.scoring.judgement import judge as judged
from fedpriv.scoring.panel import own_guesses
from fedpriv.scoring.records import RECORD_VERSION, SCORING_VERSION
from fedpriv.scoring.score import score
from fedpriv.scoring.verdict import words
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
    assert judged(judge(reconstruction(firsts(secrets), per_client=1), secrets)).kind == "leaks"


@pytest.mark.parametrize("name", ["mean_image", "class_mean_image", "noise", "random_same_class"])
def test_an_attack_that_returns_a_floor_has_exactly_its_score(name):
    secrets = truths([1, 2, 5, 12] * 2)
    ids = reconstruction(firsts(secrets)).targets
    record = judge(reconstruction(blind(name, secrets, ids)), secrets)
    assert record.metrics.psnr_db.mean == pytest.approx(record.floors[name].psnr_db, abs=1e-9)
    for definition in ("T1", "T2", "T3"):
        part = record.definitions[definition]
        assert part.mean == pytest.approx(part.floors[name], abs=1e-9)


def test_the_best_floor_as_attack_has_no_advantage():
    secrets = truths([1] * 8)
    ids = reconstruction(firsts(secrets)).targets
    best = judge(reconstruction(firsts(secrets)), secrets).advantage_db.best_floor
    record = judge(reconstruction(blind(best, secrets, ids)), secrets)
    assert record.advantage_db.best_floor == best
    assert record.advantage_db.mean == pytest.approx(0, abs=1e-9)
    assert record.advantage_db.ci95 == pytest.approx((0, 0), abs=1e-9)
    assert record.advantage_db.share_3db == 0
    assert judged(record).claims == ()


def test_verdicts_follow_the_comparisons():
    secrets = truths([1] * 8)
    permuted = reconstruction(firsts(secrets).roll(1, 0), per_client=1)
    below = judged(judge(reconstruction(1 - firsts(secrets), per_client=1), secrets, permuted))
    assert (below.kind, below.reasons) == ("none", ())
    assert words(below).startswith("Nothing is found beyond a guess, though tested hard enough: -")
    mixed = firsts(secrets)
    mixed[::2] = 1 - mixed[::2]
    some = judged(judge(reconstruction(mixed, per_client=1), secrets, permuted))
    assert some.overall("beyond_3db").value == 0.5
    alone = judged(judge(reconstruction(firsts(secrets)[:1]), secrets[:1]))
    assert alone.kind == "untested"
    assert words(alone).startswith("1 of these 1 images came back, 3 dB or more beyond the best guess")


def test_the_share_of_images_that_come_back_is_compared_with_the_luckiest_guess():
    secrets = truths([1] * 8)
    record = judge(reconstruction(firsts(secrets), per_client=1), secrets)
    best = record.floor_details[record.advantage_db.best_floor].psnr_db.per_target
    lucky = {
        name: np.mean([own >= floor + 3 for own, floor in zip(part.psnr_db.per_target, best, strict=True)])
        for name, part in record.floor_details.items()
        if name != record.advantage_db.best_floor
    }
    (share,) = (one for one in record.comparisons if one.measure == "beyond_3db")
    assert share.mean == pytest.approx(1 - max(lucky.values()))
    assert lucky[share.against] == max(lucky.values())


def test_a_verdict_says_why_the_truth_need_not_be_what_was_searched_for():
    secrets = truths([1] * 8)
    failed = judge(reconstruction(1 - firsts(secrets)), secrets)
    why = "The client's loss is known in part only."
    assert why.rstrip(".") in words(judged(but(failed, caveat=why)))


def test_a_diverged_row_counts_as_black_and_is_never_dropped():
    secrets = truths([1] * 4)
    pictures = firsts(secrets)
    pictures[1, 0, 0, 3, 3] = float("nan")
    pictures[2] = float("inf")
    record = judge(reconstruction(pictures), secrets)
    assert record.n_diverged == 2
    assert [row.diverged for row in record.targets] == [False, True, True, False]
    assert record.metrics.psnr_db.n == 4
    black = -10 * np.log10(float(secrets[1].members.double().square().mean()))
    assert record.metrics.psnr_db.per_target[1] == pytest.approx(black, abs=1e-6)
    json.dumps(record.model_dump(mode="json"), allow_nan=False)


def test_numbers_add_up():
    secrets = truths([1, 2, 5, 12] * 3, shape=(3, 12, 12))
    found = reconstruction(firsts(secrets) * 0.8)
    record = judge(found, secrets, reconstruction(firsts(secrets).roll(3, 0)))
    assert {*FLOORS, "permuted"} == set(record.floors) == set(record.image_floors)
    best = record.advantage_db.best_floor
    assert record.floors[best].psnr_db == max(floor.psnr_db for floor in record.floors.values())
    gains = [row.psnr_db - row.floor_psnr_db for row in record.targets]
    assert record.advantage_db.mean == pytest.approx(np.mean(gains))
    assert record.advantage_db.share_3db == np.mean(np.array(gains) >= 3)
    assert sum(part.n for part in record.strata.values()) == 12
    assert list(record.strata) == ["1", "2-3", "4-10", ">10"]
    pooled = sum(part.n * part.psnr_db.mean for part in record.strata.values()) / 12
    assert pooled == pytest.approx(record.metrics.psnr_db.mean)
    mean_error = record.metrics.mse_255.mean / 255**2
    assert record.metrics.psnr_of_mean_mse_db.mean == pytest.approx(-10 * np.log10(mean_error))
    low, high = record.metrics.psnr_of_mean_mse_db.ci95
    assert low <= record.metrics.psnr_of_mean_mse_db.mean <= high
    assert record.metrics.psnr_db.mean >= record.metrics.psnr_of_mean_mse_db.mean
    row = record.targets[3]
    assert (row.round, row.client, row.index, row.n_c, row.stratum) == (1, 1, 3, 12, ">10")
    assert row.objective == 3.0


def test_the_record_has_the_promised_keys():
    secrets = truths([1] * 4)
    record = judge(reconstruction(firsts(secrets)), secrets)
    assert (record.kind, record.version, record.attack_version, record.scoring_version) == (
        "reconstruction",
        RECORD_VERSION,
        ABOUT.attack_version,
        SCORING_VERSION,
    )
    assert record.knowledge == KnowledgeCard()
    assert record.n_targets == 4
    assert list(record.metrics.measured) == [
        *("psnr_db", "psnr_of_mean_mse_db", "mse_255", "ssim", "identification_top1", "lpips"),
    ]
    assert {"python", "torch", "fedpriv"} <= set(record.versions)


def test_small_images_have_no_ssim_but_everything_else():
    secrets = truths([1] * 4, shape=(1, 5, 5))
    record = judge(reconstruction(firsts(secrets)), secrets)
    assert record.metrics.ssim.mean is None
    assert "5" in record.metrics.ssim.not_measured
    assert record.floors["noise"].ssim is None
    assert record.metrics.psnr_db.mean == 100


def test_batches_are_scored_by_assignment():
    secrets = truths([3, 3, 3])
    pictures = torch.stack([truth.members.flip(0) for truth in secrets])
    record = judge(reconstruction(pictures), secrets)
    assert record.metrics.psnr_db.mean == pytest.approx(100)
    assert record.definitions["T5"].mean == pytest.approx(100)
    assert record.n_guesses == 3


def test_recovered_features_and_labels_are_measured():
    secrets = truths([1] * 3)
    true = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0]])
    secrets = tuple(dataclasses.replace(truth, feature=feature) for truth, feature in zip(secrets, true, strict=True))
    found = reconstruction(firsts(secrets), features=true * 1.1)
    found = dataclasses.replace(found, labels=torch.tensor([[0], [1], [0]]))
    record = judge(found, secrets, knowledge=KnowledgeCard(labels="inferred"))
    assert record.metrics.relative_error.mean == pytest.approx(0.1, rel=1e-5)
    assert record.metrics.cosine.mean == pytest.approx(1)
    assert record.metrics.label_accuracy.per_target == (1, 1, 0)
    assert judge(found, secrets, knowledge=KnowledgeCard(labels="given")).metrics.label_accuracy is None


def test_the_control_is_judged():
    secrets = truths([1] * 8)
    perfect = reconstruction(firsts(secrets))
    fine = judge(perfect, secrets, reconstruction(firsts(secrets).roll(2, 0))).control
    assert fine.passes is True
    assert fine.difference_db.mean < 0
    leaky = judge(perfect, secrets, perfect)
    assert leaky.control.passes is False
    assert leaky.advantage_db.best_floor == "permuted"
    assert leaky.advantage_db.mean == 0
    assert judge(perfect, secrets).control.passes is None


def test_t2_stands_beside_nonmembers():
    secrets = truths([5] * 6)
    record = judge(reconstruction(firsts(secrets)), secrets)
    part = record.definitions["T2"]
    assert part.mean == 100
    assert part.nonmembers.labels == {"same": 6}
    assert part.own_minus_nonmembers_db.mean == pytest.approx(100 - part.nonmembers.mean)
    scarce = truths([5] * 6, pool=3)
    part = judge(reconstruction(firsts(scarce)), scarce).definitions["T2"]
    assert dict(part.nonmembers) == {"mean": None, "ci95": None, "n": 0, "labels": {"none": 6}}


@settings(max_examples=8, deadline=None)
@given(st.permutations(range(6)), st.integers(0, 1000))
def test_the_order_of_targets_does_not_matter(order, seed):
    secrets = truths([1, 2, 5] * 2, seed=seed, pool=40)
    found = reconstruction((firsts(secrets) + 0.1).clamp(0, 1))
    rows = ("images", "objective", "chosen", "labels", "converged")
    moved = dataclasses.replace(
        found,
        targets=tuple(found.targets[i] for i in order),
        **{name: getattr(found, name)[list(order)] for name in rows},
    )
    left, right = judge(found, secrets), judge(moved, tuple(secrets[i] for i in order))
    for name in FLOORS:
        assert right.floors[name].psnr_db == pytest.approx(left.floors[name].psnr_db)
    assert right.advantage_db.mean == pytest.approx(left.advantage_db.mean)
    assert right.advantage_db.ci95 == pytest.approx(left.advantage_db.ci95)
    assert [right.targets[p].psnr_db for p in range(6)] == [left.targets[i].psnr_db for i in order]


def test_the_same_seed_gives_the_same_record():
    secrets = truths([1, 2] * 3)
    found = reconstruction(images(6, seed=5)[:, None])
    assert judge(found, secrets, seed=3) == judge(found, secrets, seed=3)
    assert judge(found, secrets, seed=3).floors["noise"] != judge(found, secrets, seed=4).floors["noise"]


def test_wrong_input_is_named():
    secrets = truths([1] * 4)
    found = reconstruction(firsts(secrets))
    with pytest.raises(UserError, match="4 targets, 4 rows of images, but 3 truths"):
        judge(found, secrets[:3])
    with pytest.raises(UserError, match="do not fit target 0"):
        judge(reconstruction(images(4, shape=(1, 9, 9))[:, None]), secrets)
    with pytest.raises(UserError, match="permuted: 3 targets"):
        judge(found, secrets, reconstruction(firsts(secrets)[:3]))


def test_a_failing_attack_is_reported_with_its_objective_and_what_follows():
    secrets = truths([1] * 8)
    found = reconstruction(1 - firsts(secrets))
    record = judge(found, secrets)
    assert convergence(record) == Convergence(1.0, 3.5)  # objectives 0 .. 7, all converged
    stuck = judge(dataclasses.replace(found, converged=torch.arange(8) < 2), secrets)
    assert "its search converged for 25 % of the targets" in words(judged(stuck))
    assert "converged" not in words(judged(record))


def in_turn(guesses, most):
    return guesses[torch.arange(most) % len(guesses)]


def test_a_small_batch_beside_large_ones_is_scored_as_if_alone():
    """Its own guesses fill its row again and again; blind guesses must not gain by that."""
    sizes = [3, 12, 5, 12]
    secrets = truths(sizes, pool=300)
    own = [(truth.members * 0.7).roll(1, 0) for truth in secrets]
    wide = torch.stack([in_turn(shots, max(sizes)) for shots in own])
    control = torch.stack([in_turn(images(size, seed=50 + size), max(sizes)) for size in sizes])
    found, permuted = reconstruction(wide), reconstruction(control)
    together = judge(found, secrets, permuted)
    for row, size in enumerate(sizes):
        alone = judge(
            dataclasses.replace(reconstruction(wide[row : row + 1, :size]), targets=found.targets[row : row + 1]),
            secrets[row : row + 1],
            dataclasses.replace(reconstruction(control[row : row + 1, :size]), targets=found.targets[row : row + 1]),
        )
        assert together.metrics.psnr_db.per_target[row] == alone.metrics.psnr_db.mean
        for name, floor in alone.floor_details.items():
            assert together.floor_details[name].psnr_db.per_target[row] == floor.psnr_db.mean, name
        for name, part in alone.definitions.items():
            assert together.definitions[name].per_target[row] == part.mean


def test_only_repeats_are_left_out():
    one, two, three = images(3)
    four = truths([4])
    short = truths([2])
    assert len(own_guesses(torch.stack([one, two, two, two])[None], four)[0]) == 4  # a blank for what was not found
    assert len(own_guesses(torch.stack([one, two, one, two])[None], short)[0]) == 2
    assert len(own_guesses(torch.stack([one, two, three, one])[None], short)[0]) == 3  # more guesses than images
    assert len(own_guesses(one[None, None], four)[0]) == 1


# ---------------------------------------------------------------- what a record says


def test_refusals_word_by_word():
    secrets = truths([1] * 4)
    found = reconstruction(firsts(secrets))
    with pytest.raises(UserError) as refused:
        judge(reconstruction(images(4, shape=(1, 9, 9))[:, None]), secrets)
    assert str(refused.value) == (
        "reconstruction: images (4, 1, 1, 9, 9) do not fit target 0, expected (T, M, c, h, w) with (1, 8, 8)"
    )
    with pytest.raises(UserError, match=r"^permuted: images \(4, 1, 8, 8\) do not fit target 0"):
        judge(found, secrets, dataclasses.replace(found, images=found.images[:, 0]))
    with pytest.raises(UserError) as refused:
        judge(dataclasses.replace(found, targets=(), images=found.images[:0]), ())
    assert str(refused.value) == "reconstruction: holds no targets; expected at least one"
    with pytest.raises(UserError, match=r"^reconstruction: 4 targets, 3 rows of images, but 4 truths$"):
        judge(dataclasses.replace(found, images=found.images[:3]), secrets)
    mixed = (*secrets[:3], truths([1], shape=(1, 9, 9))[0])
    with pytest.raises(UserError, match=r"do not fit target 3, .* with \(1, 9, 9\)"):
        judge(found, mixed)


def test_the_headline_says_which_rule_the_figure_is_by():
    several = judge(reconstruction(firsts(truths([1, 2]))), truths([1, 2]))
    assert several.headline == "T1: expected PSNR over the images that went into the target, by their weights"
    alone = judge(reconstruction(firsts(truths([1, 1]))), truths([1, 1]))
    assert alone.headline == "PSNR of the image itself"
    assert (alone.n_guesses, alone.n_diverged, alone.n_targets, alone.n_clients) == (1, 0, 2, 1)
    assert judge(reconstruction(torch.rand(2, 3, 1, 8, 8)), truths([1, 3])).n_guesses == 3


def test_provenance_is_carried_over_and_the_seed_is_that_of_the_scores():
    secrets = truths([1] * 4)
    record = judge(reconstruction(firsts(secrets)), secrets, seed=9, caveat="So so.", groups={0: 3, 1: 3})
    assert (record.target, record.attack, record.method, record.dataset) == (
        "representation",
        "dip",
        "fedallrep",
        "digits",
    )
    assert (record.seed, record.caveat, record.budget, record.n_clients) == (9, "So so.", None, 1)
    assert record.groups == {0: 3, 1: 3}
    assert record.cost == reconstruction(firsts(secrets)).cost
    assert set(record.versions) == {"python", "fedpriv", "torch", "torchmetrics", "numpy", "scipy"}
    assert record.versions["torch"].startswith(torch.__version__.partition("+")[0])


def test_errors_of_images_by_hand():
    secrets = truths([1] * 4)
    offsets = torch.tensor([0.1, 0.2, 0.1, 0.4])[:, None, None, None, None]
    flat = tuple(dataclasses.replace(one, members=torch.full_like(one.members, 0.5)) for one in secrets)
    metrics = judge(reconstruction(firsts(flat) + offsets, per_client=1), flat).metrics
    errors = np.array([0.01, 0.04, 0.01, 0.16])
    assert metrics.mse_255.per_target == pytest.approx(errors * 65025, rel=1e-5)
    assert metrics.psnr_db.per_target == pytest.approx(-10 * np.log10(errors), rel=1e-5)
    of_mean = metrics.psnr_of_mean_mse_db
    assert of_mean.mean == pytest.approx(-10 * np.log10(errors.mean()), rel=1e-5)
    assert (of_mean.n, of_mean.median, of_mean.sd, of_mean.per_target) == (4, None, None, None)
    low, high = metrics.mse_255.ci95
    assert low < 0  # but no error is, so that the interval reaches to the cap
    assert of_mean.ci95 == pytest.approx((-10 * np.log10(high / 65025), 100), rel=1e-5)
    assert judge(reconstruction(firsts(flat) + offsets, per_client=4), flat).metrics.psnr_of_mean_mse_db.ci95 is None


def test_labels_are_counted_with_their_number():
    secrets = truths([2, 2])
    secrets = tuple(
        dataclasses.replace(one, labels=torch.tensor(own)) for one, own in zip(secrets, ([0, 0], [1, 2]), strict=True)
    )
    found = dataclasses.replace(reconstruction(images(4).reshape(2, 2, 1, 8, 8)), labels=torch.tensor([[0, 1], [2, 1]]))
    inferred = {"knowledge": KnowledgeCard(labels="inferred")}
    assert judge(found, secrets, **inferred).metrics.label_accuracy.per_target == (0.5, 1.0)
    unknown = dataclasses.replace(found, labels=torch.tensor([[0, -1], [2, 1]]))
    assert judge(unknown, secrets, **inferred).metrics.label_accuracy is None
    fewer = dataclasses.replace(found, labels=torch.tensor([[0], [2]]))
    assert judge(fewer, secrets, **inferred).metrics.label_accuracy is None


def test_floors_have_the_means_of_their_details():
    secrets = truths([1] * 4)
    record = judge(reconstruction(firsts(secrets)), secrets, reconstruction(firsts(secrets).roll(1, 0)))
    for name, floor in record.image_floors.items():
        detail = record.floor_details[name]
        assert floor.psnr_db == detail.psnr_db.mean
        assert floor.psnr_of_mean_mse_db == detail.psnr_of_mean_mse_db.mean
        assert floor.mse_255 == detail.mse_255.mean
        assert floor.ssim == detail.ssim.mean
        assert (floor.lpips, floor.relative_error, floor.feature_identification) == (None, None, None)
    best = record.advantage_db.best_floor
    assert record.floor_details[best].lpips.not_measured
    assert all(detail.lpips is None for name, detail in record.floor_details.items() if name != best)
    assert record.metrics.lpips.not_measured == record.floor_details[best].lpips.not_measured
    assert record.control.floor != "permuted"
    assert record.control.permuted.mean == record.floors["permuted"].psnr_db


def test_perceptual_distance_is_of_the_attack_and_its_strongest_guess(monkeypatch):
    monkeypatch.setattr(scores, "lpips_unavailable", lambda: None)
    monkeypatch.setattr(scores, "lpips_backbone", lambda: "squeeze")
    monkeypatch.setattr(scores, "lpips", lambda one, two: (one - two).abs().mean((1, 2, 3)).double())
    secrets = truths([1] * 4)
    record = judge(reconstruction(0.5 * firsts(secrets), per_client=1), secrets)
    expected = [float(0.5 * truth.members.mean()) for truth in secrets]
    assert record.metrics.lpips.per_target == pytest.approx(expected, rel=1e-5)
    assert (record.metrics.lpips.backbone, record.metrics.lpips.n) == ("squeeze", 4)
    assert record.metrics.lpips.ci95 is not None
    best = record.floor_details[record.advantage_db.best_floor].lpips
    assert (best.backbone, best.n) == ("squeeze", 4)
    assert best.mean == record.floors[record.advantage_db.best_floor].lpips
    assert best.ci95 is not None


def test_class_images_are_judged_by_an_independent_classifier():
    def bright(pictures):
        return torch.stack([0.5 - pictures.mean((1, 2, 3)), pictures.mean((1, 2, 3)) - 0.5], 1)

    secrets = truths([1, 2] * 3, classes=2)
    found = reconstruction(torch.cat([torch.full((5, 1, 1, 8, 8), 0.9), torch.zeros(1, 1, 1, 8, 8)]))
    evaluator = ClassEvaluator((bright,), {0: 0, 1: 0, 2: 0}, (7,))
    record = score(found, secrets, None, seed=0, about=ABOUT, judge=evaluator)
    told = record.metrics.class_accuracy
    assert told.per_target == (0, 1, 0, 1, 0, 0)  # targets are of classes 0 and 1 in turn
    assert set(told.floors) == {*FLOORS}
    compared = [one for one in record.comparisons if one.measure == "classes"]
    assert [(one.stratum, one.n, one.n_clients, one.least) for one in compared] == [
        *(("all", 6, 3, 0.05), ("1", 3, 3, 0.05), ("2-3", 3, 3, 0.05)),
    ]
    assert compared[0].against == told.chance_of
    assert compared[0].mean == pytest.approx(told.mean - told.chance)
    assert judge(found, secrets).metrics.class_accuracy is None
