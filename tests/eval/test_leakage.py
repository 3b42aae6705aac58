import numpy as np
import pytest
import torch
from eval_cases import images
from skimage.metrics import structural_similarity

from fedpriv.eval import metrics
from fedpriv.util.errors import UserError


@pytest.mark.parametrize(("offset", "decibels"), [(0.1, 20.0), (0.01, 40.0), (0.5, 6.0206), (1.0, 0.0), (0.0, 100.0)])
def test_psnr_of_a_constant_offset(offset, decibels):
    black = torch.zeros(1, 3, 4, 4, dtype=torch.float64)
    assert metrics.psnr(black + offset, black).item() == pytest.approx(decibels, abs=1e-4)


def test_psnr_is_capped_and_images_are_clamped():
    grey, white = torch.full((1, 1, 4, 4), 0.5, dtype=torch.float64), torch.ones(1, 1, 4, 4)
    for image, other in ((grey + 1e-7, grey), (white * 7, white), (-white, 0 * white), (0 * white, -white)):
        assert metrics.psnr(image, other).item() == 100.0
    assert metrics.psnr(white, white * 7).item() == 100.0


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
    np.testing.assert_allclose(metrics.ssim(left, right).numpy(), expected, atol=1e-9)
    assert metrics.ssim(left, left).tolist() == pytest.approx([1.0] * 3)


def test_ssim_says_why_it_is_not_measured():
    tiny = images(2, shape=(1, 6, 20))
    assert "not measured" in metrics.ssim_unavailable((1, 6, 20))
    assert metrics.ssim_unavailable((1, 7, 20)) is None
    with pytest.raises(UserError, match="sides of 7 pixels"):
        metrics.ssim(tiny, tiny)


def test_lpips_uses_weights_that_are_on_disk(tmp_path, monkeypatch):
    # Random weights serve only to run the path: grey images, enlarging, one value an image.
    from torchvision.models import squeezenet1_1

    from fedpriv.util.seeds import global_seed

    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    with global_seed(0):
        torch.save(squeezenet1_1().state_dict(), folder / "squeezenet1_1-b8a52dc0.pth")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert metrics.lpips_backbone() == "squeeze"
    left, right = images(3, seed=1), images(3, seed=2)
    right[1] = left[1]
    found = metrics.lpips(left, right)
    assert found.shape == (3,)
    assert found[1] == pytest.approx(0, abs=1e-6)
    assert (found[[0, 2]] > 0).all()


def test_feature_measures():
    true = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    found = torch.tensor([[3.0, 4.5], [0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    assert metrics.relative_error(found, true).tolist() == pytest.approx([0.1, 0.0, float("inf"), 5**0.5])
    assert metrics.cosine(true * 7, true).tolist() == pytest.approx([1.0, 0.0, 0.0, 1.0])
    assert metrics.cosine(found, true)[3] == 0


@pytest.mark.parametrize("function", [metrics.psnr, metrics.ssim])
def test_shapes_must_agree(function):
    with pytest.raises(UserError, match="one shape"):
        function(images(2), images(3))
    with pytest.raises(UserError, match="one shape"):
        function(images(2)[0], images(2)[0])


def test_images_in_chunks_have_the_scores_that_they_have_alone(monkeypatch):
    left, right = images(5, seed=1), images(5, seed=2)
    whole = metrics.ssim(left, right)
    monkeypatch.setattr(metrics, "_CHUNK_BYTES", 5_200)
    torch.testing.assert_close(metrics.ssim(left, right), whole)
    assert metrics.ssim(left[:0], right[:0]).tolist() == []
    assert metrics.ssim(left[:0], right[:0]).dtype == whole.dtype == torch.float64
