"""The contract of defenses: hooks that a federation calls, none of which knows a method.

A defense is a frozen dataclass of hyperparameters that overrides some of the hooks of :class:`Defense`; several are
applied in the order they are given. The core knows this contract only; the defenses themselves are a package above it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedpriv.federation.answer import Answer
from fedpriv.federation.summary import DefenseFacts
from fedpriv.federation.trace import Trace
from fedpriv.models.split import Blueprint
from fedpriv.util.config import plain
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator
from fedpriv.wire.ledger import Entry
from fedpriv.wire.payloads import Message

Loss = Callable[[Tensor, Tensor], Tensor]
"""(images (b, c, h, w), labels (b,)) -> scalar."""


@dataclass(frozen=True)
class Work:
    """One batch's gradient to compute, as local training hands it over.

    Attributes:
        module: what is trained: one model, or several in a list.
        loss: what is minimised.
        parameters: what the optimiser moves; not all need to be the module's, nor all of the module's be here.
        expected: images that a batch holds on average, where that is random (Poisson sampling); None where it is not.
        rng: generator of the guards, one for the whole round.
    """

    module: nn.Module
    loss: Loss
    parameters: tuple[nn.Parameter, ...]
    expected: float | None
    rng: torch.Generator


Step = Callable[[Work, Tensor, Tensor], Tensor]
"""(work, images (b, c, h, w), labels (b,)) -> detached loss; adds the gradient of a batch to the parameters' ``.grad``."""

GradientTransform = Callable[[Step], Step]
"""Wraps the computation of a batch's gradient in local training."""


@dataclass(frozen=True)
class Sender:
    """The client whose upload it is, as it knows itself.

    Attributes:
        round: from 1.
        client: 0..K-1.
        n_classes: number of classes C of the federation.
        labels: ``(n,)`` int64 classes of the client's training images. Private.
        broadcast: what the client answered this round.
        rounds: number of rounds of the run.
        trace: where the client notes which images a mixture was made of.
    """

    round: int
    client: int
    n_classes: int
    labels: Tensor
    broadcast: Message
    rounds: int = 1
    trace: Trace = field(default_factory=Trace, compare=False, repr=False)

    @property
    def class_counts(self) -> Tensor:
        """Training images of each class that the client holds, ``(C,)`` int64. Private."""
        return torch.bincount(self.labels, minlength=self.n_classes)


@dataclass(frozen=True, kw_only=True)
class UploadContext(Sender):
    """All that a defense may look at while it changes one upload.

    Attributes:
        rng: generator of this (seed, round, client, place of the defense). It draws on the CPU, wherever the upload lies.
        client_rng: generator of this (seed, client, place of the defense): the same draws in every round.
    """

    rng: torch.Generator
    client_rng: torch.Generator


@dataclass(frozen=True)
class ProtectionPlan:
    """A federation before it runs, for :meth:`Defense.check`.

    Attributes:
        method: its name, for error messages.
        uploads: kinds of payload that the method uploads.
        accepted_substitutes: kinds of payload that its server takes in their place.
        blueprints: one per client.
        n_clients: number of clients K.
        rounds: number of rounds.
        train_sizes: training images per client.
        batch_size: of local training.
        epochs: of local training.
        max_steps: of local training.
        broadcasts: kinds of payload that the server sends.
        options: the method's own options.
        linear_aggregation: whether the method's server needs no more than weighted means of the uploads.
        encoded: defenses so far that decide how uploads are put on the wire.
        trained: every architecture that clients train: their own, and the shared one where that is another.
        steps: local SGD steps of a round, one number a client.
        non_sgd_computation: what of local training is computed from images other than by gradients of SGD; empty for
            nothing.
        mixing: defenses so far that let one image into the gradient of another.
        private_gradients: name of the defense that made the gradients differentially private, or empty.
        sensitivity_unknown_after: applied defenses behind which it is not known any more how much of an upload is one
            image's.
        false_labels: name of the defense that made label encodings say something else than the mixture, or empty.
    """

    method: str
    uploads: tuple[str, ...]
    accepted_substitutes: tuple[str, ...]
    blueprints: tuple[Blueprint, ...]
    n_clients: int
    rounds: int
    train_sizes: tuple[int, ...]
    batch_size: int
    epochs: int
    max_steps: int | None
    broadcasts: tuple[str, ...] = ()
    options: Any = None
    linear_aggregation: bool = False
    encoded: tuple[str, ...] = ()
    trained: tuple[Blueprint, ...] = ()
    steps: tuple[int, ...] = ()
    non_sgd_computation: str = ""
    mixing: tuple[str, ...] = ()
    private_gradients: str = ""
    sensitivity_unknown_after: tuple[str, ...] = ()
    false_labels: str = ""


