import numpy as np
import pytest
import torch
from eval_cases import images
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from fedpriv.scoring import leakage, ssim
from fedpriv.util.errors import UserError


@pytest.mark.parametrize(("offset", "decibels"), [(0.1, 20.0), (0.01, 40.0), (0.5, 6.0206), (1.0, 0.0), (0.0, 100.0)])
def test_psnr_of_a_constant_offset(offset, decibels):
    black = torch.zeros(1, 3, 4, 4, dtype=torch.float64)
    assert leakage.psnr(black + offset, black).item() == pytest.approx(decibels, abs=1e-4)
    assert leakage.mse(black + offset, black).item() == pytest.approx(offset**2)
    assert leakage.mse_255(black + offset, black).item() == pytest.approx(offset**2 * 65025)


def test_psnr_is_capped_and_images_are_clamped():
    grey = torch.full((1, 1, 4, 4), 0.5, dtype=torch.float64)
    assert leakage.psnr(grey + 1e-7, grey).item() == 100.0
    white = torch.ones(1, 1, 4, 4)
    assert leakage.psnr(white * 7, white).item() == 100.0
    assert leakage.psnr(-white, torch.zeros(1, 1, 4, 4)).item() == 100.0
    assert leakage.psnr(torch.zeros(1, 1, 4, 4), -white).item() == leakage.psnr(white, white * 7).item() == 100.0


