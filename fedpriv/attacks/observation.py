"""A semi-honest server's view, its grants beside it, and the result of an attack."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias, TypeVar

from annotated_types import Ge, Gt, Lt

from fedpriv.uploads.payloads import PublicLoss
from fedpriv.util.errors import UserError, shown

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedpriv.uploads.payload import Message


@dataclass(frozen=True)
class Observation:
    """One client's upload in one round, beside the broadcast that it answered; nothing that the server does not see."""

    round: int
    client: int
    upload: Message
    broadcast: Message
    continued: bool = False  # whether the weights in ``broadcast`` are what the client itself uploaded before


@dataclass(frozen=True)
class BatchFacts:
    """A client's local steps, as far as the attacker knows them.

    Attributes:
        batch_size: images in the batch, n; of several steps in the largest batch.
        learning_rate: SGD step size.
        steps: local steps that the upload sums up.
        sizes: images of each step's batch, in order, where they are not all ``batch_size``; empty where they are.
        optimiser: of the steps, which attacks take for plain SGD.
        label_smoothing: share s of every label that is spread over all C classes, as torch's cross_entropy takes it.
    """

    batch_size: Annotated[int, Ge(1)]
    learning_rate: Annotated[float, Gt(0)]
    steps: Annotated[int, Ge(1)]
    sizes: tuple[Annotated[int, Ge(1)], ...] = ()
    optimiser: str = "sgd"
    label_smoothing: Annotated[float, Ge(0), Lt(1)] = 0.0

    @property
    def images(self) -> int:
        """Number of images of all steps; an image that two steps used counts twice."""
        return sum(self.sizes) if self.sizes else self.batch_size * self.steps


T = TypeVar("T")

ExtractorAccess = Literal["white_box", "query", "shadow", "none"]
LabelAccess = Literal["given", "inferred"]
BatchNormAccess = Literal["none", "running"]
DataAccess = Literal["none", "same_domain"]


@dataclass(frozen=True)
class ThreatModel:
    """A threat model, as printed beside every result. Results under different ones are never ranked together.

    Attributes:
        extractor: access to the client's extractor: its weights, only its answers, a substitute, or nothing.
        labels: whether labels of the targets are given or must be inferred from the upload.
        batch: whether the learning rate and each client's steps and batch sizes are known.
        batch_norm: access to the client's running batch-norm statistics; ``running`` where the network has no batch norm.
        attacker_data: images that the attacker owns: none, or images like the clients' (``same_domain``).
        rounds_seen: how many rounds of uploads the attacker uses.
    """

    extractor: ExtractorAccess = "white_box"
    labels: LabelAccess = "given"
    batch: bool = True
    batch_norm: BatchNormAccess = "running"
    attacker_data: DataAccess = "none"
    rounds_seen: int = 1


Statistics: TypeAlias = "Mapping[str, tuple[Tensor, Tensor]]"
"""Name of a batch norm -> mean ``(C,)`` and biased variance ``(C,)`` of what goes into it."""

Rehearsal: TypeAlias = "Callable[[Tensor, int], Tensor]"
"""(rows ``(n, d)`` that an extractor gives, a seed) -> ``(n, d)`` that a client would have uploaded in their place."""


