"""The contract of defenses: a frozen dataclass of hyperparameters that overrides some hooks of :class:`Defense`.

No hook knows a method; several defenses are applied in the order they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedpriv.federation.answer import Answer
from fedpriv.federation.states import Trace
from fedpriv.federation.summary import DefenseFacts
from fedpriv.models.split import Blueprint
from fedpriv.uploads.ledger import Entry
from fedpriv.uploads.payloads import Message
from fedpriv.util.config import plain
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator

Loss = Callable[[Tensor, Tensor], Tensor]  # (images (b, c, h, w), labels (b,)) -> scalar


@dataclass(frozen=True)
class Work:
    """One batch's gradient to compute."""

    module: nn.Module  # the trained model, or several in a list
    loss: Loss  # to minimise
    parameters: tuple[nn.Parameter, ...]  # those that the optimiser moves, of the module or not
    expected: float | None  # mean size of a batch under Poisson sampling; None without it
    rng: torch.Generator  # of the guards, one for the whole round


Step = Callable[[Work, Tensor, Tensor], Tensor]
"""(work, images (b, c, h, w), labels (b,)) -> detached loss; adds the gradient of a batch to the parameters' ``.grad``."""

GradientTransform = Callable[[Step], Step]  # wraps the computation of a batch's gradient in local training


@dataclass(frozen=True)
class Sender:
    """The client that uploads."""

    round: int  # from 1
    client: int  # 0..K-1
    n_classes: int  # C of the federation
    labels: Tensor  # ``(n,)`` int64 classes of the client's training images. Private
    broadcast: Message  # that the upload answers
    rounds: int = 1  # of the run
    trace: Trace = field(default_factory=Trace, compare=False, repr=False)  # recorder of the images in a mixture

    @property
    def class_counts(self) -> Tensor:
        """The client's training images of each class, ``(C,)`` int64. Private."""
        return torch.bincount(self.labels, minlength=self.n_classes)


@dataclass(frozen=True, kw_only=True)
class UploadContext(Sender):
    """All that a defense may look at while it changes one upload; generators are on the CPU."""

    rng: torch.Generator  # of this (seed, round, client, place of the defense)
    client_rng: torch.Generator  # of this (seed, client, place of the defense): the same draws in every round


@dataclass(frozen=True)
class ProtectionPlan:
    """A federation before it runs, for :meth:`Defense.check`; the last five say what the defenses so far did."""

    method: str
    uploads: tuple[str, ...]  # kinds of payload
    accepted_substitutes: tuple[str, ...]  # kinds of payload that the server takes in place of its own
    blueprints: tuple[Blueprint, ...]  # architecture of each client
    n_clients: int
    rounds: int
    train_sizes: tuple[int, ...]  # training images of each client
    batch_size: int
    broadcasts: tuple[str, ...] = ()
    options: Any = None  # the method's own options
    linear_aggregation: bool = False  # as of :class:`fedpriv.federation.method.Method`
    trained: tuple[Blueprint, ...] = ()  # every architecture that clients train, those that they share first
    steps: tuple[int, ...] = ()  # local steps of each client in a round
    non_sgd_computation: str = ""  # as of :class:`fedpriv.federation.method.Method`
    encoded: tuple[str, ...] = ()  # those that decide how uploads are put on the wire
    mixing: tuple[str, ...] = ()  # those that let one image into the gradient of another
    private_gradients: str = ""  # the one that made gradients differentially private, or empty
    false_labels: str = ""  # the one that made label encodings differ from the mixture, or empty


class Defense:
    """A defense: every hook does nothing unless it is overridden. Subclasses are frozen dataclasses."""

    name: ClassVar[str]  # registry name
    source: ClassVar[str]  # paper, equation, year; or ``derived here``
    guarantee: ClassVar[str] = "none"  # in words, with neighbourhood, norm and unit
    answers: ClassVar[tuple[Answer, ...]] = ()  # attacks of this package that are adapted to it
    unanswered: ClassVar[str] = ""  # why there are none, or none on other kinds of upload
    server_view: ClassVar[Literal["each", "sum"]] = "each"  # upload is seen, or their sum over the round's clients
    encodes: ClassVar[bool] = False  # it decides how uploads are put on the wire
    mixes: ClassVar[bool] = False  # it makes one mixture of the rows of an upload

    def check(self, plan: ProtectionPlan) -> None:
        """Refuse a federation that the defense does not fit."""

    def after(self, plan: ProtectionPlan) -> ProtectionPlan:
        """Return the plan that the defenses behind this one get."""
        return replace(plan, encoded=(*plan.encoded, self.name)) if self.encodes else plan

    def blueprint(self, blueprint: Blueprint) -> Blueprint:
        """Return the architecture that clients use in place of ``blueprint``."""
        return blueprint

    def guard(self, plan: ProtectionPlan) -> GradientTransform | None:
        """Return the transform of the computation of gradients in local training, or None."""
        return None

    def poisson(self) -> bool:
        """True if local batches have to be Poisson samples."""
        return False

    def upload(self, message: Message, context: UploadContext) -> Message:
        """Return the message that leaves the client instead of ``message``; an empty one is not sent at all."""
        return message

    def wire_entries(self, entries: list[Entry]) -> list[Entry]:
        """Return the ledger's entries of one upload as this defense encodes it."""
        return entries

    def privacy(self, plan: ProtectionPlan) -> dict[str, Any] | None:
        """Return the accounted guarantee over the whole run (epsilon, delta, unit, accountant, ...), or None."""
        return None


