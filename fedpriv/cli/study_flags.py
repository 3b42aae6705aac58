"""The flags of ``fedpriv audit`` that describe a study."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import rich_click as click

from fedpriv.cli.federation_options import data_options, training_options

F = TypeVar("F", bound=Callable[..., Any])

STUDY_OPTIONS = (
    click.option(
        "--methods", multiple=True, metavar="NAME[:KEY=VALUE,...],...", help="What to train (default: fedre)."
    ),
    click.option(
        "--defenses",
        multiple=True,
        metavar="NAME[:KEY=VALUE/VALUE,...],...",
        help="none, defenses, A+B for B behind A; 0.1/1 makes a grid (default: none).",
    ),
    click.option(
        "--attacks",
        multiple=True,
        metavar="NAME[:KEY=VALUE,...],...",
        help="Default: all that fit and are granted; none: train only.",
    ),
    click.option("--seeds", multiple=True, metavar="N,N,...", help="Of training, targets and attacks (default: 0)."),
    click.option(
        "--axis",
        "axes",
        multiple=True,
        metavar="KEY=VALUE,VALUE,...",
        help="Vary a setting or an option: alpha=0.1,1, methods.fedre.mechanism=VAP,VAR (repeat for a grid).",
    ),
    click.option("--targets", type=int, help="How many targets a cell at most (default: 48)."),
    click.option("--knowledge", multiple=True, metavar="GRANT=VALUE", help="Change the knowledge card."),
    click.option("--rounds-seen", type=int, help="Rounds of uploads that attacks across rounds use."),
    click.option("--control/--no-control", default=None, help="Also attack permuted uploads (default: yes)."),
    click.option(
        "--local/--no-local", default=None, help="Also train the clients without any exchange (default: yes)."
    ),
)


def study_options(command: F) -> F:
    """Add the flags that describe a study."""
    before = len(_parameters(command))
    for option in reversed(STUDY_OPTIONS):
        command = option(command)
    command = data_options(training_options(command))
    added = _parameters(command)[before:]
    # A study has seeds, defenses with grids, and options by method.
    kept = [parameter for parameter in added if parameter.name not in ("seed", "defense", "option")]
    command.__click_params__ = [*_parameters(command)[:before], *kept]  # type: ignore[attr-defined]
    return command


def _parameters(command: Any) -> list[click.Parameter]:
    found: list[click.Parameter] = getattr(command, "__click_params__", [])
    return found
