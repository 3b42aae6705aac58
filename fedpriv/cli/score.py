"""``fedpriv score``: score a saved reconstruction again, without attacking again."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

import fedpriv
from fedpriv.cli import common
from fedpriv.cli.attack_summary import show_attacks, verdict_json


@click.command()
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--seed", type=int, help="Seed of floors and decoys (default: the attack's own).")
@click.option(
    "--metric", "metrics", multiple=True, metavar="MODULE:NAME", help="A measure of your own (repeat for more)."
)
@common.redact_option
@common.share_option
@common.common_options
def score(
    directories: tuple[Path, ...],
    seed: int | None,
    metrics: tuple[str, ...],
    redact: str | None,
    share_group: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Score attack directories again; rewrites metrics.json and the image grid.

    Membership and property inference are not scored again: they store no scores of single candidates.
    """
    listener = common.Terminal(quiet=quiet, as_json=True)
    records = fedpriv.score(
        directories, seed=seed, metrics=metrics, redact=redact, share_group=share_group, listener=listener
    )
    if quiet and not as_json:
        return
    from fedpriv.scoring.judgement import judge_page

    verdicts = judge_page(records)
    if as_json:
        common.print_json(
            {
                str(path): {**record.model_dump(mode="json"), "verdict": verdict_json(verdicts[path])}
                for path, record in records.items()
            }
        )
    else:
        show_attacks(records, verdicts, with_folder=True)
