"""``fedpriv report``: one page over attack directories, one over run directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click

import fedpriv
from fedpriv.cli import common
from fedpriv.util.folders import numbered


@click.command()
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the report (default: results/report, or index in the folder).",
)
@click.option("--target-accuracy", type=float, help="For runs: the cost of reaching it (default: 0.7).")
@click.option(
    "--target-of", help="Which accuracy that is: pooled over test images (default), or the mean over clients."
)
@click.option("--index", is_flag=True, help="Instead: a page over all that the folders hold, an entry for each result.")
@click.option("--strict", is_flag=True, help="Refuse what is unfinished (run, suite, study) or damaged; default: warn.")
@click.option("--force", is_flag=True, help="Replace the folder if it exists.")
@click.option("--open", "opened", is_flag=True, help="Show the page in the browser when it is made.")
@common.redact_option
@common.share_option
@common.common_options
def report(
    directories: tuple[Path, ...],
    out: Path | None,
    index: bool,
    opened: bool,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> None:
    """Report on attack and run directories, studies, and folders that hold some of them.

    Attacks give report.html, report.md and results.csv: what leaked. Runs give runs.html, runs.md, runs.csv and
    pictures: accuracy by round and by communication, per client. With --index
    the folders are searched to any depth, and index.html has an entry for each result: what it found, and its own page.
    """
    place = _index_of(directories[0]) if index else Path("results") / "report"
    written = fedpriv.report(
        directories,
        out=out or numbered(place),
        index=index,
        listener=common.Terminal(quiet=quiet, as_json=True),
        **flags,
    )
    if as_json:
        shown = {"attacks": written.attacks, "runs": written.runs}
        common.print_json(
            {"out": str(written.path), **{kind: [str(path) for path in paths] for kind, paths in shown.items()}}
        )
    else:
        for page in written.pages:
            common.say(f"report: {page}", quiet=quiet, as_json=False)
    if opened and click.launch(written.pages[0].absolute().as_uri()):
        common.tell(f"warning: no browser could be started; open {written.pages[0]}", err=True)


def _index_of(folder: Path) -> Path:
    """Return where the index of a folder goes: into it, or where results are by default if it is a result itself."""
    from fedpriv.experiment.result_folders import holds
    from fedpriv.experiment.results_folder import REQUEST

    result = holds(folder) is not None or (folder / REQUEST).is_file()
    return Path("results") / "index" if result else folder / "index"
