"""The entries of a study, its grids expanded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedpriv.experiment.study.origin import Keys, Origin
from fedpriv.util.config import plain

if TYPE_CHECKING:
    from fedpriv.attacks.observation import KnowledgeCard
    from fedpriv.federation.run_directory import DefenseChoice
    from fedpriv.util.numerics import Precision


@dataclass(frozen=True)
class AttackEntry:
    """One point of the grid of an attack of a study.

    Attributes:
        name: registry name.
        attack: with its own hyperparameters.
        budgets: values of its budget field, ascending; empty for the one it has.
        varied: option -> value, for what the grid varies.
        keys: where it was written.
    """

    name: str
    attack: Any
    budgets: tuple[int, ...] = ()
    varied: Mapping[str, Any] = field(default_factory=dict)
    keys: Keys = field(default=(), compare=False)


@dataclass(frozen=True)
class MethodEntry:
    """One point of the grid of a method of a study.

    Attributes:
        label: what tables call it.
        title: what pages call it where no label was given; None where pages put its registry name behind the label.
        name: registry name.
        options: its own options, all of them.
        federation: settings in which it differs from the others, or that an axis varies.
        target: kind of upload to attack; None for the first that leaves its clients and has an attack.
        attacks: its own attacks, none where it is trained only; None for the study's.
        defenses: its own defenses; None for the study's.
        varied: axis -> value, for what the grid varies.
        keys: where it was written.
        places: where each of its settings of the federation was written.
    """

    label: str
    title: str | None
    name: str
    options: Mapping[str, Any]
    federation: Mapping[str, Any]
    target: str | None = None
    attacks: tuple[AttackEntry, ...] | None = None
    defenses: tuple[DefenseEntry, ...] | None = None
    varied: Mapping[str, Any] = field(default_factory=dict)
    keys: Keys = field(default=(), compare=False)
    places: Mapping[str, Keys] = field(default_factory=dict, compare=False)

    def place_of(self, keys: Keys) -> Keys:
        """Return the place of a setting of the federation, for this method or for all."""
        setting = str(keys[0])
        return (*self.places.get(setting, ("federation", setting)), *keys[1:])


@dataclass(frozen=True)
class DefenseEntry:
    """One point of a study's grid of defenses.

    Attributes:
        label: what tables call it; ``none`` for no defense.
        title: the same where no label was given; None where pages put its registry names behind the label.
        family: the label without the strengths that its grid varies.
        strength: ``defense.option`` -> value, for what the grid varies.
        choices: defenses in the order applied, every option filled in.
        keys: where it was written.
    """

    label: str
    title: str | None
    family: str
    strength: Mapping[str, Any]
    choices: tuple[DefenseChoice, ...]
    keys: Keys = field(default=(), compare=False)


UNDEFENDED = DefenseEntry("none", "none", "none", {}, ())
"""No defense."""


@dataclass(frozen=True)
class Study:
    """Everything that determines the results of a study.

    Attributes:
        federation: settings that all methods share, by flag name with underscores.
        methods: at least one.
        defenses: at least one; grids expanded.
        attacks: None for all that fit each target and are granted; empty where methods are trained only.
        seeds: at least one; each of training, of drawing targets and of attacks.
        card: the attacker's grants.
        targets: how many targets a cell at most.
        control: whether permuted uploads are attacked too.
        local: whether the same clients are trained without any exchange too.
        redact: rule by which images are kept out of what is stored and drawn.
        precision: of searches by Adam.
        rounds_seen: rounds that attacks across rounds use; None for all that are stored.
        origin: where it was read from.
    """

    federation: Mapping[str, Any]
    methods: tuple[MethodEntry, ...]
    defenses: tuple[DefenseEntry, ...]
    attacks: tuple[AttackEntry, ...] | None
    seeds: tuple[int, ...]
    card: KnowledgeCard
    targets: int
    control: bool
    local: bool
    redact: str
    precision: Precision
    rounds_seen: int | None
    origin: Origin = field(compare=False)


def all_defenses(study: Study) -> tuple[DefenseEntry, ...]:
    """Return every defense that some method has, each once; methods may call different ones by one label."""
    every = [defense for entry in study.methods for defense in entry.defenses or study.defenses]
    return tuple({json.dumps([entry.label, plain(entry.choices)]): entry for entry in every}.values())
