"""Canaries within local training: images whose gradients point along coordinates of their own, in one run.

The strongest canaries of DP-SGD (Nasr et al. 2023; Steinke et al. 2023, white-box setting): the gradient of a canary is one
entry, far beyond the clip. In is every canary with probability 1/2; whoever is in is one of the client's images: it is
drawn into batches, clipped and put under noise as they are. Who is in is told from what the client uploaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpriv.datasets.types import Samples
from fedpriv.defenses.shared.signals import signal
from fedpriv.federation.defense import GradientTransform, ProtectionPlan, Step, Work
from fedpriv.federation.engine import ClientJob, client_part
from fedpriv.federation.method import GuardedTraining, LocalTraining
from fedpriv.federation.prepared import Federation, init_rng, protection_plan
from fedpriv.util.errors import UserError
from fedpriv.util.listener import Report
from fedpriv.util.seeds import generator
from fedpriv.wire.payload import Message

FAR: Final = 1e4
"""Length of a canary's gradient: beyond any clip."""

MARK: Final = 2.0
"""Brightness from which on an image is a canary; true images end at 1."""


@dataclass(frozen=True)
class Coordinates:
    """Places of canaries among the parameters that are uploaded.

    Attributes:
        names: of the uploaded tensors that are parameters, in order.
        sizes: of each.
        places: ``(m,)`` int64 of each canary, counted through all of them.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    places: Tensor

    def of(self, canary: int) -> tuple[str, int]:
        """Return the tensor that a canary has an entry of, and which."""
        place = int(self.places[canary])
        for name, size in zip(self.names, self.sizes, strict=True):
            if place < size:
                return name, place
            place -= size
        raise IndexError(canary)

    def read(self, values: dict[str, Tensor]) -> NDArray[np.float64]:
        """Return every canary's entry, ``(m,)``."""
        whole = torch.cat([values[name].reshape(-1) for name in self.names])
        found: NDArray[np.float64] = whole.cpu().double()[self.places].numpy()
        return found


def audited_client(federation: Federation, coins: NDArray[np.bool_], seed: int) -> tuple[Federation, ProtectionPlan]:
    """Return a federation of client 0 alone with the canaries that are in among its images, and its plan.

    Args:
        federation: as it was prepared.
        coins: ``(m,)``, whether each canary is in.
        seed: of the canaries' coordinates.

    Raises:
        UserError: where too few weights are uploaded for so many canaries.
    """
    setup = federation.clients[0]
    places = _coordinates(federation, len(coins), seed)
    own, there = setup.train, np.flatnonzero(coins)
    marks = MARK + torch.as_tensor(there, dtype=torch.float32, device=own.images.device)
    images = marks[:, None, None, None].expand(-1, *own.images.shape[1:])
    labels = own.labels[torch.arange(len(there), device=own.labels.device) % len(own.labels)]
    joined = Samples(torch.cat([own.images, images]), torch.cat([own.labels, labels]))
    config = replace(federation.config, clients=1, participation=1.0)
    extended = replace(setup, train=joined, training=_unguarded(setup.training))
    server = replace(federation.server, n_clients=1, blueprints=federation.server.blueprints[:1])
    plan = protection_plan(config, federation.method, (extended,))
    alone = replace(federation, config=config, clients=(extended,), server=server)
    canary: GradientTransform = lambda step: canary_step(step, places.of)  # noqa: E731
    training = GuardedTraining(
        **vars(extended.training),
        guards=(canary, *federation.pipeline.guards(plan)),
        poisson=federation.pipeline.poisson(),
    )
    return replace(alone, clients=(replace(extended, training=training),)), plan


def training_scores(federation: Federation, canaries: int, seed: int, report: Report) -> NDArray[np.float64]:
    """Return the scores of all canaries after one run: how far the uploads moved against their gradients.

    Args:
        federation: as :func:`audited_client` makes it.
        canaries: how many there are.
        seed: of their coordinates.
        report: hears of every round.
    """
    places = _coordinates(federation, canaries, seed)
    method, config = federation.method, federation.config
    server, broadcast = method.start(federation.server, init_rng(config))
    state, total = federation.initial_state(0), np.zeros(canaries)
    for round_ in range(1, config.rounds + 1):
        found = client_part(federation, ClientJob(round_, 0, state, broadcast))
        state = found.state
        if found.upload:
            total -= places.read(_updates(found.upload, broadcast))
            rng = generator(config.seed, "server-step", round_)
            server, broadcast = method.server_step(federation.server, server, [(0, found.upload)], rng)
        report(round_, config.rounds, f"round {round_}")
    return total


def canary_step(step: Step, of: Callable[[int], tuple[str, int]]) -> Step:
    """Return the step whose canaries have a gradient of one entry each; other images are left to ``step``.

    Args:
        step: of true images.
        of: canary -> the name of an uploaded tensor, and the entry.
    """

    def stepped(work: Work, images: Tensor, labels: Tensor) -> Tensor:
        marks = images.flatten(1)[:, 0] if len(images) else images.new_zeros(0)
        canaries = marks >= MARK
        if not bool(canaries.any()):
            return step(work, images, labels)
        own, loss = int((~canaries).sum()), torch.zeros((), device=images.device)
        if own:
            loss = step(work, images[~canaries], labels[~canaries]) * own / len(images)
            for parameter in work.parameters:
                if parameter.grad is not None:
                    parameter.grad *= own / len(images)
        for mark in marks[canaries].tolist():
            name, entry = of(round(mark - MARK))
            for parameter in _named(work, name):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                place = np.unravel_index(entry, parameter.shape)
                parameter.grad[place] += FAR / len(images)
        return loss

    return stepped


def _named(work: Work, name: str) -> list[nn.Parameter]:
    """Return the moved parameters that an uploaded tensor is of: of that name, behind any prefix."""
    moved = {id(parameter) for parameter in work.parameters}
    return [
        parameter
        for own, parameter in work.module.named_parameters()
        if id(parameter) in moved and (own == name or own.endswith(f".{name}"))
    ]


def _updates(message: Message, broadcast: Message) -> dict[str, Tensor]:
    """Return differences from the broadcast by the names of parameters."""
    return {
        name.partition("/")[2]: value
        for payload in message
        for name, value in signal(payload, broadcast).items()
        if "/" in name
    }


def _coordinates(federation: Federation, canaries: int, seed: int) -> Coordinates:
    """Draw a place of its own for each canary among the uploaded parameters.

    Raises:
        UserError: where there are fewer of them.
    """
    _, broadcast = federation.method.start(federation.server, init_rng(federation.config))
    known = {name: parameter.shape for name, parameter in federation.clients[0].model.named_parameters()}
    sizes = {
        name.partition("/")[2]: value.numel()
        for payload in broadcast
        if payload.kind in federation.method.uploads
        for name, value in payload.tensors().items()
        if any(own == (short := name.partition("/")[2]) or own.endswith(f".{short}") for own in known)
    }
    there = sum(sizes.values())
    if there < canaries:
        raise UserError(
            f"{canaries:,} canaries need an uploaded weight each, and clients of method {federation.method.name!r} upload "
            f"{there:,}; take fewer canaries, or a larger model"
        )
    order = torch.randperm(there, generator=generator(seed, "privacy-audit", "coordinates"))
    return Coordinates(tuple(sizes), tuple(sizes.values()), order[:canaries])


def _unguarded(training: LocalTraining) -> LocalTraining:
    """Return the training without the guards of defenses."""
    names = LocalTraining.__dataclass_fields__
    return LocalTraining(**{name: getattr(training, name) for name in names})
