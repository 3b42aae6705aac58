"""Canaries that pass a client's defenses: uploads as far apart as neighbours may be, each under noise of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.defenses.shared.signals import changed, norm, signal
from fedpriv.dp.claims import Claim
from fedpriv.federation.defense import Sender
from fedpriv.federation.prepared import Federation, init_rng
from fedpriv.util.errors import UserError
from fedpriv.util.listener import Report
from fedpriv.util.seeds import derive_seed, generator
from fedpriv.wire.kinds import VECTORS
from fedpriv.wire.payload import Message, Payload

FAR: Final = 1000.0
"""Length of a client's canary in lengths of what it would have sent: beyond any clip."""

Signals = Mapping[str, Tensor]


class CanaryPair(NamedTuple):
    """Uploads with and without a canary as they reach the defenses, the canary's direction, and its sender."""

    present: Message
    absent: Message
    ray: Signals
    sender: Sender


def upload_scores(
    federation: Federation, pair: CanaryPair, rounds: int, coins: NDArray[np.bool_], seed: int, report: Report
) -> NDArray[np.float64]:
    """Return the score ``(m,)`` of each canary: what was sent in its rounds, summed along its direction.

    Args:
        federation: whose pipeline of defenses it is.
        pair: the uploads.
        rounds: in which one canary sends.
        coins: ``(m,)``, whether each canary is in.
        seed: of all noise.
        report: hears of every canary.
    """
    ray, sender = pair.ray, pair.sender
    scores = np.zeros(len(coins))
    for canary, included in enumerate(coins.tolist()):
        noise = derive_seed(seed, "privacy-audit", canary)
        for round_ in range(1, rounds + 1):
            message = pair.present if included else pair.absent
            message = federation.pipeline.upload(message, replace(sender, round=round_), noise)
            sent = _signals(message, sender.broadcast)
            if any(name not in ray or value.shape != ray[name].shape for name, value in sent.items()):
                raise UserError("a defense gives uploads another shape; no canary can be followed through it")
            scores[canary] += sum(float((value.double() * ray[name].double()).sum()) for name, value in sent.items())
        report(canary + 1, len(coins), f"{canary + 1:,} of {len(coins):,}")
    return scores


def canary_pair(federation: Federation, claim: Claim, seed: int) -> CanaryPair:
    """Return the canary of client 0, made from what it really uploads after one round.

    Of a claim about clients an upload along one random direction, far longer than any clip, against its opposite (against
    none of it, where neighbours differ by being there). Of a claim about images one image, whose representation is as long
    as the clip allows, against its opposite, in a class of as few images as the defense lets through; the representations
    of all other images are zero.
    """
    setup = federation.clients[0]
    _, broadcast = federation.method.start(federation.server, init_rng(federation.config))
    state, rng = federation.initial_state(0), federation.client_rng(1, 0)
    _, message = federation.method.client_step(setup, state, broadcast, rng)
    sender = Sender(1, 0, setup.n_classes, setup.train.labels.cpu(), broadcast, federation.config.rounds)
    real = _signals(message, broadcast)
    if not real:
        raise UserError(f"clients of method {federation.method.name!r} upload nothing that a canary could be put into")
    rng = generator(seed, "privacy-audit", "direction")
    ray = {name: torch.randn(value.shape, generator=rng).to(value) for name, value in real.items()}
    if claim.unit == "client":
        length = FAR * max(1.0, claim.bound or 0.0, norm(real))
        ray = {name: value * (length / norm(ray)) for name, value in ray.items()}
    else:
        sender = _few_images(federation, sender, message)
        ray = _one_image(message, ray, claim, sender)

    def times(side: float) -> Message:
        def scaled(number: int, payload: Payload) -> Payload:
            return changed(payload, broadcast, lambda name, _: side * ray[f"{number}.{payload.kind}.{name}"])

        return tuple(scaled(index, payload) for index, payload in enumerate(message))

    return CanaryPair(times(1.0), times(-1.0 if claim.replaced else 0.0), ray, sender)


def _signals(message: Message, broadcast: Message) -> dict[str, Tensor]:
    """Return the signals of all payloads of a message by ``place.kind.name``."""
    return {
        f"{index}.{payload.kind}.{name}": value
        for index, payload in enumerate(message)
        for name, value in signal(payload, broadcast).items()
    }


def _few_images(federation: Federation, sender: Sender, message: Message) -> Sender:
    """Return the sender as a client that holds of each class as few images as its defenses let through."""
    floors = [getattr(defense, name, 1) for defense in federation.pipeline.defenses for name in ("floor", "least")]
    rows = [item.said("classes") for item in message if item.computed_from == "image"]
    of_rows = next((classes.cpu() for classes in rows if classes is not None), None)
    few = torch.unique(sender.labels).repeat_interleave(max(floors, default=1))
    return replace(sender, labels=few if of_rows is None else of_rows)


def _one_image(message: Message, ray: Signals, claim: Claim, sender: Sender) -> dict[str, Tensor]:
    """Return signals in which one image's representation is as long as it may be, and all others are zero."""
    if claim.bound is None:
        raise UserError(
            f"{claim.claimant} claims an epsilon of single images and does not say to which length their representations "
            "are clipped; state it as bound of the claim"
        )
    position = next((index for index, payload in enumerate(message) if payload.kind in VECTORS), None)
    if position is None:
        raise UserError(f"a claim about images is audited in uploads of {', '.join(VECTORS)}, or in local training")
    payload, alone = message[position], {name: torch.zeros_like(value) for name, value in ray.items()}
    name = f"{position}.{payload.kind}.{payload.values_field()}"
    row, first = (value if value.dim() == 1 else value[0] for value in (alone[name], ray[name]))
    row += first * (claim.bound * _share(payload, sender) / float(first.norm()))
    return alone


def _share(payload: Payload, sender: Sender) -> float:
    """Return the share that one image has of a payload's first row at most."""
    weights, classes = payload.said("weights"), payload.said("classes")
    counts = sender.class_counts.clamp(min=1).double()
    if weights is not None:
        return float((weights.cpu().double().abs() / counts).max())
    if payload.computed_from == "class" and classes is not None:
        return 1 / float(counts[classes[0].cpu()])
    return 1.0
