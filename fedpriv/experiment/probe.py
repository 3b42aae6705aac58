"""The time that attacks will take, from their own first iterations at their true sizes: begun, timed and broken off.

An attack that ends before it is broken off has done its work: that is kept, so a probe of what is short costs nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from fedpriv.util.errors import UserError

if TYPE_CHECKING:
    from fedpriv.attacks.infer.contract import Inference
    from fedpriv.experiment.execution import AttackContext
    from fedpriv.experiment.plan import AttackPlan, Job

STEADY = 0.4
"""Seconds between two iterations from which the others' time is known."""
MOST = 2.0
"""Seconds after which one attack is broken off, wherever it is."""
COMPUTED = 0.8
"""Seconds of computing after which it is broken off at its next unit: fewer than :data:`MOST` unless the machine is busy."""
PATIENT = 20.0
"""The same where an answer is waited for."""
TRIED, MORE = 20, 5
"""The part of a search's usual iterations that is tried first, and times as many where that is too short to be timed."""
CLEAR = 0.1
"""Share of a trial's seconds by which another has to take longer for the difference to be believed."""
_LEAST = 1e-6
"""Seconds that an iteration takes at least."""
AGAIN = 0.1
"""Seconds after which it is tried again where a module was being imported."""
ALTOGETHER = 4.0
"""Seconds after which no further attack is begun."""


class Enough(BaseException):
    """Breaks an attack off; nothing that handles errors may keep it."""


@dataclass(frozen=True)
class Probed:
    """The time that attacks will take.

    Attributes:
        seconds: one after another, without their scoring.
        longest: seconds of the longest.
        timed: how many were timed.
        of: how many there are; those that were not timed are taken for the mean of those that were.
        spent: seconds of the probe.
    """

    seconds: float = 0.0
    longest: float = 0.0
    timed: int = 0
    of: int = 0
    spent: float = 0.0

    def with_workers(self, number: int) -> float:
        """Return the seconds that so many processes take."""
        return max(self.longest, self.seconds / max(1, number))

    @property
    def basis(self) -> str:
        """The work from which the time was estimated, in words."""
        some = f"{self.timed} of {self.of}" if self.timed < self.of else f"{self.of}"
        noun = "attack" if self.of == 1 else "attacks"
        return f"the first iterations of {some} {noun} here, at full budget and without scoring"


def together(found: Sequence[Probed]) -> Probed:
    """Return the time that several plans take."""
    return Probed(
        sum(one.seconds for one in found),
        max((one.longest for one in found), default=0.0),
        sum(one.timed for one in found),
        sum(one.of for one in found),
        sum(one.spent for one in found),
    )


def _on() -> bool:
    """Go on: nobody waits for the probe to end."""
    return False


def probed(
    folder: Path,
    ground: AttackContext,
    plan: AttackPlan,
    say: Callable[[str], None],
    over: Callable[[], bool] = _on,
) -> Probed:
    """Return the time that a plan's attacks will take on a run.

    Args:
        folder: of the results; what ends early is kept there, as an interrupted attack would keep it.
        ground: the run.
        plan: what will run.
        say: told what attacks have to say that end early.
        over: whether the estimate comes too late; then nothing more is begun.
    """
    began, times, number = time.monotonic(), [], 0
    for begin, repeats in _works(folder, ground, plan, say):
        number += 1
        if time.monotonic() - began < ALTOGETHER and not over():
            with contextlib.suppress(UserError), _generators_kept():  # what is wrong, the work itself will say
                seconds = extrapolated(begin, over)
                times += [] if seconds is None else [seconds * repeats]
    mean = sum(times) / len(times) if times else 0.0
    spent = time.monotonic() - began
    return Probed(mean * number, max(times, default=0.0), len(times), number, spent)


@dataclass(frozen=True)
class Timed:
    """The seconds of a search, by its parts.

    Attributes:
        training: of what is trained once for a run.
        start: of what comes with every search, however few its iterations.
        step: of an iteration, in all its stages.
    """

    training: float
    start: float
    step: float


def timed(folder: Path, ground: AttackContext, plan: AttackPlan, job: Job) -> Timed | None:
    """Return the seconds of a job and its control; None where it takes too long to be known.

    The search is made from end to end with few iterations: the first ones of a search of several stages are of the first
    stage. Once more with as few, all is trained; and with more, until the difference is clear.

    Args:
        folder: scratch, which the caller removes: nothing of a trial is a result.
        ground: the run.
        plan: of the suite.
        job: to time; its attack has a budget.
    """
    repeats = 1 + (job.control and ground.evidence_for(job).permuted is not None)
    usual = int(getattr(job.attack, str(job.attack.budget)))
    tried = itertools.count()

    def took(iterations: int) -> float | None:
        small = replace(job, attack=replace(job.attack, **{str(job.attack.budget): iterations}))
        begin = _attack(folder / f"{job.folder}-{next(tried)}", ground, plan, small, lambda _: None)
        return _to_the_end(begin, PATIENT)

    with _generators_kept():
        parts = _parts(took, usual)
        if parts is None:  # a few iterations take long: they are broken off, and may be of the first stage alone
            begin = _attack(folder / job.folder, ground, plan, job, lambda _: None)
            seconds = extrapolated(begin, most=PATIENT)
            parts = None if seconds is None else Timed(0.0, 0.0, seconds / usual)
    return None if parts is None else Timed(parts.training, repeats * parts.start, repeats * parts.step)


