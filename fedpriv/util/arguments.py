"""The spelling of public verbs and their arguments in messages: as Python, or as commands and flags."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Final

from fedpriv.util.errors import shown

_NOTHING: Final = object()


class Spelling:
    """Spells verbs and arguments as Python has them."""

    def argument(self, name: str, value: Any = _NOTHING) -> str:
        """Return an argument as a Python call has it.

        >>> Spelling().argument("rounds_seen"), Spelling().argument("target", "prototype")
        ('rounds_seen', "target='prototype'")
        """
        return name if value is _NOTHING else f"{name}={shown(value)}"

    def call(self, verb: str, *given: Any, **named: Any) -> str:
        """Return a call of a verb.

        >>> Spelling().call("train", out="runs/a", resume=True)
        "fedpriv.train(out='runs/a', resume=True)"
        """
        return (
            f"fedpriv.{verb}({', '.join([*map(repr, given), *(f'{name}={value!r}' for name, value in named.items())])})"
        )


_spelling: ContextVar[Spelling] = ContextVar("spelling", default=Spelling())  # noqa: B039  # it has no state


def argument(name: str, *value: Any) -> str:
    """Return an argument of a verb, with what was given where that is passed, as whoever reads the message wrote it."""
    return _spelling.get().argument(name, *value)


def call(verb: str, *given: Any, **named: Any) -> str:
    """Return a call of a verb, as whoever reads the message would write it."""
    return _spelling.get().call(verb, *given, **named)


@contextlib.contextmanager
def spelled(spelling: Spelling) -> Iterator[None]:
    """Spell verbs and arguments in another way within the block."""
    before = _spelling.set(spelling)
    try:
        yield
    finally:
        _spelling.reset(before)
