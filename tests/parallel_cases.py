"""Jobs for processes, and an attack that fails wherever it runs."""

import os
import signal
from dataclasses import dataclass

from fedpriv.attacks.inversion.vector import PixelInversion
from fedpriv.util.registry import allowed


@dataclass(frozen=True, kw_only=True)
class Failing(PixelInversion):
    name = "failing"
    summary = "fails"

    def run(self, problem):
        raise ArithmeticError("no way")


def square(number, relay):
    """A job; 13 is killed, 17 goes wrong."""
    if number == 13:
        relay.tell("about to be killed")
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 17:
        raise ArithmeticError("no way")
    with relay.progress(f"square of {number}") as report:
        report(1, 2, "half")
    assert allowed() <= {"mine"}
    relay.tell(number)
    relay.say(f"{number} is done")
    return number * number, os.getpid()
