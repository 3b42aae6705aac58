"""``fedpriv doctor``: what is installed, and whether it works on this machine."""

from __future__ import annotations

from dataclasses import asdict
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

    Checks versions against their bounds, devices, memory, the embedded data and the output folder, and compares a small
    attack on the device with the CPU's. Exits with 1 where something failed.
    """
    found = fedpriv.doctor(device=device, out=out, listener=common.Terminal(quiet=quiet, as_json=as_json))
    if as_json:
        findings = [asdict(one) for one in found.findings]
        common.print_json({"verdict": found.verdict, "failed": bool(found.failed), "findings": findings})
    elif not quiet or found.failed:
        for one in found.findings:
            if not quiet or one.status == "failed":
                common.tell(str(one))
        common.tell(found.verdict)
        common.say("for a bug report, paste all of this", quiet=quiet, as_json=False)
    return 1 if found.failed else 0
