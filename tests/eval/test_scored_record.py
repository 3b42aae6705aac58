"""A record of scores, entry by entry: what is refused, told, carried over and counted."""

import dataclasses

import numpy as np
import pytest
import torch
from eval_cases import firsts, images, judge, reconstruction, truths

from fedpriv.eval import score as scores
from fedpriv.util.errors import UserError


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
    of_mean = metrics.psnr_of_mean_mse_db
    assert of_mean.mean == pytest.approx(-10 * np.log10(errors.mean()), rel=1e-5)
    assert (of_mean.n, of_mean.median, of_mean.sd, of_mean.per_target) == (4, None, None, None)
    low, high = metrics.mse_255.ci95
    assert low < 0  # but no error is, so that the interval reaches to the cap
    assert of_mean.ci95 == pytest.approx((-10 * np.log10(high / 65025), 100), rel=1e-5)
    assert judge(reconstruction(firsts(flat) + offsets, per_client=4), flat).metrics.psnr_of_mean_mse_db.ci95 is None


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
