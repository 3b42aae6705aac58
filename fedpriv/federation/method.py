"""The contract of federated methods: a handful of pure functions tied together by one constant.

State goes in and comes out, randomness is an argument, and each step is handed only what its side of the wire has.
That makes resuming, another engine and one contract test over all methods cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from fedpriv.datasets.types import Samples
from fedpriv.federation.defense import GradientTransform
from fedpriv.federation.trace import Trace
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import payload_kind
from fedpriv.wire.ledger import FederationSizes, Scalars
from fedpriv.wire.payloads import Message, PublicLoss

State = dict[str, Tensor]
"""Private tensors of a client or of the server, by name. Never uploaded as such."""

Uploads = Sequence[tuple[int, Message]]
"""(client, upload) of a round, by client number."""


@dataclass(frozen=True)
class LocalTraining:
    """A client's local training: plain SGD, as the reference libraries do.

    Attributes:
        learning_rate: SGD step size, > 0.
        batch_size: images a step, >= 1.
        epochs: passes over the local data in a round, >= 1.
        momentum: SGD momentum in [0, 1).
        weight_decay: L2 penalty, >= 0.
        drop_last: leave out the tail batch (the reference libraries do; then a client with fewer images than a batch
            trains on nothing).
        shuffle: draw a new order every epoch; without it the stored order is kept (HtFLlib does).
        max_steps: stop a round after this many steps; None for no limit. 1 gives gradient matching its textbook case.
    """

    learning_rate: Annotated[float, Gt(0)] = 0.01
    batch_size: Annotated[int, Ge(1)] = 10
    epochs: Annotated[int, Ge(1)] = 1
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    weight_decay: Annotated[float, Ge(0)] = 0.0
    drop_last: bool = False
    shuffle: bool = True
    max_steps: Annotated[int, Ge(1)] | None = None


@dataclass(frozen=True)
class GuardedTraining(LocalTraining):
    """Local training whose gradients pass through the guards of defenses.

    Attributes:
        guards: innermost first; see :data:`fedpriv.federation.defense.GradientTransform`.
        poisson: each batch is a Poisson sample: every image is in it with probability batch size / n, whatever other
            batches hold, so that its size is random and may be zero. As many batches as without.
    """

    guards: tuple[GradientTransform, ...] = ()
    poisson: bool = False


@dataclass(frozen=True)
class ClientSetup:
    """A client as no round changes it, and the place where it notes what it did in one.

    Attributes:
        client: its number, 0..K-1.
        blueprint: the architecture of its private model.
        model: a scratch module of that architecture. Its weights are meaningless between calls: every function that
            uses it loads them from the state first.
        train: its training samples, on the device it trains on.
        training: how it trains.
        options: the method's own options, an instance of ``Method.options``.
        scratch: gives a scratch module of any other architecture (shared small models).
        public: the public images ``(p, c, h, w)`` in [0, 1] that everybody was handed before the first round, of methods
            that need them; else None. What is handed out beforehand is not in the ledger.
        public_labels: their classes ``(p,)`` int64, of methods that need these too; else None.
        trace: where a client step notes the images of each of its local steps, and of a mixture. Never read by a method.
        representation_cache: while the client is scored, the images, weights and representations that were computed last, by
            the prefix of the model in the state; None where it is not.
    """

    client: int
    blueprint: Blueprint
    model: SplitModel
    train: Samples
    training: LocalTraining
    options: Any
    scratch: Callable[[Blueprint], SplitModel]
    public: Tensor | None = field(default=None, compare=False, repr=False)
    public_labels: Tensor | None = field(default=None, compare=False, repr=False)
    trace: Trace = field(default_factory=Trace, compare=False, repr=False)
    representation_cache: dict[str, tuple[Tensor, State, Tensor]] | None = field(
        default=None, compare=False, repr=False
    )

    @property
    def n_classes(self) -> int:
        """Number of classes C of the federation."""
        return self.blueprint.n_classes

    @property
    def width(self) -> int:
        """Shared representation width d."""
        return self.blueprint.width


@dataclass(frozen=True)
class ServerSetup:
    """The server as no round changes it.

    Attributes:
        n_clients: number of clients K.
        blueprint: the architecture of client 0; its ``width``, ``n_classes`` and ``image_shape`` hold for everybody,
            its ``name`` only where the method is homogeneous.
        options: the method's own options.
        scratch: gives a scratch module of an architecture.
        device: where the server computes.
        public: unlabelled public images ``(p, c, h, w)`` in [0, 1], or None.
        rounds: number of rounds planned (schedules need it).
        blueprints: the architecture of every client, for servers that rebuild private models.
    """

    n_clients: int
    blueprint: Blueprint
    options: Any
    scratch: Callable[[Blueprint], SplitModel]
    device: torch.device
    public: Tensor | None = None
    rounds: int = 1
    blueprints: tuple[Blueprint, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A federation before it runs, for :attr:`Method.check`.

    Attributes:
        blueprints: one per client.
        options: the method's own options.
        has_public: whether public images were set aside.
        train_sizes: training samples per client.
        training: how clients train.
    """

    blueprints: tuple[Blueprint, ...]
    options: Any
    has_public: bool
    train_sizes: tuple[int, ...]
    training: LocalTraining


Predictor = Callable[[ClientSetup, State, Tensor], Tensor]
"""(client setup, state, images (n, c, h, w)) -> scores (n, C), the largest wins."""


@dataclass(frozen=True)
class NoOptions:
    """Options of a method that has none."""


