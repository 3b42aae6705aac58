"""A process that is one side of a case: ``python -m fedpriv.experiment.benchmarks.worker MODULE:FUNCTION SETTINGS``.

SETTINGS are JSON. By standard input comes a word a turn, by standard output a line of JSON after it (:mod:`.turns`):
``{"cpu": seconds, "wall": seconds}``, and where the turn is counted ``operations``; ``{"missing": why}`` or ``{"failed":
why}`` in place of the first or a later one.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

from fedpriv.experiment.benchmarks.turns import MissingPeer, Over, Turns
from fedpriv.experiment.processes import own_output
from fedpriv.util.garbage import spare_imports


def main() -> None:
    """Work turn by turn until no more are wanted."""
    spare_imports()
    work, settings = sys.argv[1], json.loads(sys.argv[2])
    _quiet(Path(settings["scratch"]))
    asked = os.fdopen(os.dup(0), encoding="utf-8")
    turns = Turns(asked, own_output(), settings.get("device", "cpu"))
    module, _, name = work.partition(":")
    try:
        getattr(importlib.import_module(module), name)(settings, turns)
    except Over:
        return
    except MissingPeer as error:
        turns.tell({"missing": " ".join(str(error).split())})
    except Exception as error:
        if os.environ.get("FEDPRIV_DEBUG"):
            raise
        turns.tell({"failed": " ".join(f"{type(error).__name__}: {error}".split())})


def _quiet(scratch: Path) -> None:
    """Keep what libraries print out of the terminal of whoever compares them."""
    with (scratch / "printed.txt").open("ab") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())


if __name__ == "__main__":
    main()
