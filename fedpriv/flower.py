"""Your own Flower app, recorded: one line in its server, and for audits one in its clients; or guarded in each client.

Needs Flower: ``pip install "fedpriv[flower]"``. Nothing of it is imported before it is used::

    app = ServerApp()

    @app.main()
    @fedpriv.flower.record("runs/mine")
    def main(grid, context): ...

Then: ``fedpriv attack --run runs/mine --target model``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

Main = Callable[..., Any]


def record(path: str | Path) -> Callable[[Main], Main]:
    """Record what the server of a Flower app sees; put it below ``@app.main()``.

    Messages pass unchanged. A fault of the recorder is told in one line on standard error, recording stops, and the app goes
    on.

    Args:
        path: folder of the recorded run, below the server's working directory.
    """
    from fedpriv.integrations.flower import recorded_main

    return lambda main: recorded_main(path, main)


def truth(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
    """Write down, on the client's side, which part of the data a node holds; a mod for audits: ``ClientApp(mods=[truth])``.

    Nothing is added to what is sent. One small file a node, in the folder that the environment variable ``FEDPRIV_TRUTH``
    names, or else in ``fedpriv-truth`` below the client's working directory.
    """
    from fedpriv.integrations.flower import note_truth

    note_truth(context)
    return call_next(message, context)


def guard(
    facts: Callable[[Any], Mapping[str, Any]],
    *,
    action: Literal["log", "drop"] = "log",
    also_inconclusive: bool = False,
) -> Callable[..., Any]:
    """Return a mod that attacks a client's update before it is sent: ``ClientApp(mods=[fedpriv.flower.guard(facts)])``.

    The verdict goes to standard error. Of other mods put it first: it then sees what they made of the update.

    Args:
        facts: function of the node's ``Context`` that returns the arguments of :func:`fedpriv.guard` but the upload.
        action: ``log``, or ``drop``: in the place of a leak an error is sent, which strategies leave out of the round.
        also_inconclusive: ``drop`` what was not decided too.
    """
    from fedpriv.integrations.flower import guarding_mod
    from fedpriv.integrations.guarding import Watch

    return guarding_mod(Watch(facts, action, also_inconclusive))