def _parts(took: Callable[[int], float | None], usual: int) -> Timed | None:
    """Return the parts of a search's seconds, by what it took with some iterations; None where that is too long.

    >>> _parts(lambda iterations: 1.5 + 0.25 * iterations, 300)
    Timed(training=0.0, start=1.5, step=0.25)
    """
    first = took(1)
    least = None if first is None else took(1)
    if first is None or least is None:
        return None
    iterations = max(2, usual // TRIED)
    while (more := took(iterations)) is not None:
        if more - least >= max(STEADY, CLEAR * least) or iterations >= usual:
            step = max(_LEAST, (more - least) / (iterations - 1))
            found = (first - least, least - step, step)
            return Timed(*(round(max(0.0, part), 9) for part in found))
        iterations = min(usual, MORE * iterations)
    return None


def _to_the_end(begin: Begin, most: float) -> float | None:
    """Return the seconds of some work; None where it was broken off."""
    began = time.monotonic()
    try:
        with _limited(most):
            begin(lambda *_: None)
    except Enough:
        return None
    return time.monotonic() - began


Begin = Callable[[Callable[..., None]], Any]
"""Work to begin: called with what it reports its progress to."""


def _works(
    folder: Path, ground: AttackContext, plan: AttackPlan, say: Callable[[str], None]
) -> Iterator[tuple[Begin, int]]:
    """Yield what is to be begun, and how often it will be done."""
    from fedpriv.scoring.storage import holds_scores, is_attack_directory

    for job in plan.jobs():
        if not is_attack_directory(folder / job.folder):
            evidence = ground.evidence_for(job)
            yield (
                _attack(folder / job.folder, ground, plan, job, say),
                1 + (job.control and evidence.permuted is not None),
            )
    for name, inference in plan.inferences.items():
        for stage, number in plan.moments:
            if inference.asks == "classes" and not holds_scores(folder / plan.folder(name, stage)):
                yield _inference(ground, plan, inference, number), 1


def _attack(directory: Path, ground: AttackContext, plan: AttackPlan, job: Job, say: Callable[[str], None]) -> Begin:
    from fedpriv.experiment.suite import Execution, attack_in_pieces
    from fedpriv.util.manifest import mark

    evidence, device = ground.evidence_for(job), ground.federation.server.device

    def begin(progress: Callable[..., None]) -> None:
        heard: list[str] = []
        execution = Execution(
            plan.seed,
            device,
            plan.chunk_rows,
            kind=plan.target,
            trained=ground.trained,
            say=heard.append,
            redact=plan.redact,
            numerics=plan.numerics,
        )
        mark(directory, "attack")
        asked = (evidence.observations, evidence.targets, evidence.knowledge)
        attack_in_pieces(job.attack, *asked, execution, directory, "reconstruction", progress)
        for line in heard:
            say(line)

    return begin


def _inference(ground: AttackContext, plan: AttackPlan, inference: Inference, number: int | None) -> Begin:
    from fedpriv.experiment.inference import case_of
    from fedpriv.scoring.property import pose

    def begin(progress: Callable[..., None]) -> None:
        problem, _, _ = pose(inference, case_of(ground, plan, inference, number))
        inference(replace(problem, progress=progress))

    return begin


def extrapolated(begin: Begin, over: Callable[[], bool] = _on, most: float = MOST) -> float | None:
    """Begin work, break it off, and return the seconds that all of it would take; None where two units took too long."""
    began, computed, seen = time.monotonic(), time.process_time(), []

    def progress(done: int, planned: int, *_: object) -> None:
        now = time.monotonic() - began
        seen.append((now, done, planned))
        steady = now - seen[0][0] >= STEADY or time.process_time() - computed >= COMPUTED
        if over() or (done > seen[0][1] and steady):  # the first report holds what comes before any unit
            raise Enough

    try:
        with _limited(most):
            begin(progress)
    except Enough:
        return _whole(seen)
    return time.monotonic() - began


def _whole(seen: list[tuple[float, int, int]]) -> float | None:
    """Return the seconds of all units, by the line through the first and the last report.

    >>> _whole([(2.0, 1, 100), (3.0, 11, 100)])
    11.9
    """
    if not seen or seen[-1][1] <= seen[0][1]:
        return None
    (first, before, _), (last, done, planned) = seen[0], seen[-1]
    return first + (last - first) / (done - before) * (planned - before)


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Break off also what reports nothing, where the system can: in the main thread, with no other timer at work."""
    alone = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if not alone or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if _importing(frame):  # a module that is left half imported stays so for good
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        else:
            raise Enough

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _importing(frame: FrameType | None) -> bool:
    """True where a module is being imported, by the frames above."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def _generators_kept() -> Iterator[None]:
    """Leave the process's own generators as they were; ours are made for each use anyway."""
    import torch

    with torch.random.fork_rng():
        yield
