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
    from fedpriv.eval.membership import FILE
    from fedpriv.eval.report import write_report

    members = [path for given in directories for path in (given, given / "membership") if (path / FILE).is_file()]
    images = tuple(path for path in directories if not (path / FILE).is_file())
    only_members = [path for path in images if path / "membership" in members and not _holds_images(path)]
    found = attack_directories(tuple(path for path in images if path not in only_members))
    folder = out or common.numbered(Path("results") / "report")
    common.fresh_folder(folder, force=force)
    write_report(found, folder, members)
    if as_json:
        common.print_json({"out": str(folder), "attacks": [str(path) for path in (*found, *members)]})
    else:
        common.say(f"report: {folder / 'report.html'}", quiet=quiet, as_json=False)


def _holds_images(path: Path) -> bool:
    from fedpriv.eval.storage import is_attack_directory

    return any(is_attack_directory(inside) for inside in (path, *path.iterdir()))
