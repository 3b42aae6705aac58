"""One line of a diagnosis, and how a check becomes one whatever it runs into."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: of the thing: ``torch``, ``device``, ``data: digits``.
        status: ``ok``; ``warning`` where work goes on but something may surprise; ``failed`` where work fails.
        told: one line for people. It holds no path of theirs and no name of their machine.
        facts: the same for programs, as JSON has it.
    """

    name: str
    status: Status
    told: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.status:<7}  {self.name}: {self.told}"


Check = Callable[[], Finding]


def found_by(name: str, check: Check) -> Finding:
    """Return the finding of a check; one that breaks, in whatever way, has failed and says why."""
    try:
        found = check()
    except Exception as error:
        found = Finding(name, "failed", f"{type(error).__name__}: {error}")
    return replace(found, told=private(" ".join(found.told.split())))


def private(text: str) -> str:
    """Return a text without the paths of the user's home and the current folder, and without this machine's name.

    >>> private(f"{Path.home()}/results/a")
    '~/results/a'
    """
    places = {".": Path.cwd(), "~": Path.home()}
    known = {str(path): sign for sign, own in places.items() for path in (own, own.resolve()) if path != path.parent}
    for path in sorted(known, key=len, reverse=True):
        text = text.replace(path, known[path])
    host = platform.node()
    return text.replace(host, "this machine") if len(host) > 3 and host != "localhost" else text
