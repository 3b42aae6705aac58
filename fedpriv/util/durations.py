"""Times in words."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> [duration(seconds) for seconds in (7.2, 200, 9000)]
    ['7 s', '3 min', '2.5 h']
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