class Defense:
    """A defense: every hook does nothing unless it is overridden. Subclasses are frozen dataclasses.

    Attributes:
        name: registry name.
        source: paper, equation, year; or ``derived here``.
        guarantee: in words: what is guaranteed, for which neighbourhood, in which norm and unit; or ``none``.
        answers: attacks of this package that are adapted to it; empty where there are none.
        unanswered: why there are none, or none on kinds of upload that no answer is about.
        server_view: what the server gets to see: ``each`` upload, or only their ``sum`` over the round's clients.
        encodes: whether it decides how uploads are put on the wire.
        mixes: whether it makes one mixture of the rows of an upload.
        keeps_sensitivity: whether one image moves a row of what is uploaded by no more than before, though it is changed.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    guarantee: ClassVar[str] = "none"
    answers: ClassVar[tuple[Answer, ...]] = ()
    unanswered: ClassVar[str] = ""
    server_view: ClassVar[Literal["each", "sum"]] = "each"
    encodes: ClassVar[bool] = False
    mixes: ClassVar[bool] = False
    keeps_sensitivity: ClassVar[bool] = False

    def check(self, plan: ProtectionPlan) -> None:
        """Refuse a federation that the defense does not fit.

        Raises:
            UserError: saying why and what would fit.
        """

    def after(self, plan: ProtectionPlan) -> ProtectionPlan:
        """Return the plan as the defenses behind this one find it: with other kinds of upload, say."""
        return replace(plan, encoded=(*plan.encoded, self.name)) if self.encodes else plan

    def preserves_sensitivity(self) -> bool:
        """True if one image moves each row of an upload by no more, and no other row, than without this defense.

        A sensitivity that is known from how uploads are made holds behind such defenses only. Whatever changes uploads
        has to claim it.
        """
        return self.keeps_sensitivity or type(self).upload is Defense.upload

    def blueprint(self, blueprint: Blueprint) -> Blueprint:
        """Return the architecture that clients use in place of ``blueprint``."""
        return blueprint

    def guard(self, plan: ProtectionPlan) -> GradientTransform | None:
        """Return the transform of the computation of gradients in local training, or None."""
        return None

    def poisson(self) -> bool:
        """True if local batches have to be Poisson samples: each image in each of them with one probability."""
        return False

    def upload(self, message: Message, context: UploadContext) -> Message:
        """Return the message that leaves the client instead of ``message``; an empty one is not sent at all."""
        return message

    def period(self) -> int:
        """Return the rounds from one upload to the next."""
        return 1

    def wire_entries(self, entries: list[Entry]) -> list[Entry]:
        """Return the ledger's entries of one upload as an encoder of this defense would put it on the wire."""
        return entries

    def privacy(self, plan: ProtectionPlan) -> dict[str, Any] | None:
        """Return the accounted guarantee over the whole run (epsilon, delta, unit, accountant, ...), or None."""
        return None


def defense_facts(defense: Defense) -> DefenseFacts:
    """Return all that records say of a defense: whoever reads them needs no defense any more."""
    specs: Any = fields(defense)  # type: ignore[arg-type]
    own = {spec.name: plain(getattr(defense, spec.name)) for spec in specs}
    usual = {spec.name: plain(spec.default) for spec in specs if spec.default is not MISSING}
    unusual = [f"{name}={value}" for name, value in own.items() if usual.get(name, ...) != value]
    return DefenseFacts(
        name=defense.name,
        options=own,
        label=" ".join([defense.name, *unusual]),
        source=defense.source,
        guarantee=defense.guarantee,
        answers=tuple(defense.answers),
        unanswered=defense.unanswered,
        server_view=defense.server_view,
    )