def test_psnr_of_one_image_ignores_the_others():
    left, right = images(5, seed=1), images(5, seed=2)
    left[2] = right[2]
    together = leakage.psnr(left, right)
    assert together[2] == 100
    alone = torch.cat([leakage.psnr(left[i : i + 1], right[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(together, alone)


def test_psnr_agrees_with_scikit_image():
    left, right = images(4, shape=(3, 16, 16), seed=1), images(4, shape=(3, 16, 16), seed=2)
    expected = [peak_signal_noise_ratio(b.numpy(), a.numpy(), data_range=1) for a, b in zip(left, right, strict=True)]
    np.testing.assert_allclose(leakage.psnr(left, right).numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 11, 28), (1, 8, 8), (3, 7, 9)])
def test_ssim_agrees_with_scikit_image(shape):
    left = images(3, shape=shape, seed=1).double()
    right = (0.7 * left + 0.3 * images(3, shape=shape, seed=2)).clamp(0, 1)
    gaussian = {"gaussian_weights": True, "sigma": 1.5} if min(shape[1:]) >= 11 else {"win_size": 7}
    expected = [
        structural_similarity(
            b.numpy(), a.numpy(), data_range=1, channel_axis=0, use_sample_covariance=False, **gaussian
        )
        for a, b in zip(left, right, strict=True)
    ]
    np.testing.assert_allclose(leakage.ssim(left, right).numpy(), expected, atol=1e-9)
    assert leakage.ssim(left, left).tolist() == pytest.approx([1.0] * 3)


def test_ssim_says_why_it_is_not_measured():
    tiny = images(2, shape=(1, 6, 20))
    assert "not measured" in leakage.ssim_unavailable((1, 6, 20))
    assert leakage.ssim_unavailable((1, 7, 20)) is None
    with pytest.raises(UserError, match="sides of 7 pixels"):
        leakage.ssim(tiny, tiny)


def test_lpips_is_never_measured_with_missing_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert leakage.lpips_backbone() is None
    assert leakage.lpips_unavailable().startswith("not measured: ")
    with pytest.raises(UserError, match="not measured"):
        leakage.lpips(images(1), images(1))
    assert not list(tmp_path.rglob("*.pth"))


def test_lpips_uses_weights_that_are_on_disk(tmp_path, monkeypatch):
    # Random weights serve only to run the path: grey images, enlarging, one value an image.
    from torchvision.models import squeezenet1_1

    from fedpriv.util.seeds import global_seed

    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    with global_seed(0):
        torch.save(squeezenet1_1().state_dict(), folder / "squeezenet1_1-b8a52dc0.pth")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert leakage.lpips_backbone() == "squeeze"
    left, right = images(3, seed=1), images(3, seed=2)
    right[1] = left[1]
    found = leakage.lpips(left, right)
    assert found.shape == (3,)
    assert found[1] == pytest.approx(0, abs=1e-6)
    assert (found[[0, 2]] > 0).all()


def test_feature_measures():
    true = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    found = torch.tensor([[3.0, 4.5], [0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    assert leakage.relative_error(found, true).tolist() == pytest.approx([0.1, 0.0, float("inf"), 5**0.5])
    assert leakage.cosine(true * 7, true).tolist() == pytest.approx([1.0, 0.0, 0.0, 1.0])
    assert leakage.cosine(found, true)[3] == 0


@pytest.mark.parametrize("function", [leakage.mse, leakage.psnr, leakage.ssim])
def test_shapes_must_agree(function):
    with pytest.raises(UserError, match="one shape"):
        function(images(2), images(3))
    with pytest.raises(UserError, match="one shape"):
        function(images(2)[0], images(2)[0])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1))
def test_psnr_is_symmetric_and_falls_with_distance(seed, blend):
    left, right = images(2, seed=seed).double(), images(2, seed=seed + 1).double()
    torch.testing.assert_close(leakage.psnr(left, right), leakage.psnr(right, left))
    nearer = left + (right - left) * blend
    assert (leakage.psnr(left, nearer) >= leakage.psnr(left, right) - 1e-9).all()


def test_the_table_of_metrics_runs():
    left, right = images(3, seed=1), images(3, seed=2)
    for name in ("psnr_db", "mse_255", "ssim"):
        metric = leakage.METRICS.load(name)
        better, worse = metric.function(left, left), metric.function(left, right)
        assert ((better > worse) == metric.higher_is_better).all()


def test_every_measure_in_the_table_is_its_own_function():
    expected = {
        "psnr_db": (leakage.psnr, "dB", True, "images"),
        "mse_255": (leakage.mse_255, "squared grey levels", False, "images"),
        "ssim": (leakage.ssim, "", True, "images"),
        "lpips": (leakage.lpips, "", False, "images"),
        "relative_error": (leakage.relative_error, "", False, "vectors"),
        "cosine": (leakage.cosine, "", True, "vectors"),
    }
    assert set(leakage.METRICS.builtins) == set(expected)
    for name, facts in expected.items():
        metric = leakage.METRICS.load(name)
        assert (metric.function, metric.unit, metric.higher_is_better, metric.of) == facts
        assert metric.name == name
        assert metric.description


def test_messages_name_both_shapes():
    with pytest.raises(UserError) as refused:
        leakage.psnr(images(2), images(3))
    assert str(refused.value) == "images (2, 1, 8, 8) and truth (3, 1, 8, 8) should have one shape (n, c, h, w)"
    for own, true in ((torch.zeros(2, 3), torch.zeros(3, 2)), (torch.zeros(2), torch.zeros(2))):
        with pytest.raises(UserError) as refused:
            leakage.cosine(own, true)
        assert str(refused.value).endswith(" should have one shape (n, d)")
    assert leakage.ssim_unavailable((3, 20, 6)) == (
        "not measured: SSIM's window needs sides of 7 pixels or more, images have 6"
    )


def test_images_in_chunks_have_the_scores_that_they_have_alone(monkeypatch):
    left, right = images(5, seed=1), images(5, seed=2)
    whole = leakage.ssim(left, right)
    monkeypatch.setattr(ssim, "_CHUNK_BYTES", 5_200)
    torch.testing.assert_close(leakage.ssim(left, right), whole)
    assert leakage.ssim(left[:0], right[:0]).tolist() == []
    assert leakage.ssim(left[:0], right[:0]).dtype == whole.dtype == torch.float64


def test_the_first_backbone_on_disk_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert leakage.lpips_unavailable() == (
        "not measured: no backbone weights (alexnet-owt-7be5be79.pth) in the checkpoints folder of torch's hub"
    )
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    for file, name in (
        ("vgg16-397923af.pth", "vgg"),
        ("squeezenet1_1-b8a52dc0.pth", "squeeze"),
        ("alexnet-owt-7be5be79.pth", "alex"),
    ):
        (folder / file).touch()
        assert leakage.lpips_backbone() == name
    assert leakage.lpips_unavailable() is None


def test_small_and_grey_images_are_made_ready_for_a_backbone():
    grey = leakage._for_backbone(images(2, shape=(1, 8, 100)).double())
    assert (grey.shape, grey.dtype) == ((2, 3, 64, 100), torch.float32)
    assert torch.equal(grey[:, 0], grey[:, 2])
    colour = images(2, shape=(3, 64, 70))
    assert torch.equal(leakage._for_backbone(colour), colour)
    assert leakage._for_backbone(images(1, shape=(3, 70, 63))).shape == (1, 3, 70, 64)


def test_a_cosine_of_tiny_vectors_is_right():
    tiny = torch.tensor([[3e-150, 4e-150]], dtype=torch.float64)
    assert leakage.cosine(tiny, tiny).tolist() == pytest.approx([1.0], abs=1e-6)
    assert leakage.cosine(tiny, tiny * 0).tolist() == [0]
