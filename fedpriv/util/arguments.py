"""How messages spell the arguments of the public verbs: as Python's keywords, or on the command line as its flags."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final

Spelling = Callable[..., str]
"""Called with the name of an argument, and with what was given where the message shows it."""

_NOTHING: Final = object()


def in_python(name: str, value: Any = _NOTHING) -> str:
    """Return an argument as a Python call has it.

    >>> in_python("rounds_seen"), in_python("rounds_seen", 3), in_python("target", "prototype")
    ('rounds_seen', 'rounds_seen=3', "target='prototype'")
    """
    return name if value is _NOTHING else f"{name}={value!r}"


_spelling: ContextVar[Spelling] = ContextVar("spelling", default=in_python)


def argument(name: str, *value: Any) -> str:
    """Return an argument of a verb, with what was given where that is passed, as whoever reads the message wrote it.

    Args:
        name: the keyword of the verb.
        value: at most one.
    """
    return _spelling.get()(name, *value)


@contextlib.contextmanager
def spelled(spelling: Spelling) -> Iterator[None]:
    """Spell arguments in another way within the block: the command line, as flags."""
    before = _spelling.set(spelling)
    try:
        yield
    finally:
        _spelling.reset(before)
