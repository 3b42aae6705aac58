"""The part of ``fedpriv attack`` that asks who was a member: it returns scores, not images, so it runs beside the others."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from fedpriv.cli import common
from fedpriv.errors import UserError

if TYPE_CHECKING:
    from fedpriv.attacks.membership import MembershipInference
    from fedpriv.attacks.observation import KnowledgeCard
    from fedpriv.cli.attack_execution import AttackPlan
    from fedpriv.federation import Federation
    from fedpriv.runs import RunDirectory

NAME = "membership"
EVERYTHING = 10**9
"""Targets asked for, so that evidence covers every client."""


def requested(
    names: tuple[str, ...], named: tuple[str, ...], own: Mapping[str, Any], card: KnowledgeCard
) -> MembershipInference | None:
    """Return the inference to run, or None where it is not among the attacks or, unnamed, lacks a grant.

    Its own options are taken only where it is the only attack; the others' do not apply to it.

    Raises:
        UserError: for a bad option, or a missing grant where the attack was named.
    """
    if NAME not in names:
        return None
    from fedpriv.attacks.membership import MembershipInference
    from fedpriv.config import parse

    made = parse(MembershipInference, own if names == (NAME,) else {}, f"options of attack {NAME}")
    try:
        made.needs.refuse(NAME, card)
    except UserError:
        if NAME in named:
            raise
        return None
    return made


def measure(
    folder: Path,
    run: RunDirectory,
    federation: Federation,
    made: MembershipInference,
    plan: AttackPlan,
    *,
    quiet: bool,
) -> dict[str, Any]:
    """Run the inference, or read back what was saved, and return its record."""
    card = replace(plan.card, rounds_seen=1)
    from fedpriv.config import plain
    from fedpriv.eval.evidence import gather
    from fedpriv.eval.membership import FILE, evaluate, load_membership, save_membership
    from fedpriv.runs import dataset_title

    if (folder / NAME / FILE).is_file():
        return load_membership(folder / NAME)
    with common.progress(f"{NAME} on {plan.target}", quiet=quiet):
        evidence = gather(run, federation, plan.target, card, n_targets=EVERYTHING, seed=plan.seed, round_=plan.round)
        about = {
            "target": plan.target,
            "attack": NAME,
            "method": run.config.method,
            "dataset": dataset_title(run.config),
            "knowledge": plain(card),
            "seed": plan.seed,
            "options": plain(made),
            "command": common.command_line(*sys.argv[1:]),
        }
        record = evaluate(made, evidence, federation, about, seed=plan.seed)
    save_membership(folder / NAME, record)
    return record


def show(record: Mapping[str, Any]) -> None:
    """Print the table and the verdict that a person reads."""
    from fedpriv.eval.membership_report import row

    common.print_table("membership", [row(record)], as_json=False)
    click.echo(f"{NAME}: {record['verdict']}")
