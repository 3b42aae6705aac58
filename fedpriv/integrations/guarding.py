"""The guard within a client of Flower or NVFlare: an update is judged before it is sent. A fault of it harms no training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor

import fedpriv
from fedpriv.integrations.recorder import plain_sets, to_stderr
from fedpriv.util.errors import UserError, short_line, shown

Action = Literal["log", "drop"]
Facts = Callable[[Any], Mapping[str, Any]]
"""Returns the arguments of :func:`fedpriv.guard` but the upload: ``model``, ``images``, ``labels``, ``batch``, ``held_out``.
Where not weights are sent, ``upload`` too: a function of the arrays before and after, by name, that returns a payload."""


@dataclass(frozen=True)
class Watch:
    """A guard of one client: ``log`` says the verdict, ``drop`` withholds what leaks (by option, what was not decided)."""

    facts: Facts
    action: Action = "log"
    also_inconclusive: bool = False

    def __post_init__(self) -> None:
        if self.action not in get_args(Action):
            raise UserError(f"action={shown(self.action)}: expected log or drop")

    def withholds(self, context: Any, before: Mapping[str, Any], after: Mapping[str, Any], added: bool = False) -> bool:
        """Judge arrays by name that a client was sent and sends, say the verdict, and return whether it withholds them.

        What is sent may be ``added`` to what it was sent.
        """
        try:
            given = dict(self.facts(context))
            old, new = plain_sets({"before": before, "after": after})[0].values()
            if not new:
                raise UserError("the answer holds no weights by name")
            new = {name: old[name] + value for name, value in new.items()} if added else new
            upload = given.pop("upload", lambda *both: _update(given["model"], *both))
            result = fedpriv.guard(upload(old, new), **given)
            status, text = str(result.status), str(result)
        except Exception as error:  # whatever it is, it is no verdict
            status, text = "inconclusive", f"guard: inconclusive ({short_line(f'{type(error).__name__}: {error}')})"
        withheld = self.action == "drop" and (status == "leak" or (self.also_inconclusive and status == "inconclusive"))
        to_stderr(text + ("\nnothing is sent" if withheld else ""))
        return withheld


def _update(model: Any, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Any:
    """Return an update of a model; arrays without its names are taken in the order of its ``state_dict``."""
    names = list(model.state_dict())
    sides = (one if names[0] in one else dict(zip(names, one.values(), strict=True)) for one in (before, after))
    return fedpriv.Update(*sides)
