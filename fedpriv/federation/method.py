"""The contract of federated methods: pure functions tied together by one constant.

State goes in and comes out, randomness is an argument, and each step gets only what its side of the wire has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import torch
from torch import Tensor

from fedpriv.datasets.types import Samples
from fedpriv.federation.defense import GradientTransform
from fedpriv.federation.run_directory import LocalTraining as LocalTraining
from fedpriv.federation.states import State, Trace
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.uploads.kinds import payload_kind
from fedpriv.uploads.ledger import FederationSizes, Scalars
from fedpriv.uploads.payloads import Message, PublicLoss
from fedpriv.util.errors import UserError, shown

Uploads = Sequence[tuple[int, Message]]  # (client, upload) of a round, by client number


@dataclass(frozen=True)
class GuardedTraining(LocalTraining):
    """Local training whose gradients pass through the guards of defenses, the first innermost."""

    guards: tuple[GradientTransform, ...] = ()
    poisson: bool = False  # each batch holds every image with probability batch size / n; as many batches as without


@dataclass(frozen=True)
class ClientSetup:
    """A client as no round changes it, and the recorder of one client step.

    Everybody has the public images before the first round; None where the method does not need them.
    """

    client: int  # its number, 0..K-1
    blueprint: Blueprint  # the architecture of its private model
    model: SplitModel  # a scratch module of the blueprint, whose weights every function loads from the state first
    train: Samples  # its training samples, on the device it trains on
    training: LocalTraining
    options: Any  # an instance of ``Method.options``
    scratch: Callable[[Blueprint], SplitModel]  # architecture -> a scratch module of it
    public: Tensor | None = field(default=None, compare=False, repr=False)  # images ``(p, c, h, w)`` in [0, 1]
    public_labels: Tensor | None = field(default=None, compare=False, repr=False)  # their classes ``(p,)`` int64
    trace: Trace = field(default_factory=Trace, compare=False, repr=False)  # of local steps; no method reads it

    @property
    def n_classes(self) -> int:
        """Number of classes C of the federation."""
        return self.blueprint.n_classes

    @property
    def width(self) -> int:
        """Representation width d, shared unless the mapping is none."""
        return self.blueprint.width


@dataclass(frozen=True)
class ServerSetup:
    """The server as no round changes it."""

    n_clients: int  # K
    blueprint: Blueprint  # the architecture of client 0; all but ``name``, and unmapped ``width``, holds for everybody
    options: Any  # the method's own options
    scratch: Callable[[Blueprint], SplitModel]  # architecture -> a scratch module of it
    device: torch.device  # where the server computes
    public: Tensor | None = None  # unlabelled public images ``(p, c, h, w)`` in [0, 1]
    rounds: int = 1  # planned ones
    blueprints: tuple[Blueprint, ...] = ()  # the architecture of every client


@dataclass(frozen=True)
class Plan:
    """A federation before it runs, for :attr:`Method.check`."""

    blueprints: tuple[Blueprint, ...]  # architecture of each client
    options: Any  # the method's own options
    train_sizes: tuple[int, ...]  # training images of each client
    training: LocalTraining


Predictor = Callable[[ClientSetup, State, Tensor], Tensor]
"""(client setup, state, images (n, c, h, w)) -> scores (n, C), the largest wins."""


@dataclass(frozen=True)
class NoOptions:
    """Options of a method that has none."""


def own_architecture(blueprint: Blueprint, options: Any) -> Blueprint:
    """Return the client's own architecture."""
    return blueprint


