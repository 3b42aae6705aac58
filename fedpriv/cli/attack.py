"""``fedpriv attack``: invert what clients upload, and show what that is worth beside a blind guess."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click

import fedpriv
from fedpriv.cli import common
from fedpriv.cli.attack_summary import show
from fedpriv.cli.federation_options import data_options, training_options
from fedpriv.util.folders import numbered


@click.command()
@click.option("--target", required=True, help="Kind of upload to attack: fedpriv list targets.")
@click.option(
    "--attack",
    "attacks",
    multiple=True,
    metavar="NAME",
    help="Only this attack (repeat for more); default: all that fit.",
)
@click.option(
    "--run",
    type=click.Path(path_type=Path),
    help="A finished run of fedpriv train, or a recorded one; default: train one first.",
)
@click.option(
    "--facts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Of a recorded run: what only its owner knows, in TOML (default: RUN.toml beside it).",
)
@click.option("--method", help="Method to train when there is no --run (default: the usual one for the target).")
@click.option("--targets", type=int, help="How many targets at most (default: 48, or 6 where each is a long search).")
@click.option("--round", type=int, help="Attack the uploads of this round (default: the last stored).")
@click.option(
    "--reach",
    metavar="SETTING,...",
    help="Sweep of local work behind the upload: images of one step (4), epoch; or none "
    "(default: 1,4,16,epoch for trained weights, without --run and flags of local work).",
)
@click.option(
    "--rounds-seen", type=int, help="Rounds of uploads that attacks across rounds use (default: all that are stored)."
)
@click.option(
    "--knowledge",
    multiple=True,
    metavar="GRANT=VALUE",
    help="Change the knowledge card: extractor, labels, batch, batch_norm, attacker_data, foreign.",
)
@click.option("--iterations", type=int, help="Budget of every attack that has one, in its own unit.")
@click.option(
    "--budget",
    "budget",
    metavar="N,N,...",
    help="Run every attack that has a budget once with each, for a curve: 100,300,1000,3000.",
)
@click.option("--restarts", type=int, help="Independent starts a target; the attack's own objective chooses.")
@click.option(
    "--attack-option",
    multiple=True,
    metavar="[ATTACK.]KEY=VALUE",
    help="A hyperparameter of every attack that has it, or of one.",
)
@click.option(
    "--chunk-rows",
    type=int,
    help="Rows (targets x restarts) at a time; bounds memory, moves results in the last digits at most.",
)
@click.option(
    "--control/--no-control",
    default=True,
    show_default=True,
    help="Also attack shuffled uploads (the negative control); with --budget at the largest only.",
)
@data_options
@training_options
@common.device_option
@common.arithmetic_options
@common.workers_option
@click.option("--out", type=click.Path(path_type=Path), help="Folder to make (default: results/TARGET).")
@click.option("--resume", is_flag=True, help="Go on with an interrupted attack in --out; repeat the other flags.")
@click.option("--force", is_flag=True, help="Replace the folder if it exists.")
@click.option("--verbose", is_flag=True, help="All columns, and a paragraph on each attack.")
@common.redact_option
@common.share_option
@common.common_options
@click.pass_context
def attack(
    ctx: click.Context, /, target: str, out: Path | None, verbose: bool, as_json: bool, quiet: bool, **flags: Any
) -> None:
    """Attack one kind of upload; write image grids, tables and a report.

    Without --run a federation is trained first. Where --rounds, --lr, --batch-size, --local-steps and --models are not
    given, it takes quick settings of the target instead of the defaults below, and prints them. Uploads of trained weights
    are then attacked at several settings of local work (--reach).
    """
    folder = out or numbered(Path("results") / target)
    listener = common.Terminal(quiet=quiet, as_json=as_json, resume=_resume_command(folder, out))
    result = fedpriv.attack(target=target, out=folder, listener=listener, **common.given_values(ctx, flags))
    show(result, as_json=as_json, quiet=quiet, verbose=verbose)


def _resume_command(folder: Path, out: Path | None) -> str:
    return common.command_line(*common.anew(), *(() if out else ("--out", folder)), "--resume")
