"""Image shapes, and the refusal of a shape that an architecture cannot take."""

from __future__ import annotations

ImageShape = tuple[int, int, int]
"""(channels, height, width)."""


class UnfitShape(ValueError):
    """An architecture cannot take images of this shape; the message says what it needs."""


def require_sides(image_shape: ImageShape, least: int) -> None:
    """Refuse images with a side below ``least`` pixels."""
    if min(image_shape[1:]) < least:
        raise UnfitShape(f"it needs sides of at least {least} pixels")
