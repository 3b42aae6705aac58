"""The published table of augmentations: signs, margins of crops, and policies read from text."""

import pytest

from fedpriv.algebra.augmentations import margins, read_policy, signed
from fedpriv.util.errors import UserError


def test_signs_margins_and_policies():
    assert [signed(number) for number in (0, 1, 2, 3, 8)] == [False, True, False, True, False]
    assert margins(28, 32) == (4, 4)
    with pytest.raises(UserError, match="transform: policy: expected numbers of augmentations"):
        read_policy("3-x")
