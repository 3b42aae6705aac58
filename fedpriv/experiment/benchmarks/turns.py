"""The turns of a side, as its work takes them: told when to begin, measured, and told when it is over."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any, TextIO

WARM, COUNT, MEASURE = "warm", "count", "measure"
"""Words that begin a turn: one that is not measured, one whose operations are counted, one that is measured."""


class Over(BaseException):
    """No more turns are wanted. It is no :class:`Exception`, so nothing that retries or reports failures takes it."""


class MissingPeer(Exception):
    """Another side cannot be had here; the message says in one line why, and what to install."""


class Turns:
    """Turns of a side.

    Args:
        asked: lines of words, of which each begins a turn.
        said: takes a line of JSON a turn.
        device: ``cpu`` or ``cuda``; on a GPU a turn ends when the device has done its work.
    """

    def __init__(self, asked: TextIO, said: TextIO, device: str = "cpu") -> None:
        self._asked, self._said, self._device = asked, said, device
        self._counting = contextlib.ExitStack()
        self._counter: Any = None
        self._cpu = self._wall = 0.0
        self._word, self._part = "", 1.0
        self._instead: dict[str, float] = {}

    def __iter__(self) -> Iterator[None]:
        while True:
            self.begin()
            yield
            self.end()

    def part_of(self, steps: int) -> int:
        """Return the steps to take in this turn: all, or of one that is not measured a few, which tell of all."""
        few = steps if self._word == MEASURE else max(1, min(steps, steps // 5))
        self._part = few / steps
        return few

    def begin(self) -> None:
        """Wait for the next turn, and start the clocks.

        Raises:
            Over: where none comes.
        """
        word = self._asked.readline().strip()
        if not word:
            raise Over
        self._word, self._part, self._instead = word, 1.0, {}
        if word == COUNT:
            from torch.utils.flop_counter import FlopCounterMode

            self._counter = self._counting.enter_context(FlopCounterMode(display=False))
        self._settle()
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def instead(self, **figures: float) -> None:
        """Tell these figures of this turn beside, or in place of, what its clocks say."""
        self._instead = figures

    def end(self) -> None:
        """Stop the clocks and tell of the turn."""
        self._settle()
        told: dict[str, float] = {"cpu": time.process_time() - self._cpu, "wall": time.perf_counter() - self._wall}
        told |= self._instead
        if self._counter is not None:
            self._counting.close()
            told["operations"], self._counter = self._counter.get_total_flops() / self._part, None
        self.tell(told)

    def tell(self, told: dict[str, Any]) -> None:
        """Say a line."""
        print(json.dumps(told), file=self._said, flush=True)

    def _settle(self) -> None:
        if self._device != "cpu":
            import torch

            torch.cuda.synchronize()
