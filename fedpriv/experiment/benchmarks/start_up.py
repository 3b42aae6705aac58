"""Seconds before anything is computed: commands that only tell, beside the import of torch, and a study's fixed cost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from fedpriv.experiment.benchmarks.contract import Asked, Case, Comparison, Goal, Side
from fedpriv.experiment.benchmarks.running_commands import run_command, run_python
from fedpriv.experiment.benchmarks.turns import Turns

_HERE = "fedpriv.experiment.benchmarks.start_up"

TELLING = (["--help"], ["list", "methods"], ["list", "attacks"])
CELLS = 4
"""Cells of the larger of two studies."""


def _cases(asked: Asked) -> tuple[Case, ...]:
    pairs = 5 if asked.full else 3
    telling = tuple(
        Case(
            name=f"fedpriv {' '.join(arguments)}",
            sides=(
                Side("fedpriv", f"{_HERE}:command", {"arguments": arguments}, anew=True),
                Side("import torch", f"{_HERE}:import_torch", anew=True),
            ),
            faster=False,
            pairs=pairs,
        )
        for arguments in TELLING
    )
    study = Case(
        name="fixed cost of a study",
        sides=(Side("fedpriv", f"{_HERE}:fixed_cost_of_a_study", {"seed": asked.seed}, anew=True),),
        pairs=3 if asked.full else 1,
        goal=Goal("under 3 seconds", at_most=3.0),
    )
    return (*telling, study)


COMPARISON = Comparison("commands that only tell, beside the import of torch; a study's fixed cost", _cases)


def command(settings: dict[str, Any], turns: Turns) -> None:
    """Run a command once a turn."""
    for _ in turns:
        turns.instead(**run_command(settings["arguments"], Path(settings["scratch"])))


def import_torch(settings: dict[str, Any], turns: Turns) -> None:
    """Start Python and import torch once a turn."""
    for _ in turns:
        turns.instead(**run_python(["-c", "import torch"], Path(settings["scratch"])))


def fixed_cost_of_a_study(settings: dict[str, Any], turns: Turns) -> None:
    """Run a study of one tiny cell and one of several, and tell what is left of the first without its cell."""
    folder = Path(settings["scratch"])
    for _ in turns:
        one, many = _study(1, settings["seed"], folder), _study(CELLS, settings["seed"], folder)
        turns.instead(**{clock: one[clock] - (many[clock] - one[clock]) / (CELLS - 1) for clock in ("cpu", "wall")})


def _study(cells: int, seed: int, folder: Path) -> dict[str, float]:
    """Return the seconds of a study of so many seeds of one tiny cell."""
    seeds = ",".join(str(seed + number) for number in range(cells))
    small = ["--dataset", "digits", "--per-class", "20", "--clients", "2", "--rounds", "1", "--models", "small-cnn"]
    attacks = ["--attacks", "pixels:iterations=2", "--targets", "2", "--no-control", "--no-local"]
    told = run_command(
        ["audit", "--methods", "fedgh", "--seeds", seeds, *small, *attacks, "--quiet", "--out", f"study-{cells}"],
        folder,
    )
    shutil.rmtree(folder / f"study-{cells}")
    return told
