import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedpriv.models.split import average_pooling, max_pooling

widths = st.integers(1, 70)


def ramp(n):
    return torch.arange(n, dtype=torch.float32)[None]


@pytest.mark.parametrize(
    ("n_in", "n_out", "start"),
    [
        (1280, 512, [1.0, 3.0, 6.0, 8.0]),
        (768, 512, [0.5, 1.5, 3.5, 4.5]),
        (1024, 512, [0.5, 2.5, 4.5, 6.5]),
        (2048, 512, [1.5, 5.5, 9.5, 13.5]),
        (512, 2048, [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 2.0]),
        (512, 512, [0.0, 1.0, 2.0, 3.0]),
    ],
)
def test_average_pooling_has_the_published_windows(n_in, n_out, start):
    out = average_pooling(n_in, n_out)(ramp(n_in))
    assert out.shape == (1, n_out)
    torch.testing.assert_close(out[0, : len(start)], torch.tensor(start))


@settings(max_examples=80, deadline=None)
@given(n_in=widths, n_out=widths, seed=st.integers(0, 999))
def test_both_poolings_equal_torchs_and_so_do_their_gradients(n_in, n_out, seed):
    draw = torch.Generator().manual_seed(seed)
    vectors = torch.randn(3, n_in, generator=draw)
    weights = torch.randn(3, n_out, generator=draw)
    for ours, oracle in ((average_pooling, nn.AdaptiveAvgPool1d), (max_pooling, nn.AdaptiveMaxPool1d)):
        results = []
        for module in (ours(n_in, n_out), oracle(n_out)):
            x = vectors.clone().requires_grad_()
            y = module(x)
            results.append((y.detach(), torch.autograd.grad((y * weights).sum(), x)[0]))
        torch.testing.assert_close(results[0], results[1])
