"""Augmentations undone: exactly where nothing was cut off, and contradictions where black should have come in."""

import pytest
import torch
from compare import expect_close

from fedpriv.algebra.augmentations import AUGMENTATIONS, augmented, margins, read_policy, signed, undone
from fedpriv.util.errors import UserError


def picture():
    image = torch.zeros(3, 12, 12)
    image[:, 4:8, 4:8] = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(0)) * 0.3 + 0.3
    return image


@pytest.mark.parametrize("number", [0, 1, 7, 12, 13, 15])  # invert, contrast, translate-y, color (left), brightness
@pytest.mark.parametrize("sign", [1, -1])
def test_what_cut_nothing_off_is_undone(number, sign):
    changed = augmented(picture(), number, sign)
    found, known, contradiction = undone(changed, number, sign)
    if AUGMENTATIONS[number][0] not in ("color",):
        tolerance = 0.08 if AUGMENTATIONS[number][0] == "contrast" else 1e-5  # what was below black stayed black
        expect_close(found[:, known], picture()[:, known], atol=tolerance, rtol=0)
    assert contradiction == pytest.approx(0, abs=1e-6)


def test_signs_margins_and_policies():
    assert [signed(number) for number in (0, 1, 2, 3, 8)] == [False, True, False, True, False]
    assert margins(28, 32) == (4, 4)
    with pytest.raises(UserError, match="here: policy: expected numbers of augmentations"):
        read_policy("3-x", "here")
