"""The attacks of a suite that nobody named, as adapted to the defenses of a run: an attacker who knows them uses that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from fedpriv.attacks import ATTACKS, attacks_for
from fedpriv.federation.answer import answers_for

if TYPE_CHECKING:
    from fedpriv.federation.summary import DefenseFacts


@dataclass(frozen=True)
class AdaptedSuite:
    """Attacks, and the options that adapt them.

    Attributes:
        names: of attacks, those that run without a defense first.
        options: by attack, beneath whatever a user gives.
        lines: one for each defense, on what was added for it.
    """

    names: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lines: tuple[str, ...] = ()


def adapted_suite(
    target: str, names: Sequence[str], defenses: Sequence[DefenseFacts], rounds: int, *, every_extractor: bool = True
) -> AdaptedSuite:
    """Return a default suite with what its defenses' adaptive attacks add: attacks that run only by name, and options.

    Where several defenses ask for another value of the same option, the first has it: nobody runs one attack in two ways
    unasked.
    """
    fitting, chosen, options = {*attacks_for(target), *names}, list(names), dict[str, dict[str, Any]]()
    lines = []
    for facts in defenses:
        before, adapted = len(chosen), []
        for answer in answers_for(facts.answers, target, facts.options):
            fit = [name for name in answer.attacks if name in fitting]
            for name in fit[:1] if not set(fit) & set(chosen) else ():
                missing = _missing(name, target, rounds, every_extractor=every_extractor)
                if missing:
                    lines.append(f"not run: {name}, which is adapted to {facts.label}, takes {missing}")
                else:
                    chosen.append(name)
            for name in (name for name in fit if name in chosen):
                known = {spec.name for spec in fields(ATTACKS.load(name))} - set(options.get(name, {}))
                new = {key: value for key, value in answer.options.items() if key in known}
                if new:
                    options.setdefault(name, {}).update(new)
                    adapted.append(f"{name} with {', '.join(f'{key}={value}' for key, value in new.items())}")
        adapted = [*(name for name in chosen[before:] if name not in options), *adapted]
        lines += [f"adapted to {facts.label}: {', '.join(adapted)}"] if adapted else []
    return AdaptedSuite(tuple(chosen), options, tuple(lines))


def _missing(name: str, target: str, rounds: int, *, every_extractor: bool) -> str:
    """Return in words the rounds that an attack takes and that are not at hand, or nothing."""
    needs = ATTACKS.load(name)().requirements_for(target)
    if needs.min_rounds <= rounds and (every_extractor or not needs.every_extractor):
        return ""
    behind = ", and the clients' extractors of every one" if needs.every_extractor else ""
    return f"uploads of {needs.min_rounds} rounds or more{behind}"