@dataclass(frozen=True)
class Knowledge:
    """A threat model together with the things that it assumes.

    Attributes:
        image_shape: (channels, height, width) of the private images; public like the number of classes C.
        extractors: client -> differentiable map from images ``(n, c, h, w)`` in [0, 1] to representations ``(n, d)``.
        earlier: (round, client) -> its extractor behind an earlier upload.
        heads: client -> weight ``(C, d)`` and bias ``(C,)`` of its private head, of the same moment as its extractor.
        model: the shared architecture for gradient matching; None where clients have private architectures only.
        batch: what the protocol says of local steps: of clients that differ, the most steps and images; or None.
        batches: client -> facts of its own local steps.
        loss: what the protocol says of the loss behind uploaded weights in the attacked round.
        defended: (round, client) -> what its defenses make of rows, where they work row by row.
        statistics: (round, client) -> statistics before every batch norm of the uploaded network.
        labels: (round, client) -> labels of the batch ``(n,)``.
        public_images: the attacker's own images ``(p, c, h, w)`` in [0, 1], or None.
        public_labels: their classes ``(p,)`` int64, with images of the same domain; None otherwise.
    """

    card: ThreatModel
    image_shape: tuple[int, int, int]
    n_classes: int
    extractors: Mapping[int, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    earlier: Mapping[tuple[int, int], Callable[[Tensor], Tensor]] = field(default_factory=dict)
    heads: Mapping[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    model: nn.Module | None = None
    batch: BatchFacts | None = None
    batches: Mapping[int, BatchFacts] = field(default_factory=dict)
    loss: PublicLoss = PublicLoss()
    defended: Mapping[tuple[int, int], Rehearsal] = field(default_factory=dict)
    statistics: Mapping[tuple[int, int], Statistics] = field(default_factory=dict)
    labels: Mapping[tuple[int, int], Tensor] = field(default_factory=dict)
    public_images: Tensor | None = None
    public_labels: Tensor | None = None

    def facts_of(self, client: int) -> BatchFacts | None:
        """Return the facts of one client's local steps, or None."""
        return self.batches.get(client, self.batch)


GIVEN: Final = {
    "extractor": "extractor=NETWORK (of weights of an extractor head=LAYER)",
    "attacker_data": "public=IMAGES and public_labels=CLASSES",
    "batch": "batch=fedpriv.BatchFacts(batch_size, learning_rate, steps)",
}
"""Field of the threat model -> argument of ``attack_uploads`` that gives what it assumes."""


@dataclass(frozen=True)
class Needs:
    """Fields of the threat model that an attack needs, each with the values that satisfy it; empty means any.

    ``min_rounds`` is how many rounds of uploads it takes; ``every_extractor``: with the extractor behind each of them.
    """

    extractor: tuple[ExtractorAccess, ...] = ()
    labels: tuple[LabelAccess, ...] = ()
    batch: bool = False
    attacker_data: tuple[DataAccess, ...] = ()
    min_rounds: int = 1
    every_extractor: bool = False

    def together(self, other: Needs) -> Needs:
        """Return the needs of an attack of two parts."""

        def both(first: tuple[T, ...], second: tuple[T, ...]) -> tuple[T, ...]:
            return tuple(value for value in first if value in second) if first and second else first or second

        return Needs(
            extractor=both(self.extractor, other.extractor),
            labels=both(self.labels, other.labels),
            batch=self.batch or other.batch,
            attacker_data=both(self.attacker_data, other.attacker_data),
            min_rounds=max(self.min_rounds, other.min_rounds),
            every_extractor=self.every_extractor or other.every_extractor,
        )

    def refuse(self, attack: str, card: ThreatModel) -> None:
        """Raise a UserError that names the first grant that a card lacks."""
        for name in ("extractor", "labels", "attacker_data"):
            allowed: tuple[str, ...] = getattr(self, name)
            if allowed and getattr(card, name) not in allowed:
                raise UserError(
                    f"attack {attack!r} needs {name}={' or '.join(allowed)}, but the threat model has "
                    f"{name}={getattr(card, name)}; pass knowledge={shown({name: allowed[0]})}"
                    + (" and public N" if name == "attacker_data" else "")
                    + (f", of your own uploads {GIVEN[name]}" if name in GIVEN else ""),
                    keys=(name,),
                )
        if card.rounds_seen < self.min_rounds:
            raise UserError(
                f"attack {attack!r} needs at least {self.min_rounds} rounds of uploads, but the threat model has "
                f"rounds_seen={card.rounds_seen}; pass rounds_seen N"
            )
        if self.batch and not card.batch:
            raise UserError(
                f"attack {attack!r} needs the batch facts (size, learning rate, steps), but the threat model has "
                f"batch=none; pass knowledge={shown({'batch': 'known'})}, of your own uploads {GIVEN['batch']}",
                keys=("batch",),
            )


RequirementsByKind = tuple[tuple[Container[str], Needs], ...]
"""Kinds of payload on which an attack needs something else, and what."""


@dataclass(frozen=True)
class TargetId:
    """The private thing that a row tries to recover.

    Attributes:
        round: round of the upload.
        client: who uploaded it.
        index: position within the upload: the row of Representations or Prototypes, the position in a batch, else 0.
        label: class, where the upload or the attack says it; else -1.
    """

    round: int
    client: int
    index: int = 0
    label: int = -1


@dataclass(frozen=True)
class Cost:
    """The expense of an attack: wall seconds, optimiser iterations a row, rows (targets x restarts), device.

    ``evaluations`` are those of the objective with its derivative, of all rows of a target together, at most; 0 where they
    are not counted. The call around ``run`` measures seconds and device.
    """

    seconds: float = 0.0
    iterations: int = 0
    rows: int = 0
    device: str = ""
    evaluations: int = 0


@dataclass(frozen=True)
class Reconstruction:
    """The result of an attack, chosen by the attack's own objective alone.

    Attributes:
        targets: T identifiers.
        images: ``(T, M, c, h, w)`` float32 in [0, 1]; M guesses for each target (1 unless the attack says otherwise).
        objective: ``(T, R)`` final objective of every restart, lower is better: the images are from the lowest.
        labels: ``(T, M)`` int64 labels that the attack used or recovered, or -1.
        cost: what it spent.
        converged: ``(T,)`` bool, whether the chosen row met the attack's own convergence rule.
        features: ``(T, d)`` representation that the images were fitted to, or None (gradient attacks).
        fits: ``(T, 2)`` float64, the attack's objective (:meth:`fedpriv.attacks.contract.Attack.objective`) against the
            target's upload: of these images, and of the true ones, infinite where these are more or fewer than the guesses.
            Measured after the attack, where it has an objective; else None.
    """

    targets: tuple[TargetId, ...]
    images: Tensor
    objective: Tensor
    labels: Tensor
    cost: Cost
    converged: Tensor
    features: Tensor | None = None
    fits: Tensor | None = None

    def to_cpu(self) -> Reconstruction:
        """Return the same on the CPU."""
        return replace(self, **{name: item.detach().cpu() for name, item in vars(self).items() if hasattr(item, "cpu")})


Progress = Callable[[int, int], None]
"""Called with (iterations done, iterations planned)."""


Unit = Literal["upload", "class", "row"]
"""One target: an upload (or a row of it), a class that a client gave weight to, or a row that is cleaned first."""


class Stages:
    """The stages of a search, one after another, with one progress: ``units`` are the work of each, in one measure."""

    def __init__(self, report: Progress | None, units: Sequence[int]) -> None:
        self._report, self._units = report, list(units)

    def of(self, stage: int) -> Progress:
        """Return the progress that a stage reports."""
        before, unit, planned_in_all = sum(self._units[:stage]), self._units[stage], sum(self._units)

        def tell(done: int, planned: int) -> None:
            if self._report is not None:
                self._report(before + unit * done // max(1, planned), planned_in_all)

        return tell
