"""Sides of made-up comparisons, with figures that are known: they compute nothing, and import no torch."""

import os
import sys
from pathlib import Path

from fedpriv.experiment.benchmarks.contract import Case, Comparison, Goal, Side
from fedpriv.experiment.benchmarks.turns import MissingPeer

OURS, THEIRS = "benchmark_cases:ours", "benchmark_cases:theirs"
GOAL = Goal("at least 1.5 times the other", at_least=1.5)


def ours(settings, turns):
    """Two seconds a turn, and a line in the log of turns."""
    for _ in turns:
        turns.instead(cpu=2.0, wall=3.0)
        note(settings, "ours")


def theirs(settings, turns):
    """Four seconds a turn, then five, ..."""
    for place, _ in enumerate(turns):
        turns.instead(cpu=4.0 + place, wall=1.0)
        note(settings, "theirs")


def missing(settings, turns):
    """A peer that cannot be had."""
    raise MissingPeer("other: not importable; pip install other")


def failing(settings, turns):
    """Work that fails in its second turn."""
    for place, _ in enumerate(turns):
        if place == 1:
            raise ValueError("two lines\nof it")


def dying(settings, turns):
    """A process that ends."""
    turns.begin()
    os._exit(3)


def talking(settings, turns):
    """Work that prints."""
    for _ in turns:
        print("to standard output")
        print("to standard error", file=sys.stderr)


def note(settings, who):
    if "log" in settings:
        with Path(settings["log"]).open("a") as log:
            log.write(f"{who} {os.getpid()}\n")


def comparison(*sides, log=None, **changes):
    """A comparison of one case."""
    settings = {} if log is None else {"log": str(log)}
    made = tuple(Side(name, work, settings, units=10) for name, work in sides)
    known = {"unit": "targets", "pairs": 2, "goal": GOAL} | changes
    return Comparison("a made-up one", lambda asked: (Case("case", made, **known),))


PAIR = (("fedpriv", OURS), ("other", THEIRS))
