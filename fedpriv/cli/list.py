"""``fedpriv list``: what there is, without importing any of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from fedpriv.cli import common
from fedpriv.util.errors import UserError, unknown_name

if TYPE_CHECKING:
    from fedpriv.attacks.observation import Needs

KINDS = ("methods", "attacks", "defenses", "datasets", "models", "targets")


@click.command(name="list")
@click.argument("kind")
@click.option("--target", help="With attacks: only those for this kind of upload.")
@common.common_options
def list_names(kind: str, target: str | None, as_json: bool, quiet: bool) -> None:
    """List methods, attacks, defenses, datasets, models or targets."""
    if kind not in KINDS:
        raise unknown_name("list", kind, KINDS)
    if target is not None and kind != "attacks":
        raise UserError(f"--target {target}: only goes with: fedpriv list attacks")
    rows = {
        "methods": _methods,
        "attacks": lambda: _attacks(target),
        "defenses": _defenses,
        "datasets": _datasets,
        "models": _models,
        "targets": _targets,
    }[kind]()
    if as_json:
        common.print_json(rows)
    elif quiet:
        click.echo("\n".join(row["name"] for row in rows))
    elif rows:
        common.print_table(kind, rows, as_json=False)
    else:
        click.echo(f"no {kind} yet")


def _methods() -> list[dict[str, Any]]:
    from fedpriv.federation.method import Method
    from fedpriv.methods import METHODS
    from fedpriv.util.registry import resolve

    found: list[Method] = [resolve("method", name, METHODS) for name in METHODS]
    return [
        {
            "name": method.name,
            "uploads": ", ".join(method.uploads) or "nothing",
            "broadcasts": ", ".join(method.broadcasts) or "nothing",
            "models": "one architecture" if method.homogeneous else "any",
            "source": method.source,
        }
        for method in found
    ]


def _attacks(target: str | None) -> list[dict[str, Any]]:
    from fedpriv.attacks import ATTACKS, TARGET_NAMES, TARGETS, attacks_for
    from fedpriv.attacks.observation import needs_on
    from fedpriv.util.registry import resolve

    if target is not None and target not in TARGET_NAMES:
        raise unknown_name("target", target, TARGET_NAMES)
    names = attacks_for(target) if target else tuple(ATTACKS)
    found = {name: resolve("attack", name, ATTACKS)() for name in names}
    return [
        {
            "name": name,
            **({} if target else {"targets": ", ".join(TARGETS[name])}),
            "needs from the knowledge card": _needs(needs_on(made, target), getattr(made, "needs_in_words", "nothing")),
            "one target is": _UNITS[getattr(made, "unit", None)],
            "budget": f"{made.budget}={getattr(made, made.budget)}" if made.budget else "none",
        }
        for name, made in found.items()
    ]


_UNITS = {
    "upload": "an upload, or a row of it",
    "class": "a class of a client",
    "row": "a row of an upload, cleaned first",
    None: "a candidate image or a class, which gets a score",
}
"""What one target of an attack is, by its unit; attacks without one return no images."""


def _needs(needs: Needs, otherwise: str) -> str:
    wanted = {
        "extractor": " or ".join(needs.extractor),
        "labels": " or ".join(needs.labels),
        "batch": "known" if needs.batch else "",
        "attacker_data": " or ".join(needs.attacker_data),
    }
    told = [f"{grant}={value}" for grant, value in wanted.items() if value]
    told += [f"at least {needs.min_rounds} rounds"] if needs.min_rounds > 1 else []
    return ", ".join(told) or otherwise


def _defenses() -> list[dict[str, Any]]:
    from fedpriv.defenses import DEFENSES
    from fedpriv.federation.answer import answer_sentence
    from fedpriv.federation.defense import Defense
    from fedpriv.util.registry import resolve

    found: list[type[Defense]] = [resolve("defense", name, DEFENSES) for name in DEFENSES]
    return [
        {
            "name": made.name,
            "guarantee": made.guarantee,
            "adaptive answer": answer_sentence(made.answers, made.unanswered),
            "source": made.source,
        }
        for made in found
    ]


def _datasets() -> list[dict[str, Any]]:
    from fedpriv.datasets import DATASETS

    notes = {
        "digits": "embedded, 1,797 images of 8x8",
        "tiny-imagenet": "--data-dir with tiny-imagenet-200/ in its original layout",
        "folder": "--data-dir with train/ and test/, or one folder a class",
    }
    return [{"name": name, "where": notes.get(name, "--data-dir, or --download")} for name in DATASETS]


def _models() -> list[dict[str, Any]]:
    from fedpriv.models import FAMILIES, MODELS

    single = [{"name": name, "kind": "model", "members": ""} for name in MODELS]
    return [
        {"name": name, "kind": "family", "members": ", ".join(members)} for name, members in FAMILIES.items()
    ] + single


def _targets() -> list[dict[str, Any]]:
    from fedpriv.attacks import READ, TARGET_NAMES, attacks_for
    from fedpriv.methods import DEFAULT_METHOD

    return [
        {
            "name": name,
            "attacks": ", ".join(attacks_for(name)) or (f"none: {READ[name]}" if name in READ else "none yet"),
            "method trained without --run": DEFAULT_METHOD.get(name, "none yet"),
        }
        for name in TARGET_NAMES
    ]
