"""The time that work will take, from its own first units: measured, told once, and no unit is done for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from fedpriv.util.listener import Listener, Report

SOON = 2.0
"""Seconds of work from which the rest is judged, where units are short."""


ENOUGH = 10.0
"""Seconds after which any units stand for the rest."""


class Pace:
    """A report that hands on what it is told, and tells a listener once how long all will take.

    Attributes:
        told: whether it has.
    """

    def __init__(
        self,
        report: Report,
        listener: Listener,
        unit: str,
        *,
        share: Callable[[int, int], float] | None = None,
        ripe: Callable[[int], bool] | None = None,
    ) -> None:
        """Begin to measure.

        Args:
            report: that is told everything.
            listener: hears of the time.
            unit: of the work, in words, one and many alike: ``client steps``.
            share: (units done, units planned) -> the share of the work that is done; by default units are alike.
            ripe: units done -> whether they stand for the rest; after :data:`ENOUGH` seconds they do in any case.
        """
        self._report, self._listener, self._unit = report, listener, unit
        self._share, self._ripe = share or _alike, ripe
        self._began, self._first = time.monotonic(), 0
        self.told = not listener.asks

    def resumed(self, done: int) -> None:
        """Hear that so many units were done before."""
        self._first = done

    def __call__(self, done: int, planned: int, what: str) -> None:
        """Report, and tell where it is time to."""
        self._report(done, planned, what)
        if self.told or not planned or done <= self._first:
            return
        spent = time.monotonic() - self._began
        if spent < (SOON if self._ripe is None or self._ripe(done - self._first) else ENOUGH):
            return
        self.told = True
        share = self._share(done, planned)
        made = share - self._share(self._first, planned)
        left = spent * (1 - share) / made if made > 0 else 0.0
        counted = f"the first {done - self._first} of {planned - self._first} {self._unit} here"
        self._listener.expect(left, f"estimated from {counted}")


def _alike(done: int, planned: int) -> float:
    return done / planned
