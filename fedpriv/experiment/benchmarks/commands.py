"""Whole commands: the one that the first page names, and the default suite of every kind of upload."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from fedpriv.experiment.benchmarks.contract import QUICK, Asked, Case, Comparison, Goal, Side
from fedpriv.experiment.benchmarks.running_commands import run_command
from fedpriv.experiment.benchmarks.turns import Turns

_WORK = "fedpriv.experiment.benchmarks.commands:attack"

CORES = 2
"""Cores of the machine that the goals are about."""

TARGETS = (
    *("representation", "prototype", "entangled", "angle-matrix", "logits", "kernel", "public-logits"),
    *("model", "small-model", "classifier", "extractor", "low-rank-model"),
)
"""Kinds of upload that some attack is on."""


def _case(target: str, asked: Asked, pairs: int, at_most: float) -> Case:
    few = [] if asked.full else ["--targets", "2", "--iterations", "10", "--rounds", "2"]
    arguments = ["attack", "--target", target, "--device", asked.device, "--seed", str(asked.seed), "--quiet", *few]
    return Case(
        name=target,
        sides=(Side("fedpriv", _WORK, {"arguments": arguments}, anew=True),),
        clock="wall seconds",
        device=asked.device,
        pairs=pairs,
        goal=Goal(f"under {at_most:g} seconds of wall time on two cores", at_most=at_most, cores=CORES),
        smaller="" if asked.full else QUICK,
    )


def _main_command(asked: Asked) -> tuple[Case, ...]:
    return (_case("entangled", asked, 3 if asked.full else 1, 100.0),)


def _suites(asked: Asked) -> tuple[Case, ...]:
    return tuple(_case(target, asked, 1, 180.0) for target in (TARGETS if asked.full else ("representation", "model")))


MAIN_COMMAND = Comparison(
    "fedpriv attack --target entangled, training included, as a user runs it", _main_command, on_gpu=True
)
SUITES = Comparison(
    "the default suite of every kind of upload, training included (quick: two of them)", _suites, on_gpu=True
)


def attack(settings: dict[str, Any], turns: Turns) -> None:
    """Run a command once a turn."""
    folder = Path(settings["scratch"])
    for _ in turns:
        turns.instead(**run_command([*settings["arguments"], "--out", "out"], folder))
        shutil.rmtree(folder / "out")
