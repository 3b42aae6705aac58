"""``fedpriv list``: what there is."""

from __future__ import annotations

from typing import Any, get_args

import rich_click as click

import fedpriv
from fedpriv.cli import common
from fedpriv.experiment.verbs.cataloguing import Kind


@click.command(name="list")
@click.argument("kind", shell_complete=common.completed(lambda: get_args(Kind)))
@click.option("--target", help="With attacks: only those for this kind of upload.")
@click.option("--bibtex", is_flag=True, help="With methods: the papers behind them, as BibTeX.")
@common.common_options
def list_names(kind: Any, target: str | None, bibtex: bool, as_json: bool, quiet: bool) -> None:
    """List methods, attacks, defenses, datasets, models, kinds of payload, metrics, targets or claims."""
    found = fedpriv.catalogue(kind, target=target)
    rows = found.table()
    if bibtex:
        text = found.bibtex()
        common.print_json(text) if as_json else common.tell(*text.splitlines())
    elif as_json:
        common.print_json(rows)
    elif quiet:
        common.tell(*(row["name"] for row in rows))
    elif rows:
        common.print_table(kind, rows, as_json=False)
    else:
        common.tell(f"no {kind} yet")
