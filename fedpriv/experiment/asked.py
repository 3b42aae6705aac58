"""Attacks and their plan, made of a verb's settings; runs and uploads from elsewhere share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedpriv.experiment.plan import AttackPlan, build_attacks, options_by_attack, parse_budgets
from fedpriv.scoring.redaction import read_rule
from fedpriv.util.arguments import argument
from fedpriv.util.device import pick_device
from fedpriv.util.errors import UserError
from fedpriv.util.numerics import Numerics, read_numerics

if TYPE_CHECKING:
    import torch

    from fedpriv.attacks.observation import KnowledgeCard
    from fedpriv.federation.run_directory import RunConfig


def with_settings(
    names: Sequence[str], settings: Mapping[str, Any], beneath: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return attacks by name as settings of a verb make them, and the budgets that each is run with.

    Args:
        names: of attacks.
        settings: of the verb.
        beneath: options by attack where the settings give none.

    Raises:
        UserError: naming the argument or the option that is wrong.
    """
    budgets, iterations = parse_budgets(settings.get("budget")), settings.get("iterations")
    if iterations is not None and budgets:
        both = f"{argument('iterations')} and {argument('budget')} exclude each other"
        raise UserError(f"{both}: {argument('budget')} lists the iterations")
    given, restarts = settings.get("attack_option", ()), settings.get("restarts")
    options = options_by_attack(names, given, iterations=iterations, restarts=restarts, budgets=budgets)
    return build_attacks(names, {name: {**beneath.get(name, {}), **own} for name, own in options.items()}), budgets


def plan_of(
    target: str,
    chosen: Mapping[str, Any],
    card: KnowledgeCard,
    budgets: tuple[int, ...],
    settings: Mapping[str, Any],
    **more: Any,
) -> AttackPlan:
    """Return the plan of attacks and inferences, with what settings of a verb say of how they are run."""
    return AttackPlan(
        target=target,
        attacks={name: made for name, made in chosen.items() if made.result == "images"},
        inferences={name: made for name, made in chosen.items() if made.result == "scores"},
        card=card,
        n_targets=settings.get("targets"),
        rounds_seen=settings.get("rounds_seen"),
        budgets=budgets,
        control=settings.get("control", True),
        chunk_rows=settings.get("chunk_rows"),
        redact=read_rule(settings.get("redact")),
        **more,
    )


def numerics_of(settings: Mapping[str, Any], device: torch.device) -> Numerics:
    """Return the arithmetic that ``precision`` and ``compile`` among the settings ask for on a device.

    Raises:
        UserError: for what the device cannot do.
    """
    return read_numerics(settings.get("precision", "float32"), device, compiled=bool(settings.get("compile", False)))


def refuse_kind(target: str, config: RunConfig, *, download: bool) -> None:
    """Check before a run is trained that its clients will upload a kind.

    Raises:
        UserError: naming what they upload.
    """
    from fedpriv.experiment.federation import prepare
    from fedpriv.methods import METHODS

    kinds = METHODS.load(config.method).uploads
    if config.defenses:  # which may put another kind in the place of one
        kinds = prepare(config, pick_device("cpu"), download=download).uploads
    if target not in kinds:
        sent = ", ".join(kinds) or "nothing"
        where = argument("target", target)
        raise UserError(f"{where}: clients of {config.method!r} upload no {target!r}; they upload: {sent}")
