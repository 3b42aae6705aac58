"""A job for processes."""

import os
import signal

from fedpriv.util.registry import allowed


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
