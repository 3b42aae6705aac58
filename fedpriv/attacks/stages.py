"""The progress of a search of several stages as one: each has its part of the work."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.attacks.observation import Progress


class Stages:
    """The stages of a search, one after another.

    Args:
        report: told of (units done, units planned) of all stages together; None for nobody.
        units: the work of each stage, in one measure.
    """

    def __init__(self, report: Progress | None, units: Sequence[int]) -> None:
        self._report, self._units = report, list(units)

    def of(self, stage: int) -> Progress:
        """Return the listener to which a stage reports its own progress."""
        before, own, planned_in_all = sum(self._units[:stage]), self._units[stage], sum(self._units)

        def tell(done: int, planned: int) -> None:
            if self._report is not None:
                self._report(before + own * done // max(1, planned), planned_in_all)

        return tell
