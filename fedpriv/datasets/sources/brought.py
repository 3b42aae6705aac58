"""Counts of the image files that were scaled, cropped or converted so that all have one shape."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from PIL import Image

GREY_MODES = frozenset({"1", "L", "LA"})
CLEAR_MODES = frozenset({"LA", "PA", "RGBA", "La", "RGBa"})


@dataclass
class Brought:
    """Counts of images that are not as they were stored.

    Attributes:
        total: images read.
        sizes: (width, height) as stored -> how many of them were brought to another size.
        cropped: images that lost a part, because they were not square.
        recoloured: images that were grey where all became colour, or the other way round.
        flattened: images that lost their transparency.
    """

    total: int = 0
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    cropped: int = 0
    recoloured: int = 0
    flattened: int = 0

    def note(self, image: Image.Image, channels: int, size: int | None) -> None:
        """Count an image as it is stored, that is brought to ``channels`` and, unless None, to a square of ``size``."""
        self.total += 1
        if size is not None and image.size != (size, size):
            self.sizes[image.size] += 1
            self.cropped += image.width != image.height
        self.recoloured += (image.mode in GREY_MODES) != (channels == 1)
        self.flattened += image.mode in CLEAR_MODES or "transparency" in image.info

    def words(self, channels: int, size: int | None) -> str:
        """Return in words what was done to how many images; empty where all are as they were stored.

        >>> Brought(total=9, recoloured=2).words(3, None)
        '2 of 9 images made colour that are grey'
        """
        parts = []
        if self.sizes:
            least, most = (pick(self.sizes, key=lambda one: (one[0] * one[1], one)) for pick in (min, max))
            span = _pixels(*least) if least == most else f"{_pixels(*least)} to {_pixels(*most)}"
            cut = f" ({self.cropped:,} of them cropped to a square first)" if self.cropped else ""
            parts.append(f"{self.sizes.total():,} of {self.total:,} images scaled from {span} to {size}x{size}{cut}")
        if self.recoloured:
            made = "grey that are colour" if channels == 1 else "colour that are grey"
            parts.append(f"{self.recoloured:,} of {self.total:,} images made {made}")
        if self.flattened:
            parts.append(
                f"{self.flattened:,} of {self.total:,} images without the transparency that they are stored with"
            )
        return "; ".join(parts)


def _pixels(width: int, height: int) -> str:
    return f"{width}x{height}"
