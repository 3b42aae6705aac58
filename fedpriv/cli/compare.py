"""``fedpriv compare``: what changed between two results or studies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rich_click as click

import fedpriv
from fedpriv.cli import common


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@common.common_options
def compare(before: Path, after: Path, as_json: bool, quiet: bool) -> None:
    """Say what changed between two results of attacks, or two studies, and which of it is more than noise."""
    found = fedpriv.compare(before, after)
    if as_json:
        common.print_json(asdict(found) | {"verdict": found.verdict})
        return
    if not quiet:
        common.print_table(f"{before} -> {after}", [_shown(row) for row in found.rows], as_json=False)
    common.tell(*str(found).splitlines()[-1 if quiet else 0 :])


def _shown(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a row in figures that can be read: an interval in brackets, accuracies in per cent."""
    digits, unit = (3, "") if row["quantity"] == "AUC" else (1, " dB")
    shown = {"result": row["name"], "quantity": row["quantity"] or ""}
    for name in ("before", "after"):
        shown[name] = "" if row[name] is None else f"{row[name]:.{digits}f}{unit}"
    difference = "" if row["difference"] is None else f"{row['difference']:+.{digits}f}"
    interval = "" if row["low"] is None else f" [{row['low']:+.{digits}f}, {row['high']:+.{digits}f}]"
    shown["difference [95 %]"] = difference + interval
    accuracies = [row[f"accuracy {when}"] for when in ("before", "after")]
    shown["accuracy"] = " -> ".join("none" if one is None else f"{one:.1%}" for one in accuracies)
    return shown | {"verdict": row["verdict"]}
