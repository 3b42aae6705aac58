"""The private trace of local rounds: which images a client trained on, and with which weight it mixed them.

Read by scorers, by whoever chooses the targets, and by :func:`granted`, through which alone a knowledge card hands over
what it grants of it. No attack reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedpriv.attacks.inputs.targets import observation_of
from fedpriv.attacks.observation import BatchFacts, KnowledgeCard, Observation, Statistics, TargetId
from fedpriv.evidence.norm_statistics import exact_statistics
from fedpriv.federation.capture import load_trace, trace_path
from fedpriv.federation.prepared import Federation
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.models.split import SplitModel
from fedpriv.util.errors import UserError


def local_steps(run: RunDirectory, round_: int, client: int) -> tuple[Tensor, ...]:
    """Return the batches of the local steps behind an upload, as indices into the client's training set."""
    phases = load_trace(run, round_, client).phases
    if not phases:
        raise UserError(
            f"{trace_path(run, round_, client)}: method {run.config.method!r} noted no local steps, without which uploads "
            "of trained weights cannot be scored; hand setup.trace to train, or call its local_steps"
        )
    return phases[-1]


def used_images(run: RunDirectory, round_: int, client: int) -> Tensor:
    """Return the training images ``(n,)`` of all steps of a round in order; an image used twice counts twice."""
    return torch.cat([torch.empty(0, dtype=torch.int64), *local_steps(run, round_, client)])


def mixing_weights(run: RunDirectory, round_: int, client: int) -> Tensor:
    """Return the weight ``(n,)`` float64 of every training image in a client's entangled upload."""
    weights = load_trace(run, round_, client).mixture
    if weights is None:
        raise UserError(
            f"{trace_path(run, round_, client)}: nobody noted the weights of the mixture; whoever mixes calls "
            "mixture of its trace"
        )
    return weights.double()


def round_classes(
    run: RunDirectory, federation: Federation, round_: int, client: int, *, given: bool
) -> list[TargetId]:
    """Return one target for each class that a client trained on in a round, ascending; only ``given`` ones name it."""
    classes = _labels(run, federation, round_, client).unique().tolist()
    return [TargetId(round_, client, place, label if given else -1) for place, label in enumerate(classes)]


def round_members(run: RunDirectory, federation: Federation, target: TargetId) -> Tensor:
    """Return the training indices of a class's images that a round's steps used, each once."""
    labels = federation.clients[target.client].train.labels.cpu()
    used = used_images(run, target.round, target.client).unique()
    wanted = labels[used].unique()[target.index]
    members: Tensor = used[labels[used] == wanted]
    return members


@dataclass(frozen=True)
class Granted:
    """The part of a round's trace that a card hands over; see the attributes of the same name of ``Knowledge``."""

    batches: Mapping[int, BatchFacts] = field(default_factory=dict)
    labels: Mapping[tuple[int, int], Tensor] = field(default_factory=dict)
    statistics: Mapping[tuple[int, int], Statistics] = field(default_factory=dict)


def granted(
    run: RunDirectory,
    federation: Federation,
    card: KnowledgeCard,
    round_: int,
    clients: Collection[int],
    model: SplitModel | None,
    observations: Sequence[Observation],
) -> Granted:
    """Hand over what a card grants of the local steps behind uploads of trained weights, and nothing else."""
    batches, labels, statistics = {}, {}, {}
    for k in sorted(clients):
        if card.batch:
            batches[k] = _batch_facts(run, federation, round_, k)
        if card.labels == "given":
            labels[round_, k] = _labels(run, federation, round_, k)
        if card.batch_norm == "exact" and model is not None:
            seen = observation_of(observations, TargetId(round_, k))
            statistics[round_, k] = exact_statistics(federation.clients[k], local_steps(run, round_, k), model, seen)
    return Granted(batches, labels, statistics)


def _labels(run: RunDirectory, federation: Federation, round_: int, client: int) -> Tensor:
    """Return the labels of all images of all steps of a round ``(n,)``; an image used twice counts twice."""
    labels: Tensor = federation.clients[client].train.labels.cpu()
    return labels[used_images(run, round_, client)]


def _batch_facts(run: RunDirectory, federation: Federation, round_: int, client: int) -> BatchFacts:
    """Return the sizes of the batches of a client's steps; empty ones, which Poisson samples may be, are no steps."""
    sizes = tuple(len(batch) for batch in local_steps(run, round_, client) if len(batch))
    size = max(sizes, default=federation.config.training.batch_size)
    return BatchFacts(size, federation.config.training.learning_rate, len(sizes) or 1, sizes)
