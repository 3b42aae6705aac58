"""Settings of a reach: the local work behind an upload, from one step on one image to a client's own training.

An update of one step on one image may hold that image and nothing else, but nobody trains so. How far a leak reaches is
asked by attacking uploads that the same clients compute from the same broadcast after more and more local work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError

EPOCH = "epoch"
"""The client's own training: all of its images, as often and in batches as large as the run says."""

DEFAULT = ("1", "4", "16", EPOCH)

NONE = "none"

_DIGITS = 4
"""Of a number of steps or images at most."""

_EXPECTED = (
    "expected settings with commas between: images of one step (1,4,16), STEPSxIMAGES (8x1), or epoch; or none alone"
)


@dataclass(frozen=True)
class Setting:
    """Local work of a round.

    Attributes:
        steps: at most so many; None for a client's own training.
        batch: images of each step; None likewise.
        epochs: of a client's own training.
    """

    steps: int | None = None
    batch: int | None = None
    epochs: int = 1

    @property
    def name(self) -> str:
        """The setting as it is asked for."""
        if self.steps is None:
            return EPOCH
        return f"{self.batch}" if self.steps == 1 else f"{self.steps}x{self.batch}"

    @property
    def label(self) -> str:
        """A few words, for axes and tables."""
        if self.steps is None:
            return EPOCH if self.epochs == 1 else f"{self.epochs} epochs"
        images = "1 image" if self.batch == 1 else f"{self.batch} images"
        return images if self.steps == 1 else f"{self.steps} steps of {images}"

    @property
    def words(self) -> str:
        """The setting in a sentence."""
        if self.steps is None:
            often = "an epoch" if self.epochs == 1 else f"{self.epochs} epochs"
            return f"{often} of all of a client's images"
        images = "one image" if self.batch == 1 else f"{self.batch} images"
        return f"one step on {images}" if self.steps == 1 else f"{self.steps} steps on {images} each"

    @property
    def work(self) -> tuple[bool, int, int]:
        """By which settings are put in order: an epoch last, then by images, then by steps."""
        return self.steps is None, (self.steps or 0) * (self.batch or 0), self.steps or 0


def parse_reach(given: object) -> tuple[Setting, ...]:
    """Return the settings that a text or a list names, from the least local work to the most; none for ``none``.

    >>> [setting.label for setting in parse_reach("epoch,4,1,8x1")]
    ['1 image', '4 images', '8 steps of 1 image', 'epoch']

    Raises:
        UserError: for anything else, and for a setting that is named twice.
    """
    where = argument("reach", given)
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, Iterable) or isinstance(parts, (bytes, dict)):
        parts = [parts]
    names = [str(part).strip() if isinstance(part, (str, int)) and not isinstance(part, bool) else "" for part in parts]
    if names == [NONE]:
        return ()
    found = [_setting(name) for name in names]
    if not found or None in found:
        wrong = next((name for name, one in zip(names, found, strict=True) if one is None and name), "")
        raise UserError(f"{where}: {f'{wrong!r} is no setting; ' if wrong else ''}{_EXPECTED}")
    if len(set(found)) < len(found):
        raise UserError(f"{where}: a setting is named twice")
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.work))


def _setting(name: str) -> Setting | None:
    if name == EPOCH:
        return Setting()
    steps, by, images = name.rpartition("x")
    numbers = [images, *([steps] if by else [])]
    if not all(one.isascii() and one.isdecimal() and one[0] != "0" and len(one) <= _DIGITS for one in numbers):
        return None
    return Setting(int(steps) if by else 1, int(images))
