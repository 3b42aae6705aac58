"""An attack's time told beforehand: with that of the training before it where there is one, else from the run itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.experiment.probe import Probed, probed, together
from fedpriv.experiment.rehearsal import rehearsed
from fedpriv.util.listener import Listener, Report

if TYPE_CHECKING:
    from fedpriv.experiment.execution import AttackContext
    from fedpriv.experiment.plan import AttackPlan
    from fedpriv.federation.run_directory import RunConfig


class Foresight:
    """Tells a listener once how long attacks will take."""

    def __init__(self, listener: Listener, workers: int) -> None:
        self._listener, self._workers = listener, workers
        self._told = not listener.asks

    def while_training(self, configs: Sequence[RunConfig], plans: Sequence[AttackPlan]) -> Listener:
        """Return a listener for the training of runs, which adds to the time of the first that of all plans' attacks."""
        return _Adding(self._listener, lambda: self._of_attacks(configs, plans))

    def _of_attacks(self, configs: Sequence[RunConfig], plans: Sequence[AttackPlan]) -> tuple[float, str]:
        if self._told:
            return 0.0, "the attacks"
        self._told = True
        work = zip(configs, plans, strict=True)
        found = together([rehearsed(config, (plan,), download=plan.download) for config, plan in work])
        shared = f", shared by {self._workers} workers" if self._workers > 1 and found.timed else ""
        return found.with_workers(self._workers), self._basis(found) + shared

    def before_attacking(self, folder: Path, grounds: Sequence[AttackContext]) -> None:
        """Tell of the attacks of plans on runs that are there, unless it was told while these were trained.

        What ends within the probe is kept in the folder of the results.
        """
        if self._told:
            return
        self._told = True
        found = together([probed(folder, ground, ground.plan, self._listener.say) for ground in grounds])
        if found.timed:
            told = f"estimated from {self._basis(found)}"
            self._listener.expect(found.with_workers(self._workers), told, self._workers)

    def _basis(self, found: Probed) -> str:
        return found.basis if found.timed else "without the attacks, none of which could be timed"


class _Adding(Listener):
    """Hands everything on, and to the time that is expected it adds that of work that comes later."""

    def __init__(self, listener: Listener, later: Callable[[], tuple[float, str]]) -> None:
        self._listener, self._later = listener, later
        self.command = listener.command

    def progress(self, title: str) -> AbstractContextManager[Report]:
        return self._listener.progress(title)

    def say(self, line: str) -> None:
        self._listener.say(line)

    def warn(self, line: str) -> None:
        self._listener.warn(line)

    def resumable(self) -> None:
        self._listener.resumable()

    @property
    def asks(self) -> bool:
        return self._listener.asks

    def expect(self, seconds: float, basis: str, workers: int = 1) -> None:
        more, also = self._later()
        self._listener.expect(seconds + more, f"{basis} and {also}", workers)
