"""The exception that means "the user can mend this", and what it echoes."""

from __future__ import annotations

import contextlib
import difflib
import reprlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

from fedpriv.util.escape import one_line

LONGEST_WORD: Final = 300  # characters without a blank that a message may hold: longer than most paths
LONGEST_LINE: Final = 2000  # characters of a message: beyond every message that lists all known names


class UserError(Exception):
    """Wrong use or bad input: one line that says what is wrong, where, and what would be right; exit code 2.

    ``keys`` is the setting that is wrong, from the outside in, where it is known: ``("server", "epochs")``.
    """

    def __init__(self, message: str, *, keys: tuple[str | int, ...] = ()) -> None:
        super().__init__(short_line(message))
        self.keys = keys


class WorkError(Exception):
    """Work that failed through no mistake of the user, in one line; the command line exits with code 1."""

    def __init__(self, message: str) -> None:
        super().__init__(short_line(message))


def first_line(error: BaseException) -> str:
    """Return the first line of what an error of somebody else's code says, or its kind where it says nothing."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def short_line(text: str) -> str:
    r"""Return a text as one line that a terminal can show; of a long word or line the middle is left out.

    >>> short_line("a\nb \x1b[31m"), len(short_line("x" * 10_000)) < 300
    ('a b \\x1b[31m', True)
    """
    words = (_shortened(word, 100) if len(word) > LONGEST_WORD else word for word in one_line(text).split(" "))
    return _shortened(" ".join(words), LONGEST_LINE)


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]}...({len(text):,} characters)...{text[-(most // 4) :]}"


class _Shown(reprlib.Repr):
    """``repr`` of anything, bounded in length and depth before it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlong, self.maxstring, self.maxother = 4, 60, 200, 200
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 12

    def repr_int(self, x: int, level: int) -> str:
        """Return a whole number; of one that is too long to be printed, its size."""
        return f"a whole number of {x.bit_length():,} bits" if x.bit_length() > 256 else repr(x)

    def repr_instance(self, x: Any, level: int) -> str:
        """Return the words an object has for itself; of one that fails at that, its type."""
        try:
            return _shortened(repr(x), self.maxother)
        except Exception:  # another package's __repr__ may raise anything
            return f"<{type(x).__name__}>"


_SHOWN: Final = _Shown()


def shown(value: Any) -> str:
    """Return a value that a user gave as an error echoes it: ``repr``, at most some hundred characters long.

    >>> shown("VAP"), shown([0.1, 1]), len(shown("x" * 10_000)) < 300, shown(1 << 9999)
    ("'VAP'", '[0.1, 1]', True, 'a whole number of 10,000 bits')
    """
    return short_line(_SHOWN.repr(value))


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UserError:
    """Return the error for a name that no registry holds, with the known names and the nearest one."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1) if isinstance(name, str) else []
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return UserError(f"unknown {kind} {shown(name)}{hint} known: {', '.join(names) or 'none'}")


@contextlib.contextmanager
def blaming(*keys: str | int) -> Iterator[None]:
    """Name the setting that a :class:`UserError` in the block is about, where it does not name one itself."""
    try:
        yield
    except UserError as error:
        error.keys = error.keys or keys
        raise
