"""Rules by which pictures of people are kept out of what is passed on.

A true image is shown by no rule but ``none``. Neither is a reconstruction, which where it leaks is the person; nor a guess
made of auxiliary images, for those of a client are other clients' images, and a mean over few of them is one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fedpriv.util.errors import UserError, shown

if TYPE_CHECKING:
    from torch import Tensor

    from fedpriv.attacks.observation import Reconstruction

RULES: Final[Mapping[str, str]] = {
    "none": "nothing is redacted",
    "blur": "true images are left out; every other picture is blurred to 4 x 4 blocks at most, each of its mean colour",
    "omit": "no picture of any target, reconstruction or guess",
}
"""Rules in words, the least strict first."""

NONE, BLUR, OMIT = RULES

RECORDED: Final = OMIT
"""The rule for runs that another framework's federation left, unless another is asked for."""

BLOCKS, PIXELS = 4, 7
"""Blocks along each side of a blurred picture, at most, and pixels along each side of a block, at least."""


def read_rule(value: object, default: str = NONE) -> str:
    """Return the rule that is asked for; None asks for the default, another name is a UserError."""
    if value is None:
        return default
    if not isinstance(value, str) or value not in RULES:
        raise UserError(f"redact={shown(value)}: expected {', '.join(list(RULES)[:-1])} or {list(RULES)[-1]}")
    return value


def stricter(first: str, second: str) -> str:
    """Return the stricter of two rules.

    >>> stricter("blur", "none"), stricter("blur", "omit")
    ('blur', 'omit')
    """
    order = list(RULES)
    return max(first, second, key=order.index)


def blurred(images: Tensor) -> Tensor:
    """Return images ``(..., c, h, w)`` in [0, 1] as 4 x 4 blocks at most, each of its mean colour.

    No block is smaller than 7 x 7 pixels: of an image of 8 x 8 its mean colour is left, of 28 x 28 sixteen colours.
    """
    import torch

    *_, height, width = images.shape
    known = torch.nan_to_num(images.detach().float(), nan=0.0).clamp(0, 1).reshape(-1, 1, height, width)
    down, across = (max(1, min(BLOCKS, side // PIXELS)) for side in (height, width))
    few = torch.nn.functional.adaptive_avg_pool2d(known, (down, across))
    rows = torch.arange(height) * down // height
    columns = torch.arange(width) * across // width
    return few[:, :, rows][:, :, :, columns].reshape(images.shape)


def withheld(reconstruction: Reconstruction, rule: str) -> Reconstruction:
    """Return a reconstruction whose images are blurred, or grey where left out, without what they were made from."""
    if rule == NONE:
        return reconstruction
    images = reconstruction.images.float()
    images = blurred(images) if rule == BLUR else images.new_full(images.shape, 0.5)
    return replace(reconstruction, images=images, features=None)
