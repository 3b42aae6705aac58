"""Lines on the parts of a suite of attacks that are left out: told, and kept."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.util.listener import Listener


class Notices:
    """Tells a listener of what is left out, and keeps it.

    Attributes:
        listener: hears of it.
        lines: one for each thing that is left out, and why.
    """

    def __init__(self, listener: Listener, reasons: Sequence[str]) -> None:
        self.lines: list[str] = []
        self.listener = listener
        for reason in reasons:
            self.left_out(reason)

    def left_out(self, reason: str) -> None:
        """Take a reason, which names the part."""
        self.lines.append(f"left out: {reason}")
        self.listener.say(self.lines[-1])
