"""``fedpriv audit-dp``: is the epsilon true that somebody claims?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

import fedpriv
from fedpriv.cli import common
from fedpriv.cli.federation_options import data_options, training_options
from fedpriv.util.folders import numbered

if TYPE_CHECKING:
    from fedpriv.experiment.verbs.privacy_auditing import PrivacyAudit


@click.command(name="audit-dp")
@click.option(
    "--run",
    type=click.Path(path_type=Path),
    help="A run of fedpriv train whose settings are audited, in place of the flags below; or a recorded run.",
)
@click.option(
    "--facts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Of a recorded run: what only its owner knows, in TOML (default: RUN.toml beside it).",
)
@click.option("--method", help="A name of: fedpriv list methods (default: fedavg).")
@click.option("--canaries", type=int, default=1000, show_default=True, help="How many, each in or not by a coin.")
@click.option(
    "--confidence", type=float, default=0.95, show_default=True, help="That no bound is above the true epsilon."
)
@click.option(
    "--claim",
    multiple=True,
    metavar="KEY=VALUE",
    help="What is claimed, in place of what the defense says: epsilon, delta, unit, of, neighbours, gaussian, bound.",
)
@click.option("--claimant", metavar="NAME", help="Whose claim, where several defenses make one.")
@data_options
@training_options
@common.device_option
@click.option("--out", type=click.Path(path_type=Path), help="Folder to make (default: results/audit-dp).")
@click.option("--force", is_flag=True, help="Replace the folder if it exists.")
@common.common_options
@click.pass_context
def audit_dp(ctx: click.Context, /, out: Path | None, as_json: bool, quiet: bool, **flags: Any) -> None:
    """Put a claimed epsilon to the test: what canaries show of it, beside the claim and beside what clip and noise imply.

    Canaries pass what --defense does; how many of their coins are told from what the server sees bounds epsilon from below.
    A claim below the bound is contradicted. With too few canaries the verdict is: not tested hard enough.
    """
    folder = out or numbered(Path("results") / "audit-dp")
    again = common.command_line(*common.anew(), *(() if out else ("--out", folder)))
    listener = common.Terminal(quiet=quiet, as_json=as_json, resume=again)
    found = fedpriv.audit_dp(out=folder, listener=listener, **common.given_values(ctx, flags))
    if as_json:
        common.print_json({"out": str(found.path), **found.record.model_dump(mode="json")})
        return
    _print(found, quiet=quiet)


def _print(found: PrivacyAudit, *, quiet: bool) -> None:
    from fedpriv.dp.verdict import figure

    record = found.record
    if not quiet:
        rows = [{"": "claimed", "epsilon": "nothing" if record.claim is None else figure(record.claim.epsilon)}]
        if record.claim is not None and record.claim.implied is not None:
            rows.append({"": "clip and noise imply", "epsilon": figure(record.claim.implied)})
        rows += [{"": f"at least, {one.name}", "epsilon": figure(one.epsilon)} for one in record.bounds]
        title = f"{record.defense} on {record.method}, delta {record.delta:g}, {100 * record.confidence:g} % confidence"
        common.print_table(title, rows, as_json=False)
    common.tell(record.sentence)
    for line in record.notices:
        common.say(line, quiet=quiet, as_json=False)
    common.say(f"kept in {found.path}", quiet=quiet, as_json=False)