def own_architecture(own: Blueprint, options: Any) -> Blueprint:
    """Share what the clients train."""
    return own


def own_cross_entropy(options: Any, round_: int) -> PublicLoss:
    """Train the uploaded weights by the cross-entropy of their own logits, from the broadcast on."""
    return PublicLoss()


@dataclass(frozen=True)
class Method:
    """A federated method.

    A round is: the server's broadcast goes to the sampled clients; each runs ``client_step`` (which begins with
    ``apply_broadcast``) and uploads; the server runs ``server_step``, which gives the next round's broadcast.
    Accuracy *after training* is taken from the state that ``client_step`` returned, accuracy *after broadcast* from
    ``apply_broadcast(state, next broadcast)``.

    Attributes:
        name: registry name.
        source: authors, venue, year.
        options: frozen dataclass of the method's own hyperparameters, with the paper's defaults.
        uploads: kinds of payload in a client's upload (attack targets and metadata).
        broadcasts: kinds of payload in the server's broadcast.
        start: (server setup, rng) -> (server state, first broadcast).
        init: (client setup, rng) -> the client's first state; same architecture, same weights.
        apply_broadcast: (client setup, state, broadcast) -> state. Returns ``state`` itself where nothing changes.
        client_step: (client setup, state, broadcast, rng) -> (state, upload). Notes in the setup's trace what
            :func:`fedpriv.federation.local_training.train` does not note for it.
        server_step: (server setup, server state, [(client, upload), ...] by client number, rng) -> (server state,
            next broadcast).
        predict: (client setup, state, images (n, c, h, w) in [0, 1]) -> scores (n, C), the largest wins.
        check: raises UserError for a plan that the method cannot run, before anything is trained.
        homogeneous: whether all clients must share one architecture.
        needs_public: whether public images are needed; server and clients hold them.
        needs_public_labels: whether clients are told the classes of public images.
        sizes: (sizes of a federation, with the method's options) -> scalars of a settled round that the declared shapes of
            the payloads do not tell; see :func:`fedpriv.federation.cost.message_sizes`.
        extra_predictors: further ways to predict, by name, from the private model (``model.*`` in the state) alone;
            their accuracy is recorded beside the main one.
        server_predict: (server setup, server state, images) -> scores, where the server trains a model of its own; its
            accuracy on every client's test images is recorded as of a further way to predict, ``server_model``.
        accepted_substitutes: kinds of payload that the server takes in place of its own kind, if a defense turns one into
            the other.
        further_predictors: options -> ways to predict, by name, that the options ask for, from the whole state; their
            accuracy is recorded beside the main one.
        shared: (a client's architecture, options) -> the architecture whose weights travel.
        uploaded_rate: (options, training) -> the step size that moved what is uploaded.
        linear_aggregation: whether the server needs no more than the weighted means of a round's uploads.
        local_phases: (options, training) -> what a client step trains with, one phase after the other.
        non_sgd_computation: options -> what of local training is computed from images other than by gradients of SGD whose
            loss is a function of one image and of the model, in words; empty for nothing. Uploads are another matter.
        public_loss: (options, round) -> what the protocol tells of the loss behind uploaded weights.
    """

    name: str
    source: str
    options: type
    uploads: tuple[str, ...]
    broadcasts: tuple[str, ...]
    start: Callable[[ServerSetup, torch.Generator], tuple[State, Message]]
    init: Callable[[ClientSetup, torch.Generator], State]
    apply_broadcast: Callable[[ClientSetup, State, Message], State]
    client_step: Callable[[ClientSetup, State, Message, torch.Generator], tuple[State, Message]]
    server_step: Callable[[ServerSetup, State, Uploads, torch.Generator], tuple[State, Message]]
    predict: Callable[[ClientSetup, State, Tensor], Tensor]
    check: Callable[[Plan], None] = lambda plan: None
    homogeneous: bool = False
    needs_public: bool = False
    needs_public_labels: bool = False
    sizes: Callable[[FederationSizes], Scalars] = lambda facts: {}
    extra_predictors: Mapping[str, Predictor] = field(default_factory=dict)
    server_predict: Callable[[ServerSetup, State, Tensor], Tensor] | None = None
    accepted_substitutes: tuple[str, ...] = ()
    further_predictors: Callable[[Any], Mapping[str, Predictor]] = lambda options: {}
    shared: Callable[[Blueprint, Any], Blueprint] = own_architecture
    uploaded_rate: Callable[[Any, LocalTraining], float] = lambda options, training: training.learning_rate
    linear_aggregation: bool = False
    local_phases: Callable[[Any, LocalTraining], tuple[LocalTraining, ...]] = lambda options, training: (training,)
    non_sgd_computation: Callable[[Any], str] = lambda options: ""
    public_loss: Callable[[Any, int], PublicLoss] = own_cross_entropy


def refuse_no_method(name: str, found: object) -> None:
    """Check what another package calls a method."""
    if not isinstance(found, Method):
        raise UserError(f"expected a fedpriv.federation.method.Method, got {type(found).__name__}")
    if not (isinstance(found.options, type) and is_dataclass(found.options)):
        raise UserError(f"options: expected a dataclass, got {found.options!r}")
    kinds = [payload_kind(kind) for kind in (*found.uploads, *found.broadcasts, *found.accepted_substitutes)]
    alone = [kind.kind for kind in kinds[: len(found.uploads)] if kind.aggregation == "none"]
    if found.linear_aggregation and alone:
        raise UserError(
            f"linear_aggregation=True, but uploads of {', '.join(alone)} are not added up (aggregation='none')"
        )
