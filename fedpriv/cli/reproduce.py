"""``fedpriv reproduce``: a claim of a paper put to the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click

import fedpriv
from fedpriv.cli import common


@click.command()
@click.argument("claim")
@click.option(
    "--scale",
    default="cpu",
    show_default=True,
    help="smoke: seconds, on data of the package; cpu: about an hour on two cores; paper: the paper's setting.",
)
@click.option("--row", "rows", multiple=True, metavar="NAME", help="Try only this row (repeat for more).")
@click.option("--column", "columns", multiple=True, metavar="NAME", help="Try only this column (repeat for more).")
@click.option("--seeds", metavar="N,N,...", help="Of the runs (default: the scale's).")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Folder of the data sets in their original layouts.")
@click.option(
    "--images",
    multiple=True,
    metavar="DATA=FOLDER",
    help="A folder of images, one folder a class, in place of a data set of the paper, such as CIFAR-10=DIR.",
)
@click.option("--download/--no-download", default=False, help="Fetch data sets that are missing.")
@common.device_option
@common.arithmetic_options
@common.workers_option
@click.option("--out", type=click.Path(path_type=Path), help="Folder to make (default: claims/CLAIM-SCALE).")
@click.option("--force", is_flag=True, help="Replace the folder if it exists.")
@common.redact_option
@common.common_options
@click.pass_context
def reproduce(
    ctx: click.Context,
    /,
    claim: str,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> int:
    """Put a claim of a paper to the test: our figure beside the paper's, a floor, and a verdict with an interval.

    CLAIM is a name of: fedpriv list claims, or a TOML file (docs/reproducing.md). Repeating the command goes on where it
    stopped.
    """
    given = common.given_values(ctx, flags)
    scale = flags["scale"]
    folder = out or Path("claims") / f"{Path(claim).stem}-{scale}"
    again = common.command_line(*common.anew(), *(() if out else ("--out", folder)))
    listener = common.Terminal(quiet=quiet, as_json=as_json, resume=again)
    result = fedpriv.reproduce(claim, out=folder, listener=listener, **given)
    if as_json:
        common.print_json(
            {"out": str(result.path), "page": str(result.page), "card": result.card.model_dump(mode="json")}
        )
        return 0
    from fedpriv.pages.claim_card import headline

    for line in result.card.left_out:
        common.say(f"left out: {line}", quiet=quiet, as_json=False)
    common.tell(f"{result.card.verdict}: {headline(result.card)}")
    for one in result.card.statements:
        common.tell(f"{one.verdict}: {one.text}" + (f" ({one.why})" if one.why else ""))
    common.say(f"card: {result.page}", quiet=quiet, as_json=False)
    return 1 if result.study is not None and result.study.failed else 0
