"""The one exception that means "the user can mend this"."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator


class UserError(Exception):
    """Wrong use or bad input.

    The message is one line that says what is wrong, where, and what would be right. The command line prints it
    without a traceback and exits with code 2.

    Attributes:
        keys: the setting that is wrong, by name and from the outside in, where whoever raises knows it:
            ``("alpha",)``, ``("server", "epochs")``.
    """

    def __init__(self, message: str, *, keys: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.keys = keys


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for a name that no registry holds, with the known names and the nearest one."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return UserError(f"unknown {kind} {name!r}{hint} known: {', '.join(names) or 'none'}")


@contextlib.contextmanager
def blaming(*keys: str | int) -> Iterator[None]:
    """Name the setting that a :class:`UserError` in the block is about, where it does not name one itself."""
    try:
        yield
    except UserError as error:
        error.keys = error.keys or keys
        raise
