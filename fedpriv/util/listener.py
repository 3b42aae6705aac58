"""Listeners to long work: progress, notices, and the moment from which it could be resumed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

Report = Callable[[int, int, str], None]
"""Called with (units done, units planned, what is being done)."""


class Listener:
    """Hears of the work and shows nothing; a command line or a notebook overrides what it wants to show.

    Attributes:
        command: what was typed to start the work, for the records; None where a verb was called from Python.
    """

    command: str | None = None

    def progress(self, title: str) -> AbstractContextManager[Report]:
        """Follow one piece of work; entering gives what the work calls as it advances."""
        return contextlib.nullcontext(lambda done, planned, what: None)

    def say(self, line: str) -> None:
        """Hear a notice that a person should see and that is no result."""

    def warn(self, line: str) -> None:
        """Hear of something that the results lack, which nobody should miss."""
        self.say(f"warning: {line}")

    def resumable(self) -> None:
        """Hear that from now on an interrupt loses nothing: the folder is there, and the work in it can be resumed."""


SILENT = Listener()
