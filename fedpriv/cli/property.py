"""The part of ``fedpriv attack`` that asks what a client holds: it returns scores, so it runs beside the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from fedpriv.cli import common
from fedpriv.cli.attack_plan import PROPERTY as NAME
from fedpriv.cli.attack_plan import AttackPlan, folder_name
from fedpriv.cli.membership import EVERYTHING
from fedpriv.errors import UserError

if TYPE_CHECKING:
    from fedpriv.cli.attack_execution import Ground


def measure_all(
    folder: Path, ground: Ground, plan: AttackPlan, *, command: str, named: bool, quiet: bool = False
) -> dict[Path, dict[str, Any]]:
    """Run the plan's inference on every stage, or read back what was saved; return the records by folder.

    Args:
        folder: holds a folder for each stage, or one named ``property``.
        ground: the run.
        plan: what to run; nothing where it has no inference.
        command: that does the same again; goes into the records.
        named: whether the user asked for it; unnamed, a run that leaves nothing to ask is passed over.
        quiet: show no progress.

    Raises:
        UserError: when it was named and the run leaves nothing to ask or to learn from.
    """
    if plan.properties is None:
        return {}
    from fedpriv.cli.attack_execution import stage_facts
    from fedpriv.config import plain
    from fedpriv.eval.evidence import gather
    from fedpriv.eval.property import FILE, evaluate, load_property, save_property
    from fedpriv.runs import dataset_title

    # The uploads are enough: no client's extractor is asked for, whatever the card would grant.
    run, federation = ground.run, ground.federation
    card = replace(plan.card, rounds_seen=1, extractor="none")
    found: dict[Path, dict[str, Any]] = {}
    for stage, number in plan.moments:
        home = folder / folder_name(NAME, stage)
        if (home / FILE).is_file():
            found[home] = load_property(home)
            continue
        with common.progress(f"{home.name} on {plan.target}", quiet=quiet):
            evidence = gather(run, federation, plan.target, card, n_targets=EVERYTHING, seed=plan.seed, round_=number)
            about = {
                "target": plan.target,
                "attack": NAME,
                "method": run.config.method,
                "dataset": dataset_title(run.config),
                "knowledge": plain(card),
                "seed": plan.seed,
                "options": plain(plan.properties),
                "stage": stage_facts(run, stage, number),
                "run": plain(run.config),
                "command": command,
            }
            try:
                found[home] = evaluate(plan.properties, evidence, federation, about, seed=plan.seed)
            except UserError as error:
                if named:
                    raise
                common.say(f"left out: {error}", quiet=quiet, as_json=True)
                continue
        save_property(home, found[home])
    return found


def show(records: Mapping[Path, Mapping[str, Any]]) -> None:
    """Print the table and the verdicts that a person reads."""
    from fedpriv.eval.property_report import row
    from fedpriv.eval.score_section import varying

    common.print_table(NAME, varying([row(record) for record in records.values()]), as_json=False)
    for path, record in records.items():
        click.echo(f"{path.name}: {record['verdict']}")
