"""``fedpriv list``, ``fedpriv explain`` and ``fedpriv doctor``: what there is, and whether it works here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, get_args

import rich_click as click

import fedpriv
from fedpriv.cli import common
from fedpriv.experiment.verbs.cataloguing import Kind
from fedpriv.util.escape import visible


@click.command(name="list")
@click.argument("kind", shell_complete=common.completed(lambda: get_args(Kind)))
@click.option("--target", help="With attacks: only those for this kind of upload.")
@click.option("--bibtex", is_flag=True, help="With methods: the papers behind them, as BibTeX.")
@common.common_options
def list_names(kind: Any, target: str | None, bibtex: bool, as_json: bool, quiet: bool) -> None:
    """List methods, attacks, defenses, datasets, models, kinds of payload, targets or claims."""
    result = fedpriv.catalogue(kind, target=target)
    rows = result.table()
    if bibtex:
        text = result.bibtex()
        common.print_json(text) if as_json else common.tell(*text.splitlines())
    elif as_json:
        common.print_json(rows)
    elif quiet:
        common.tell(*(row["name"] for row in rows))
    else:
        common.print_table(kind, rows)


def _names() -> Iterable[str]:
    """Return the names of members that are known without loading any."""
    from fedpriv.attacks import ATTACKS
    from fedpriv.datasets import DATASETS
    from fedpriv.defenses import DEFENSES
    from fedpriv.methods import METHODS
    from fedpriv.models import FAMILIES, MODELS

    return (*METHODS, *ATTACKS, *DEFENSES, *DATASETS, *MODELS, *FAMILIES)


@click.command()
@click.argument("name", shell_complete=common.completed(_names))
@common.common_options
def explain(name: str, as_json: bool, quiet: bool) -> None:
    """Say all there is to say of one method, attack, defense, kind of payload, data set, model or claim."""
    result = fedpriv.explain(name)
    if as_json:
        common.print_json(asdict(result))
    elif quiet:
        common.tell(*(f"{key}: {fact}" for key, fact in result.facts.items() if fact))
    else:
        common.tell(*visible(str(result)).splitlines())


@click.command()
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@common.common_options
def doctor(device: str, as_json: bool, quiet: bool) -> int:
    """Check installed versions, and compare a gradient computed on the device with the CPU's; for bug reports.

    Exits with 1 where something failed.
    """
    result = fedpriv.doctor(device=device)
    if as_json:
        common.print_json({"failed": bool(result.failed), "findings": result.table()})
    elif not quiet or result.failed:
        common.tell(*map(str, result.failed if quiet else result.findings))
    return 1 if result.failed else 0