@dataclass(frozen=True)
class Method:
    """A federated method.

    A round: the broadcast goes to the sampled clients; each runs ``client_step`` (which begins with ``apply_broadcast``)
    and uploads; ``server_step`` gives the next broadcast. Accuracy *after training* is that of the state from
    ``client_step``, accuracy *after broadcast* that of ``apply_broadcast(state, next broadcast)``; that of
    ``extra_predictors`` is recorded beside it, and that of ``server_predict`` as ``server_model``.

    Attributes:
        sizes: (sizes of a federation, with options) -> scalars of a settled round that the payloads' declared shapes do not
            say; see :func:`fedpriv.federation.cost.message_sizes`.
        non_sgd_computation: options -> in words, what local training computes from images other than by SGD on a loss of
            one image; empty for nothing.
        public_loss: (options, round) -> the loss behind uploaded weights, as far as the protocol says it; by default the
            cross-entropy of their own logits, from the broadcast on.
    """

    name: str  # registry name
    source: str  # authors, venue, year
    options: type  # frozen dataclass of the method's hyperparameters, with the paper's defaults
    uploads: tuple[str, ...]  # kinds of payload
    broadcasts: tuple[str, ...]
    start: Callable[[ServerSetup, torch.Generator], tuple[State, Message]]  # server state and first broadcast
    init: Callable[[ClientSetup, torch.Generator], State]  # the first state; same architecture, same weights
    apply_broadcast: Callable[[ClientSetup, State, Message], State]  # the very same state where nothing changes
    client_step: Callable[[ClientSetup, State, Message, torch.Generator], tuple[State, Message]]
    server_step: Callable[
        [ServerSetup, State, Uploads, torch.Generator], tuple[State, Message]
    ]  # with the next broadcast
    predict: Predictor  # from images ``(n, c, h, w)`` in [0, 1] to scores ``(n, C)``, of which the largest wins
    check: Callable[[Plan], None] = lambda plan: None  # raises UserError for what the method cannot run
    homogeneous: bool = False  # all clients must share one architecture
    needs_public: bool = False  # clients get public images
    needs_public_labels: bool = False  # and their classes
    sizes: Callable[[FederationSizes], Scalars] = lambda facts: {}
    extra_predictors: Mapping[str, Predictor] = field(default_factory=dict)  # by name, from the private model alone
    server_predict: Callable[[ServerSetup, State, Tensor], Tensor] | None = None  # by a model of the server's own
    accepted_substitutes: tuple[str, ...] = ()  # kinds of payload that the server takes in place of its own
    shared: Callable[[Blueprint, Any], Blueprint] = own_architecture  # the architecture whose weights travel
    linear_aggregation: bool = False  # the server needs only weighted means of a round's uploads
    local_phases: Callable[[Any, LocalTraining], tuple[LocalTraining, ...]] = lambda options, training: (training,)
    non_sgd_computation: Callable[[Any], str] = lambda options: ""
    public_loss: Callable[[Any, int], PublicLoss] = lambda options, round_: PublicLoss()
    about: str = ""  # in one sentence; empty where the first of its module says it


def check_architectures(method: Method, blueprints: Sequence[Blueprint]) -> None:
    """Refuse several architectures where a method needs one, and several widths where what it sends has one."""
    names, widths = sorted({item.name for item in blueprints}), sorted({item.width for item in blueprints})
    if method.homogeneous and len(names) > 1:
        raise UserError(
            f"method {method.name!r} needs one architecture for all clients, but models gives "
            f"{', '.join(names)}; pass one model, for example models={shown(names[0])}"
        )
    for kind in map(payload_kind, (*method.uploads, *method.broadcasts)):
        if len(widths) > 1 and (kind.space == "representation" or kind.network not in (None, "whole")):
            raise UserError(
                f"mapping='none': method {method.name!r} sends {kind.kind!r}, of one width for all clients, but models have "
                f"{', '.join(map(str, widths))}; pass mapping='ap', or one model"
            )


def refuse_no_method(name: str, value: object) -> None:
    """Raise UserError unless an object of another package is a method."""
    if not isinstance(value, Method):
        raise UserError(f"expected a fedpriv.federation.method.Method, got {type(value).__name__}")
    if not (isinstance(value.options, type) and is_dataclass(value.options)):
        raise UserError(f"options: expected a dataclass, got {value.options!r}")
    kinds = [payload_kind(kind) for kind in (*value.uploads, *value.broadcasts, *value.accepted_substitutes)]
    alone = [kind.kind for kind in kinds[: len(value.uploads)] if kind.aggregation == "none"]
    if value.linear_aggregation and alone:
        raise UserError(
            f"linear_aggregation=True, but uploads of {', '.join(alone)} are not added up (aggregation='none')"
        )
