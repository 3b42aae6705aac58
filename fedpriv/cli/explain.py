"""``fedpriv explain``: one member in full."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import rich_click as click

import fedpriv
from fedpriv.cli import common
from fedpriv.util.escape import visible


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
    """Say all there is to say of one method, attack, defense, kind of payload, metric, data set, model or claim."""
    found = fedpriv.explain(name)
    if as_json:
        common.print_json(asdict(found))
    elif quiet:
        common.tell(*(f"{key}: {told}" for key, told in found.facts.items() if told))
    else:
        _print(visible(str(found)))


def _print(text: str) -> None:
    """Print Markdown: laid out on a terminal, as it is everywhere else."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(highlight=False)
    if console.is_terminal:
        console.print(Markdown(text, hyperlinks=False))
    else:
        common.tell(*text.splitlines())
