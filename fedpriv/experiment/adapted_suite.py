"""The attacks of a suite that nobody named, as adapted to the defenses of a run: an attacker who knows them uses that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpriv.federation.summary import DefenseFacts


@dataclass(frozen=True)
class AdaptedSuite:
    """Attacks, and the options that adapt them.

    Attributes:
        target: kind of upload.
        names: of attacks, those that run without a defense first.
        options: by attack, beneath whatever a user gives.
        named: those of them that were named.
        lines: one for each defense, on what was added for it.
    """

    target: str
    names: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    named: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


def asked_suite(
    target: str, named: Sequence[str], run: Path | None, settings: Mapping[str, Any], say: Callable[[str], None]
) -> AdaptedSuite:
    """Return the attacks that are named, or all that fit a target, adapted to the defenses of the run.

    Args:
        target: kind of upload.
        named: attacks; as they are.
        run: a finished run; None where ``settings`` say what is trained.
        settings: of the verb ``attack``.
        say: told what was added for each defense, and what would take more of the run.

    Raises:
        UserError: for an unknown attack or defense, or an attack on other uploads.
    """
    from fedpriv.defenses import build_defenses, parse_choice
    from fedpriv.evidence.stages import usable_rounds
    from fedpriv.experiment.federation_settings import texts
    from fedpriv.experiment.first_run import quick_settings
    from fedpriv.experiment.plan import attack_names
    from fedpriv.federation.defense import defense_facts
    from fedpriv.federation.run_directory import RunDirectory

    names = attack_names(target, named)
    if named:
        return AdaptedSuite(target, names, named=names)
    if run is not None:
        there = RunDirectory.open(run)
        usable, sent = usable_rounds(there, target), there.captured_rounds()
        rounds, every, defenses = len(sent), len(usable) == len(sent), there.config.defenses
    else:
        planned, every = settings.get("rounds", quick_settings(target)["rounds"]), True
        rounds = planned if isinstance(planned, int) else 1  # anything else is refused where the run is configured
        defenses = tuple(parse_choice(text) for text in texts("defense", settings.get("defense", ())))
    facts = [defense_facts(made) for made in build_defenses(defenses)]
    found = adapted_suite(target, names, facts, rounds, every_extractor=every)
    for line in found.lines:
        say(line)
    return found


def adapted_suite(
    target: str, names: Sequence[str], defenses: Sequence[DefenseFacts], rounds: int, *, every_extractor: bool = True
) -> AdaptedSuite:
    """Return a default suite with what its defenses' own answers add: attacks that run only by name, and options.

    Where several defenses, or several answers of one, ask for another value of the same option, the first has it: nobody
    runs one attack in two ways unasked.

    Args:
        target: kind of upload.
        names: attacks that run on it where none is named.
        defenses: of the uploads; one of another package is asked like any other.
        rounds: of which uploads are at hand; what takes more is told of, and not added.
        every_extractor: whether the clients' extractors are at hand in all of them.
    """
    from fedpriv.attacks import attacks_for
    from fedpriv.federation.answer import answers_for

    fitting, chosen, options = {*attacks_for(target), *names}, list(names), dict[str, dict[str, Any]]()
    lines = []
    for facts in defenses:
        before, told = len(chosen), []
        for answer in answers_for(facts.answers, target, facts.options):
            fit = [name for name in answer.attacks if name in fitting]
            for name in fit[:1] if not set(fit) & set(chosen) else ():
                missing = _missing(name, target, rounds, every_extractor=every_extractor)
                if missing:
                    lines.append(f"not run: {name}, which is adapted to {facts.label}, takes {missing}")
                else:
                    chosen.append(name)
            for name in (name for name in fit if name in chosen):
                new = _new(name, answer.options, options.get(name, {}))
                if new:
                    options.setdefault(name, {}).update(new)
                    told.append(f"{name} with {', '.join(f'{key}={value}' for key, value in new.items())}")
        told = [*(name for name in chosen[before:] if name not in options), *told]
        lines += [f"adapted to {facts.label}: {', '.join(told)}"] if told else []
    return AdaptedSuite(target, tuple(chosen), options, lines=tuple(lines))


def _missing(name: str, target: str, rounds: int, *, every_extractor: bool) -> str:
    """Return in words the rounds that an attack takes and that are not at hand, or nothing."""
    from fedpriv.attacks import ATTACKS

    needs = ATTACKS.load(name)().requirements_for(target)
    if needs.min_rounds <= rounds and (every_extractor or not needs.every_extractor):
        return ""
    behind = ", and the clients' extractors of every one" if needs.every_extractor else ""
    return f"uploads of {needs.min_rounds} rounds or more{behind}"


def _new(name: str, wanted: Mapping[str, Any], there: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that adapt an attack, which it has and nothing has set yet."""
    from fedpriv.attacks import ATTACKS

    known = {spec.name for spec in fields(ATTACKS.load(name))}
    return {key: value for key, value in wanted.items() if key in known and key not in there}
