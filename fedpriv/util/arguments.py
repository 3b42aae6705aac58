"""The spelling of options and commands in messages: an option is called as its keyword, in the shell too."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from fedpriv.util.errors import shown
from fedpriv.util.escape import shell_word

_NOTHING: Final = object()


def argument(name: str, value: Any = _NOTHING) -> str:
    """Return an option of a verb, with its value where that is passed.

    >>> argument("rounds_seen"), argument("target", "prototype")
    ('rounds_seen', "target='prototype'")
    """
    return name if value is _NOTHING else f"{name}={shown(value)}"


def command_line(*parts: str | Path) -> str:
    """Return a command that can be pasted into a shell.

    >>> command_line("report", "my runs")
    "fedpriv report 'my runs'"
    """
    return " ".join(["fedpriv", *(shell_word(str(part)) for part in parts)])


def call(verb: str, *given: Any, **named: Any) -> str:
    """Return a call of a verb, for records.

    >>> call("train", out="runs/a", resume=True)
    "fedpriv.train(out='runs/a', resume=True)"
    """
    return f"fedpriv.{verb}({', '.join([*map(repr, given), *(f'{name}={value!r}' for name, value in named.items())])})"
