"""``fedpriv data``: what each client would hold, before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rich_click as click

from fedpriv.cli import common
from fedpriv.cli.federation_options import data_options
from fedpriv.experiment.federation_settings import FLAG_NAMES, run_config
from fedpriv.util import folders


@click.command()
@data_options
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the picture and the table (default: results/data-DATASET).",
)
@click.option("--force", is_flag=True, help="Replace the folder if it exists.")
@common.common_options
def data(seed: int, download: bool, out: Path | None, force: bool, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Show what each client holds, as a table and a picture."""
    from fedpriv.datasets.holdings import draw_holdings, holdings_table
    from fedpriv.federation.rounds import load_data
    from fedpriv.util.files import write_json

    config = run_config("local", {name: flags[name] for name in FLAG_NAMES if name in flags}, seed)
    folder = out or folders.numbered(Path("results") / f"data-{config.dataset}")
    folders.refuse_overlap(folder, {}, around={"--data-dir": flags["data_dir"]})
    folders.check_free(folder, force=force)
    federated, _ = load_data(config, download=download)
    rows, picture = holdings_table(federated), folder / "holdings.png"
    with folders.output(folder, "data", force=force):
        write_json(folder / "about.json", {"dataset": config.dataset, "seed": seed, "clients": rows})
        draw_holdings(federated, picture)
    if as_json:
        common.print_json({"out": str(folder), "clients": rows})
    elif not quiet:
        common.print_table(f"{config.dataset}: who holds what", [_readable(row) for row in rows], as_json=False)
        click.echo(f"picture: {picture}")


def _readable(row: Mapping[str, Any]) -> dict[str, str]:
    def text(value: Any) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{name}: {number}" for name, number in value.items())
        return f"{value:.2f}" if isinstance(value, float) else str(value)

    return {name.replace("_", " "): text(value) for name, value in row.items()}
