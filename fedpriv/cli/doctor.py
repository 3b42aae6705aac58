"""The command ``doctor``."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

import fedpriv
from fedpriv.cli import common


@click.command()
@common.device_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default="results",
    show_default=True,
    help="Folder that results would go to.",
)
@common.common_options
def doctor(device: str, out: Path, as_json: bool, quiet: bool) -> int:
    """Look at what is installed and whether it works here; the output is what a bug report needs.

    Checks versions against their bounds, cores, memory and GPUs, and the output folder, and compares a gradient computed
    on the device with the CPU's. Exits with 1 where something failed.
    """
    found = fedpriv.doctor(device=device, out=out, listener=common.Terminal(quiet=quiet, as_json=as_json))
    if as_json:
        common.print_json({"verdict": found.verdict, "failed": bool(found.failed), "findings": found.table()})
    elif not quiet or found.failed:
        for finding in found.failed if quiet else found.findings:
            common.tell(str(finding))
        common.tell(found.verdict)
        common.say("for a bug report, paste all of this", quiet=quiet, as_json=False)
    return 1 if found.failed else 0
