"""Your own Flower app, recorded: one line in its server, and for audits one in its clients.

Needs Flower: ``pip install "fedpriv[flower]"``. Nothing of it is imported before it is used::

    app = ServerApp()

    @app.main()
    @fedpriv.flower.record("runs/mine")
    def main(grid, context): ...

Then: ``fedpriv attack --run runs/mine --target model``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
