"""Numbers that are all finite, whatever they add up to."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.wire.plain_tensor import all_finite

NUMBERS = st.lists(st.floats(width=32) | st.sampled_from([3e38, -3e38, float("inf"), float("-inf"), float("nan")]))


@given(numbers=NUMBERS)
def test_a_sum_never_hides_what_is_not_finite_nor_makes_it_up(numbers):
    values = torch.tensor(numbers, dtype=torch.float32)
    assert all_finite(values) == bool(values.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_any_kind_of_number_is_taken(dtype):
    assert all_finite(torch.ones(70_000, dtype=dtype))  # their sum is more than float16 holds
    assert all_finite(torch.zeros(0, dtype=dtype))
