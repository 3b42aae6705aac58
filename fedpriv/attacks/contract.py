"""The contract of attacks: a frozen dataclass of options, of which a final call checks and times ``run``."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from inspect import isabstract
from typing import Any, ClassVar, Literal, TypeVar, cast, final, get_args

import torch
from torch import Tensor

from fedpriv.attacks.observation import (
    Knowledge,
    Needs,
    Observation,
    Progress,
    Reconstruction,
    RequirementsByKind,
    TargetId,
    ThreatModel,
    Unit,
)
from fedpriv.uploads.kinds import Kinds
from fedpriv.util.compute import full_float32
from fedpriv.util.errors import UserError
from fedpriv.util.parallel import SILENT

CPU = torch.device("cpu")

T = TypeVar("T")

_FEW = 2**20  # numbers in rows that are kept: 4 MiB


@dataclass(frozen=True, kw_only=True)
class Declared(ABC):
    """The traits of every attack, whether it returns images or scores.

    Attributes:
        name: in the registry and on the command line.
        summary: what it does, in one line.
        version: raised whenever the same input and seed give other numbers; records carry it.
        result: what it returns.
        targets: kinds of payload that it is on: a set described by traits (:mod:`fedpriv.uploads.kinds`), or names.
        only_by_name: whether it runs only when it is named.
        needs: what the threat model must have.
        requirements_by_kind: the same for kinds of payload where it differs.
        needs_in_words: what lists say where ``needs`` is empty.
        most_targets: how many targets it takes by default: few, where each is a long search of its own.
        budget: the hyperparameter that says how long it may search; None for an attack that does not iterate.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    version: ClassVar[int] = 1
    result: ClassVar[Literal["images", "scores"]]
    targets: ClassVar[Kinds | tuple[str, ...]]
    only_by_name: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs()
    requirements_by_kind: ClassVar[RequirementsByKind] = ()
    needs_in_words: ClassVar[str] = "nothing"
    most_targets: ClassVar[int] = 48
    budget: ClassVar[str | None] = None

    def requirements_for(self, kind: str | None) -> Needs:
        """Return the grants that an attack on one kind of upload takes; None for whichever."""
        special = (needs for kinds, needs in self.requirements_by_kind if kind is not None and kind in kinds)
        return next(special, self.needs)

    def uses_rounds_on(self, kind: str) -> bool:
        """True where several rounds of a kind of upload tell it more than one."""
        return self.needs.min_rounds > 1

    def trains(self, card: ThreatModel) -> str:
        """Return a name for the network that it trains and shares with other attacks on the run; empty for none."""
        return ""


