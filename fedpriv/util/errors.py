"""The one exception that means "the user can mend this"."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Wrong use or bad input.

    The message is one line that says what is wrong, where, and what would be right. The command line prints it
    without a traceback and exits with code 2.
    """


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for a name that no registry holds, with the known names and the nearest one."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return UserError(f"unknown {kind} {name!r}{hint} known: {', '.join(names) or 'none'}")
