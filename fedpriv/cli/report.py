"""``fedpriv report`` and ``fedpriv compare``: pages over results, and what changed between two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rich_click as click

import fedpriv
from fedpriv.cli import common
from fedpriv.cli.options import flags_of
from fedpriv.util.folders import numbered


@click.command()
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path))
@flags_of("reporting:report", without=("results",))
@click.option("--open", "opened", is_flag=True, help="Show the page in the browser when it is made.")
@common.common_options
def report(
    directories: tuple[Path, ...], out: Path | None, opened: bool, as_json: bool, quiet: bool, **flags: Any
) -> None:
    """Report on attack and run directories, studies, and folders that hold some of them (default folder: results/report).

    Attacks give report.html, report.md and results.csv: what leaked. Runs give runs.html, runs.md, runs.csv and
    pictures: accuracy by round and by communication, per client, and the prototypes that were uploaded.
    """
    listener = common.Terminal(quiet=quiet, as_json=True)
    folder = out or numbered(Path("results") / "report")
    written = fedpriv.report(directories, out=folder, listener=listener, **common.given_values(flags))
    if as_json:
        paths = {"attacks": written.attacks, "runs": written.runs}
        common.print_json(
            {"out": str(written.path), **{kind: list(map(str, current)) for kind, current in paths.items()}}
        )
    else:
        for page in written.pages:
            common.say(f"report: {page}", quiet=quiet)
    if opened and click.launch(written.pages[0].absolute().as_uri()):
        common.tell(f"warning: no browser could be started; open {written.pages[0]}", err=True)


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@common.common_options
def compare(before: Path, after: Path, as_json: bool, quiet: bool) -> None:
    """Say what changed between two results of attacks, or two studies, and which of it is more than noise."""
    result = fedpriv.compare(before, after)
    if as_json:
        common.print_json(asdict(result) | {"verdict": result.verdict})
        return
    if not quiet:
        common.print_table(f"{before} -> {after}", [_shown(row) for row in result.rows])
    common.tell(*str(result).splitlines()[-1 if quiet else 0 :])


def _shown(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a row in figures that can be read: an interval in brackets, accuracies in per cent."""
    digits, unit = (3, "") if row["quantity"] == "AUC" else (1, " dB")
    shown = {"result": row["name"], "quantity": row["quantity"] or ""}
    for name in ("before", "after"):
        shown[name] = "" if row[name] is None else f"{row[name]:.{digits}f}{unit}"
    difference = "" if row["difference"] is None else f"{row['difference']:+.{digits}f}"
    interval = "" if row["low"] is None else f" [{row['low']:+.{digits}f}, {row['high']:+.{digits}f}]"
    accuracies = [row[f"accuracy {when}"] for when in ("before", "after")]
    accuracy = " -> ".join("none" if item is None else f"{item:.1%}" for item in accuracies)
    return shown | {"difference [95 %]": difference + interval, "accuracy": accuracy, "verdict": row["verdict"]}