class Same:
    """A key that equals another of the very same object (a tensor, an extractor), and keeps the object alive."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._value is other._value

    def __hash__(self) -> int:
        return hash(id(self._value))


class Trained:
    """Networks of the attacker's own, and rows, by all that determines them; one object serves all attacks on a run."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, object] = {}

    def get(self, key: Hashable, train: Callable[[], T]) -> T:
        """Return the network of a key, which is all that the result depends on, training it the first time."""
        if key not in self._kept:
            self._kept[key] = train()
        return cast(T, self._kept[key])

    def rows(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """Return rows of a key; many numbers (over 2^20) are not kept, and computed each time."""
        result = cast(Tensor, self._kept[key]) if key in self._kept else compute()
        if result.numel() <= _FEW:
            self._kept[key] = result
        return result


@dataclass(frozen=True)
class AttackProblem:
    """The problem of one call of an attack, and the circumstances of its computation.

    Attributes:
        observations: what the server saw.
        targets: T targets, which point into the observations.
        seed: the run's; every row derives its own generator from it.
        chunk_rows: rows at a time; None chooses one by memory. Results depend on it in the last digits only.
        progress: called with (iterations done, iterations planned).
        trained: networks of the attacker's own that are trained already.
        say: shows a line that is no result.
    """

    observations: tuple[Observation, ...]
    knowledge: Knowledge
    targets: tuple[TargetId, ...]
    seed: int = 0
    device: torch.device = CPU
    chunk_rows: int | None = None
    progress: Progress | None = None
    trained: Trained = field(default_factory=Trained)
    say: Callable[[str], None] = SILENT.say

    @property
    def clients(self) -> list[int]:
        """The clients of the targets, ascending."""
        return sorted({target.client for target in self.targets})


Objective = Callable[[Tensor], Tensor]
"""Images ``(T, M, c, h, w)`` in [0, 1], as an attack returns them for T targets -> ``(T,)``, lower is better."""


@dataclass(frozen=True, kw_only=True)
class Attack(Declared):
    """An attack that returns images.

    Attributes:
        unit: what one target is: the ``upload`` (or a row of it), each ``class`` that a client gave weight to, or a ``row``
            whose undisturbed vector the attack recovers before it inverts it.
    """

    result = "images"
    unit: ClassVar[Unit]

    @final
    def __call__(
        self,
        observations: tuple[Observation, ...],
        knowledge: Knowledge,
        targets: tuple[TargetId, ...],
        *,
        kind: str | None = None,
        **computing: Any,
    ) -> Reconstruction:
        """Attack at least one target; ``kind`` is that of the upload, ``computing`` the fields of :class:`AttackProblem`.

        Refuses what lacks something that it needs, and a ``run`` that returned no reconstruction of the targets.
        """
        self.requirements_for(kind).refuse(self.name, knowledge.card)
        if not targets:
            raise UserError("no targets: the observations hold nothing of the kind to attack; expected at least one")
        problem = AttackProblem(observations, knowledge, targets, **computing)
        began = time.perf_counter()
        with full_float32(problem.device):
            result = self.run(problem)
        seconds = time.perf_counter() - began
        _refuse_result(self.name, result, problem)
        return replace(result, cost=replace(result.cost, seconds=seconds, device=str(problem.device)))

    @abstractmethod
    def run(self, problem: AttackProblem) -> Reconstruction:
        """Return the images of the targets; the card, and that there are targets, has been checked."""

    def check(self, observations: Sequence[Observation]) -> None:
        """Refuse what the server saw where the attack has nothing to find in it."""

    def objective(self, problem: AttackProblem) -> Objective | None:
        """Return the misfit of images to uploads that the attack minimises, without priors; None where there is none."""
        return None


def _refuse_result(name: str, reconstruction: Reconstruction, problem: AttackProblem) -> None:
    """Refuse a result whose shapes are wrong or whose images are not finite, naming the field."""
    targets, guesses = len(problem.targets), reconstruction.images.shape[1:2]
    expected = {
        "images": (targets, *guesses, *problem.knowledge.image_shape),
        "objective": (targets, *reconstruction.objective.shape[1:2]),
        "labels": (targets, *guesses),
        "converged": (targets,),
    }
    for field_name, wanted in expected.items():
        shape = tuple(getattr(reconstruction, field_name).shape)
        if shape != wanted:
            raise UserError(f"attack {name!r} returned {field_name} of shape {shape}; expected {wanted}")
    if reconstruction.targets != problem.targets:
        raise UserError(f"attack {name!r} returned other targets than it was given")
    if not bool(reconstruction.images.isfinite().all()):
        raise UserError(f"attack {name!r} returned images that are not finite")


def refuse_no_attack(name: str, value: object) -> None:
    """Raise a UserError where what another package calls an attack lacks a declaration, or has a wrong one."""
    if not (isinstance(value, type) and issubclass(value, Declared) and is_dataclass(value)):
        raise UserError(f"expected a dataclass that inherits from fedpriv.attacks.contract.Attack, got {value!r}")
    text = f"class {value.__name__}"
    said = ("name", "summary", "targets", *(("unit",) if value.result == "images" else ()))
    missing = [what for what in said if not hasattr(value, what)] + (["run"] if isabstract(value) else [])
    if missing:
        raise UserError(f"{text} has no {' and no '.join(missing)}; see fedpriv.attacks.contract.Attack")
    targets, needs, unit, budget = (getattr(value, what, None) for what in ("targets", "needs", "unit", "budget"))
    if isinstance(targets, str) or not (isinstance(targets, Container) and isinstance(targets, Iterable)):
        raise UserError(f"{text}: targets: expected kinds of payload, got {targets!r}")
    if not isinstance(needs, Needs):
        raise UserError(f"{text}: needs: expected a fedpriv.attacks.observation.Needs, got {needs!r}")
    if value.result == "images" and unit not in get_args(Unit):
        raise UserError(f"{text}: unit: expected one of {', '.join(get_args(Unit))}, got {unit!r}")
    if budget is not None and budget not in [spec.name for spec in fields(value)]:
        raise UserError(f"{text}: budget: expected the name of one of its options, or None, got {budget!r}")