def refuse_no_defense(name: str, found: object) -> None:
    """Check what another package calls a defense."""
    if not (isinstance(found, type) and issubclass(found, Defense) and "__dataclass_params__" in vars(found)):
        raise UserError(f"expected a dataclass that extends fedpriv.federation.defense.Defense, got {found!r}")
    missing = [own for own in ("name", "source") if not isinstance(getattr(found, own, None), str)]
    if missing:
        raise UserError(f"class {found.__name__} says no {' and no '.join(missing)}")


@dataclass(frozen=True)
class DefensePipeline:
    """The defenses of a run in the order in which they are applied. Empty, it changes nothing."""

    defenses: tuple[Defense, ...] = ()

    @property
    def server_view(self) -> Literal["each", "sum"]:
        """``each`` upload of a round is seen by the server, or only their ``sum``."""
        return "sum" if any(defense.server_view == "sum" for defense in self.defenses) else "each"

    def check(self, plan: ProtectionPlan) -> None:
        """Refuse a federation that some defense does not fit."""
        for defense in self.defenses:
            defense.check(plan)
            plan = _behind(defense, plan)

    def after(self, plan: ProtectionPlan) -> ProtectionPlan:
        """Return the plan behind all defenses; its ``uploads`` are the kinds that leave the clients."""
        for defense in self.defenses:
            plan = _behind(defense, plan)
        return plan

    def blueprint(self, blueprint: Blueprint) -> Blueprint:
        """Return the architecture that clients use in place of ``blueprint``."""
        for defense in self.defenses:
            blueprint = defense.blueprint(blueprint)
        return blueprint

    def guards(self, plan: ProtectionPlan) -> tuple[GradientTransform, ...]:
        """Return the transforms of the computation of gradients, innermost first."""
        found: list[GradientTransform] = []
        for defense in self.defenses:
            guard = defense.guard(plan)
            if guard is not None:
                found.append(guard)
            plan = _behind(defense, plan)
        return tuple(found)

    def poisson(self) -> bool:
        """True if local batches have to be Poisson samples."""
        return any(defense.poisson() for defense in self.defenses)

    def upload(self, message: Message, sender: Sender, seed: int) -> Message:
        """Return the message that leaves a client instead of ``message``; empty where nothing does.

        Args:
            message: what the method would upload.
            sender: the client.
            seed: the run's seed.
        """
        known = {spec.name: getattr(sender, spec.name) for spec in fields(sender)}
        for place, defense in enumerate(self.defenses):
            rng = generator(seed, "defense", place, sender.round, sender.client)
            client_rng = generator(seed, "defense", place, sender.client)
            message = defense.upload(message, UploadContext(**known, rng=rng, client_rng=client_rng))
            if not message:
                return ()
        return message

    def period(self) -> int:
        """Return the rounds from one upload to the next."""
        return math.lcm(*(defense.period() for defense in self.defenses))

    def wire_entries(self, entries: list[Entry]) -> list[Entry]:
        """Return the ledger's entries of one upload as it is put on the wire."""
        for defense in self.defenses:
            entries = defense.wire_entries(entries)
        return entries

    def privacy(self, plan: ProtectionPlan) -> list[dict[str, Any]]:
        """Return the accounted guarantees over the whole run, one for each defense that has any."""
        found: list[dict[str, Any]] = []
        for defense in self.defenses:
            record = defense.privacy(plan)
            if record is not None:
                found.append({"defense": defense.name, **record})
            plan = _behind(defense, plan)
        return found


def _behind(defense: Defense, plan: ProtectionPlan) -> ProtectionPlan:
    """Return the plan as the defenses behind ``defense`` find it."""
    found = defense.after(plan)
    return (
        found
        if defense.preserves_sensitivity()
        else replace(found, sensitivity_unknown_after=(*found.sensitivity_unknown_after, defense.name))
    )


def plain_step(work: Work, images: Tensor, labels: Tensor) -> Tensor:
    """Add the gradient of a batch's loss: the unguarded :data:`Step`."""
    value = work.loss(images, labels)
    value.backward()
    return value.detach()


def guarded(guards: Sequence[GradientTransform]) -> Step:
    """Return the step with every guard around it, the first innermost."""
    step: Step = plain_step
    for guard in guards:
        step = guard(step)
    return step