def defense_facts(defense: Defense) -> DefenseFacts:
    """Return the record of a defense."""
    specs: Any = fields(defense)  # type: ignore[arg-type]
    group = {spec.name: plain(getattr(defense, spec.name)) for spec in specs}
    usual = {spec.name: plain(spec.default) for spec in specs if spec.default is not MISSING}
    unusual = [f"{name}={value}" for name, value in group.items() if usual.get(name, ...) != value]
    return DefenseFacts(
        name=defense.name,
        options=group,
        label=" ".join([defense.name, *unusual]),
        source=defense.source,
        guarantee=defense.guarantee,
        answers=tuple(defense.answers),
        unanswered=defense.unanswered,
        server_view=defense.server_view,
    )


def refuse_no_defense(name: str, value: object) -> None:
    """Raise UserError unless an object of another package is a defense."""
    if not (isinstance(value, type) and issubclass(value, Defense) and "__dataclass_params__" in vars(value)):
        raise UserError(f"expected a dataclass that extends fedpriv.federation.defense.Defense, got {value!r}")
    missing = [current for current in ("name", "source") if not isinstance(getattr(value, current, None), str)]
    if missing:
        raise UserError(f"class {value.__name__} says no {' and no '.join(missing)}")


@dataclass(frozen=True)
class DefensePipeline:
    """The defenses of a run in the order in which they are applied."""

    defenses: tuple[Defense, ...] = ()

    @property
    def server_view(self) -> Literal["each", "sum"]:
        """``each`` upload of a round is seen by the server, or only their ``sum``."""
        return "sum" if any(defense.server_view == "sum" for defense in self.defenses) else "each"

    def check(self, plan: ProtectionPlan) -> None:
        """Refuse a federation that some defense does not fit."""
        for defense, before in self._plans(plan):
            defense.check(before)

    def _plans(self, plan: ProtectionPlan) -> Iterator[tuple[Defense, ProtectionPlan]]:
        """Yield each defense with the plan that it gets."""
        for defense in self.defenses:
            yield defense, plan
            plan = defense.after(plan)

    def after(self, plan: ProtectionPlan) -> ProtectionPlan:
        """Return the plan behind all defenses; its ``uploads`` are the kinds that leave the clients."""
        for defense in self.defenses:
            plan = defense.after(plan)
        return plan

    def blueprint(self, blueprint: Blueprint) -> Blueprint:
        """Return the architecture that clients use in place of ``blueprint``."""
        for defense in self.defenses:
            blueprint = defense.blueprint(blueprint)
        return blueprint

    def guards(self, plan: ProtectionPlan) -> tuple[GradientTransform, ...]:
        """Return the transforms of the computation of gradients, innermost first."""
        guards = [defense.guard(before) for defense, before in self._plans(plan)]
        return tuple(guard for guard in guards if guard is not None)

    def poisson(self) -> bool:
        """True if local batches have to be Poisson samples."""
        return any(defense.poisson() for defense in self.defenses)

    def upload(self, message: Message, sender: Sender, seed: int) -> Message:
        """Return the message that leaves a client instead of ``message`` under the run's seed; may be empty."""
        for index, defense in enumerate(self.defenses):
            rng = generator(seed, "defense", index, sender.round, sender.client)
            client_rng = generator(seed, "defense", index, sender.client)
            message = defense.upload(message, UploadContext(**vars(sender), rng=rng, client_rng=client_rng))
            if not message:
                return ()
        return message

    def wire_entries(self, entries: list[Entry]) -> list[Entry]:
        """Return the ledger's entries of one upload as it is put on the wire."""
        for defense in self.defenses:
            entries = defense.wire_entries(entries)
        return entries

    def privacy(self, plan: ProtectionPlan) -> list[dict[str, Any]]:
        """Return the accounted guarantees over the whole run, one for each defense that has any."""
        records = [(defense.name, defense.privacy(before)) for defense, before in self._plans(plan)]
        return [{"defense": name, **record} for name, record in records if record is not None]


def plain_step(work: Work, images: Tensor, labels: Tensor) -> Tensor:
    """Add the gradient of a batch's loss: the unguarded :data:`Step`."""
    value = work.loss(images, labels)
    value.backward()
    return value.detach()
