"""Canaries that pass a client's defenses: uploads as far apart as neighbours may be, each under noise of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from fedpriv.defenses.shared.signals import changed, norm, signal
from fedpriv.experiment.dp_audit.claims import Claim
from fedpriv.federation.defense import Sender
from fedpriv.federation.prepared import Federation, init_rng
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator
from fedpriv.wire.kinds import VECTORS
from fedpriv.wire.payload import Message, Payload

FAR: Final = 1000.0
"""Length of a client's canary in lengths of what it would have sent: beyond any clip."""

LEARNING: Final = 128
"""Uploads of known coins by which an attacker learns where to look, where a defense changes the shape of an upload."""

Signals = Mapping[str, Tensor]


@dataclass(frozen=True)
class UploadCanaries:
    """Canaries of one kind of upload behind a pipeline of defenses.

    Attributes:
        federation: whose pipeline it is.
        sender: the client whose upload is taken, with the labels that the canaries have.
        present: what it hands to its defenses where the canary is in.
        absent: what it hands to them where it is not.
        direction: by which a server scores what comes out; None until it is learned.
        rounds: in which one canary sends.
        seed: of all noise.
    """

    federation: Federation
    sender: Sender
    present: Message
    absent: Message
    direction: Signals
    rounds: int
    seed: int

    def score(self, canary: int, *, included: bool) -> float:
        """Return the score of one canary: the sum over its rounds of what was sent, along the direction."""
        return float(
            sum(
                (
                    _along(self._sent(canary, round_, included=included), self.direction)
                    for round_ in range(1, self.rounds + 1)
                ),
                0.0,
            )
        )

    def _sent(self, canary: int, round_: int, *, included: bool) -> Signals:
        sender = replace(self.sender, round=round_)
        message = self.present if included else self.absent
        seed = derive_seed(self.seed, "privacy-audit", canary)
        return _signals(self.federation.pipeline.upload(message, sender, seed), sender.broadcast)

    def looked_along(self) -> Signals:
        """Return where a server looks: along the canaries; where the defenses change shapes, along what it learns.

        It learns from uploads of coins that it knows, which are no canaries of the audit.

        Raises:
            UserError: where nothing is left to learn from.
        """
        sent = self._sent(-1, 1, included=True)
        if {name: one.shape for name, one in sent.items()} == {name: one.shape for name, one in self.direction.items()}:
            return self.direction
        total: dict[str, Tensor] = {}
        for number in range(LEARNING):
            side = 1 if number % 2 == 0 else -1
            for name, value in self._sent(-1 - number, 1, included=side > 0).items():
                before = total.get(name)
                if before is not None and before.shape != value.shape:
                    raise UserError(
                        "a defense gives uploads another shape each time; no canary can be followed through it"
                    )
                total[name] = side * value if before is None else before + side * value
        if not total:
            raise UserError("behind the defenses nothing is left of an upload by which a canary could be told")
        return total


def upload_canaries(federation: Federation, claim: Claim, seed: int) -> UploadCanaries:
    """Return the canaries of client 0, from what it really uploads after one round.

    Of a claim about clients an upload along one random direction, far longer than any clip, against its opposite (against
    none of it, where neighbours differ by being there). Of a claim about images one image, whose representation is as long
    as the clip allows, against its opposite, in a class of as few images as the defense lets through; the representations
    of all other images are zero.

    Raises:
        UserError: where an upload holds nothing that a canary could be put into.
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
    present = _with(message, broadcast, ray)
    absent = _with(message, broadcast, ray, times=-1.0 if claim.replaced else 0.0)
    made = UploadCanaries(federation, sender, present, absent, ray, claim.rounds, seed)
    return replace(made, direction=made.looked_along())


def _signals(message: Message, broadcast: Message) -> dict[str, Tensor]:
    """Return the signals of all payloads of a message by ``place.kind.name``."""
    return {
        _called(place, payload, name): value
        for place, payload in enumerate(message)
        for name, value in signal(payload, broadcast).items()
    }


def _called(place: int, payload: Payload, name: str) -> str:
    return f"{place}.{payload.kind}.{name}"


def _with(message: Message, broadcast: Message, values: Signals, times: float = 1.0) -> Message:
    """Return a message whose signals are so many times others."""

    def change(place: int, payload: Payload) -> Payload:
        return changed(payload, broadcast, lambda name, _: times * values[_called(place, payload, name)])

    return tuple(change(place, payload) for place, payload in enumerate(message))


def _few_images(federation: Federation, sender: Sender, message: Message) -> Sender:
    """Return the sender as a client that holds of each class as few images as its defenses let through."""
    wanted = [getattr(one, name, 1) for one in federation.pipeline.defenses for name in ("floor", "least")]
    rows = [one.said("classes") for one in message if one.computed_from == "image"]
    of_rows = next((classes.cpu() for classes in rows if classes is not None), None)
    few = torch.unique(sender.labels).repeat_interleave(max(wanted, default=1))
    return replace(sender, labels=few if of_rows is None else of_rows)


def _one_image(message: Message, ray: Signals, claim: Claim, sender: Sender) -> dict[str, Tensor]:
    """Return signals in which one image's representation is as long as it may be, and all others are zero."""
    if claim.bound is None:
        raise UserError(
            f"{claim.claimant} claims an epsilon of single images and does not say to which length their representations "
            "are clipped; state it as bound of the claim"
        )
    place = next((place for place, payload in enumerate(message) if payload.kind in VECTORS), None)
    if place is None:
        raise UserError(f"a claim about images is audited in uploads of {', '.join(VECTORS)}, or in local training")
    payload, found = message[place], {name: torch.zeros_like(value) for name, value in ray.items()}
    name = _called(place, payload, str(payload.values_field()))
    weights, classes = payload.said("weights"), payload.said("classes")
    counts, share = sender.class_counts.clamp(min=1).double(), 1.0
    if weights is not None:
        share = float((weights.cpu().double().abs() / counts).max())
    elif payload.computed_from == "class" and classes is not None:
        share = 1 / float(counts[classes[0].cpu()])
    row = found[name] if found[name].dim() == 1 else found[name][0]
    first = ray[name] if ray[name].dim() == 1 else ray[name][0]
    row += first * (claim.bound * share / float(first.norm()))
    return found


def _along(sent: Signals, direction: Signals) -> float:
    """Return the inner product; what was not sent adds nothing."""
    parts = [(sent[name].double() * own.double()).sum() for name, own in direction.items() if name in sent]
    return float(sum(parts, torch.zeros(()).double()))
