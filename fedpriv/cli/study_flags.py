"""The flags of ``fedpriv audit`` that describe a study, and the source they make: alone, or over a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from fedpriv.cli.federation_options import data_options, training_options
from fedpriv.experiment.study.grammar import split_entries
from fedpriv.util.errors import UserError
from fedpriv.util.pairs import key_values

if TYPE_CHECKING:
    from fedpriv.experiment.study.entries import Study

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
        "--attacks", multiple=True, metavar="NAME[:KEY=VALUE,...],...", help="Default: all that fit and are granted."
    ),
    click.option("--seeds", multiple=True, metavar="N,N,...", help="Of training, targets and attacks (default: 0)."),
    click.option(
        "--axis",
        multiple=True,
        metavar="KEY=VALUE,VALUE,...",
        help="Vary a setting or an option: alpha=0.1,1, methods.fedre.mechanism=VAP,VAR (repeat for a grid).",
    ),
    click.option("--targets", type=int, help="How many targets a cell at most (default: 48)."),
    click.option("--knowledge", multiple=True, metavar="GRANT=VALUE", help="Change the knowledge card."),
    click.option("--stages", multiple=True, metavar="NAME,...", help="Also attack early, middle, converged stages."),
    click.option("--rounds-seen", type=int, help="Rounds of uploads that attacks across rounds use."),
    click.option("--control/--no-control", default=None, help="Also attack permuted uploads (default: yes)."),
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


def study_of(path: Path | None, flags: Mapping[str, Any], given: set[str]) -> Study:
    """Return the study that a file and flags describe together; flags win.

    Args:
        path: the file, or None.
        flags: every flag's value.
        given: names of the flags that the user set.

    Raises:
        UserError: when the file cannot be read, a flag is not written as it should be, or the study is wrong somewhere.
    """
    from fedpriv.experiment.study.definition import overridden, parse_axes, read_file
    from fedpriv.experiment.study.grid import parse_study
    from fedpriv.experiment.study.origin import Origin

    found = {name: _plain(flags[name]) for name in flags if name in given}
    for name in ("methods", "defenses", "attacks", "stages"):
        if name in found:
            found[name] = [entry for text in flags[name] for entry in split_entries(text)]
    if found.get("attacks") == ["all"]:
        found["attacks"] = "all"
    if "seeds" in found:
        found["seeds"] = _whole_numbers(flags["seeds"])
    if "knowledge" in found:
        found["knowledge"] = key_values(flags["knowledge"], "--knowledge")
    if "axis" in found:
        found["axes"] = parse_axes(found.pop("axis"))
    return parse_study(overridden(Origin({}) if path is None else read_file(path), found))


def _whole_numbers(texts: Sequence[str]) -> list[int]:
    try:
        return [int(part) for text in texts for part in text.split(",")]
    except ValueError as error:
        raise UserError(
            f"--seeds {','.join(texts)}: expected whole numbers with commas between, such as 0,1,2"
        ) from error


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
