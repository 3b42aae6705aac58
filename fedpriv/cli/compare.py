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
@click.option("--out", type=click.Path(path_type=Path), help="Folder for a page: intervals drawn, pictures of both.")
@click.option("--force", is_flag=True, help="Replace the folder if it exists.")
@common.redact_option
@common.common_options
def compare(before: Path, after: Path, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Say what changed between two results of attacks, or two studies, and which of it is more than noise.

    With --out also as a page, comparison.html: settings that differ, a drawn interval for each result, and pictures of
    both where both attacked the same images.
    """
    found = fedpriv.compare(before, after, **flags)
    if as_json:
        page = None if found.page is None else str(found.page)
        common.print_json(asdict(found) | {"verdict": found.verdict, "page": page})
        return
    if not quiet:
        common.print_table(f"{before} -> {after}", [_shown(row) for row in found.rows], as_json=False)
    if found.page is not None:
        common.say(f"page: {found.page}", quiet=quiet, as_json=False)
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
