"""``fedpriv data``: what each client would hold, before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rich_click as click

import fedpriv
from fedpriv.cli import common
from fedpriv.cli.federation_options import data_options
from fedpriv.util.folders import numbered


@click.command()
@data_options
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the picture and the table (default: results/data-DATASET).",
)
@click.option("--force", is_flag=True, help="Replace the folder if it exists.")
@common.common_options
@click.pass_context
def data(ctx: click.Context, /, out: Path | None, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Show what each client holds, as a table and a picture."""
    folder = out or numbered(Path("results") / f"data-{common.called(flags)}")
    found = fedpriv.data(out=folder, **common.given_values(ctx, flags))
    if as_json:
        common.print_json({"out": str(found.path), "clients": list(found.clients)})
    elif not quiet:
        rows = [_readable(row) for row in found.clients]
        common.print_table(f"{found.dataset}: who holds what", rows, as_json=False)
        common.tell(f"picture: {found.picture}")


def _readable(row: Mapping[str, Any]) -> dict[str, str]:
    def text(value: Any) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{name}: {number}" for name, number in value.items())
        return f"{value:.2f}" if isinstance(value, float) else str(value)

    return {name.replace("_", " "): text(value) for name, value in row.items()}
