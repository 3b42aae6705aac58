"""``fedpriv report``: one page over one or more attack directories."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from fedpriv.cli import common
from fedpriv.cli.score import attack_directories


@click.command()
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the report (default: results/report).")
@click.option("--force", is_flag=True, help="Replace the folder if it exists.")
@common.common_options
def report(directories: tuple[Path, ...], out: Path | None, force: bool, as_json: bool, quiet: bool) -> None:
    """Write report.html, report.md and results.csv over attack directories (or folders that hold some)."""
    from fedpriv.eval.report import write_report

    found = attack_directories(directories)
    folder = out or common.numbered(Path("results") / "report")
    common.fresh_folder(folder, force=force)
    write_report(found, folder)
    if as_json:
        common.print_json({"out": str(folder), "attacks": [str(path) for path in found]})
    else:
        common.say(f"report: {folder / 'report.html'}", quiet=quiet, as_json=False)
