"""The contract of a source of uploads, and what all sources have in common. What one must write, it writes in one file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.attacks.contract import Trained
from fedpriv.attacks.inputs.targets import Said, said
from fedpriv.attacks.observation import BatchFacts, Observation, Statistics, TargetId, ThreatModel, Unit
from fedpriv.datasets.types import Samples
from fedpriv.federation.defense import DefensePipeline
from fedpriv.sources.shuffled import shuffle
from fedpriv.sources.truth import Holdings, Pool, Truth
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError
from fedpriv.util.pairs import mapping
from fedpriv.wire.kinds import LAYERS, NETWORKS, PUBLIC_OUTPUTS, TELLING, payload_kind
from fedpriv.wire.payloads import Message, PublicLoss


@dataclass(eq=False, kw_only=True)
class Source(ABC):
    """Uploads of one kind, with all that a threat model may grant beside them, and the truth for scorers.

    Attributes:
        kind: of upload that is attacked.
        image_shape: (channels, height, width).
        n_classes: C.
        device: where to compute.
        uploads: kinds of payload that clients send.
        pipeline: the defenses that clients apply, as far as they are known.
        total_rounds: by which defenses with a budget divide it.
        model: architecture of uploaded weights, or None.
        summed: the server sees sums of uploads alone.
    """

    kind: str
    image_shape: tuple[int, int, int]
    n_classes: int
    device: torch.device
    uploads: tuple[str, ...]
    pipeline: DefensePipeline
    total_rounds: int
    model: nn.Module | None = None
    summed: bool = False

    # ------------------------------------------------------------ what the server saw

    @abstractmethod
    def rounds(self) -> Mapping[int, Sequence[int]]:
        """Return round -> clients whose uploads are there."""

    @abstractmethod
    def upload(self, round_: int, client: int) -> Message:
        """Return an upload as it was sent."""

    @abstractmethod
    def observations(self, rounds: Sequence[int]) -> tuple[Observation, ...]:
        """Return the uploads of some rounds, each beside the broadcast that it answers."""

    def view(
        self, observations: tuple[Observation, ...]
    ) -> tuple[tuple[Observation, ...], tuple[Observation, ...] | None]:
        """Return the server's view of uploads, and the shuffled control; None where there is no other client."""
        return observations, shuffle(observations)

    def has_images(self, round_: int, client: int) -> bool:
        """True where an image is behind an upload: random batches may all be empty."""
        return True

    def usable_rounds(self, card: ThreatModel) -> Sequence[int]:
        """Return the rounds of which everything is at hand that an inference takes of a round, ascending."""
        return sorted(self.rounds())

    def disclosed(self, last: int | None = None) -> dict[int, Said]:
        """Return each client's classes and counts as its uploads up to a round say in clear; None reads all rounds.

        Empty where no upload names classes, and where the server sees sums of uploads only.
        """
        if self.summed or not any(kind in TELLING for kind in self.uploads):
            return {}
        rounds = {
            number: current for number, current in sorted(self.rounds().items()) if last is None or number <= last
        }
        clients = sorted({client for sending in rounds.values() for client in sending})
        return {k: said(self.upload(n, k) for n, sending in rounds.items() if k in sending) for k in clients}

    # ------------------------------------------------------------ what a threat model may grant

    def settled(self, card: ThreatModel) -> ThreatModel:
        """Return the card that results carry."""
        return card

    @abstractmethod
    def extractor(self, round_: int, client: int, card: ThreatModel) -> Callable[[Tensor], Tensor]:
        """Return a client's own extractor behind the upload of a round."""

    def extractor_rounds(self) -> Collection[int]:
        """Return the rounds before the attacked one behind whose uploads the extractors are known."""
        return ()

    def head(self, round_: int, client: int) -> tuple[Tensor, Tensor] | None:
        """Return weight ``(C, d)`` and bias ``(C,)`` of the private head that had a part in an upload, or None."""
        return None

    def protocol(self, clients: Collection[int]) -> BatchFacts | None:
        """Return facts of all clients' local steps: the largest batch and the largest number of steps."""
        return None

    def batch(self, round_: int, client: int) -> BatchFacts | None:
        """Return the facts of a client's own local steps, or None."""
        return None

    def loss(self, round_: int) -> PublicLoss:
        """Return the loss behind uploaded weights, as the protocol says it."""
        return PublicLoss()

    def statistics(self, card: ThreatModel, client: int, seen: Observation) -> Statistics | None:
        """Return the statistics of batch norms that a card grants about an upload, or None."""
        return None

    def auxiliary_images(self, card: ThreatModel, seed: int) -> tuple[Tensor | None, Tensor | None]:
        """Return the attacker's own images, and their classes where these are of the clients' domain."""
        return None, None

    # ------------------------------------------------------------ the truth, for scorers and whoever chooses targets

    @abstractmethod
    def private(self, client: int) -> Samples:
        """Return a client's training images in [0, 1] with their classes, on the CPU."""

    @abstractmethod
    def used(self, round_: int, client: int) -> Tensor:
        """Return positions ``(n,)`` of the images of all local steps behind an upload; one used twice counts twice."""

    def rows(self, target: TargetId) -> Tensor:
        """Return the position ``(n,)`` of the image behind each uploaded row."""
        return torch.arange(len(self.private(target.client)))

    @abstractmethod
    def mixture(self, target: TargetId) -> Tensor:
        """Return the weight ``(n,)`` float64 of every training image in a client's mixture."""

    @abstractmethod
    def pool(self, client: int, seed: int, kept: Trained) -> Pool:
        """Return images that a client's targets have nothing to do with; drawn once and kept."""

    @abstractmethod
    def feature(self, target: TargetId, images: Tensor) -> Tensor | None:
        """Return the mean representation ``(d,)`` of images behind a target; None where no extractor is known."""

    @abstractmethod
    def holdings(self, rounds: Collection[int], clients: Collection[int]) -> Holdings:
        """Return who holds which images, and which of them went into uploads of some rounds."""

    def described(self, round_: int | None) -> dict[str, Any]:
        """Return the source as records describe it: fields of :class:`fedpriv.scoring.records.Provenance`."""
        return {}

    def labels(self, round_: int, client: int) -> Tensor:
        """Return the classes of all images of all steps behind an upload ``(n,)``."""
        return self.private(client).labels[self.used(round_, client)]

    def truths(
        self, targets: Sequence[TargetId], *, seed: int, unit: Unit = "upload", kept: Trained | None = None
    ) -> tuple[Truth, ...]:
        """Return the truth of each target."""
        keep, result = kept or Trained(), []
        for target in targets:
            private = self.private(target.client)
            index, weights = self._members(private.labels, target, of_class=unit == "class" and self.kind not in LAYERS)
            if not len(index):
                raise UserError(
                    f"images: client {target.client} has none of class {target.label}, which its upload names"
                )
            images = private.images[index]
            recovered = (
                unit in ("class", "row") and self.kind not in PUBLIC_OUTPUTS
            )  # outputs lead to no representation
            feature = self.feature(target, images) if recovered else None
            pool = self.pool(target.client, seed, keep)
            result.append(Truth(images, weights, private.labels[index], pool, feature))
        return tuple(result)

    def _members(self, labels: Tensor, target: TargetId, *, of_class: bool) -> tuple[Tensor, Tensor]:
        """Return positions ``(m,)`` and weights ``(m,)`` of the images behind a target."""
        origin = payload_kind(self.kind).computed_from
        if of_class or origin == "class":
            index = (labels == target.label).nonzero().squeeze(1)
        elif origin == "image":
            index = self.rows(target)[target.index][None]
        elif self.kind in LAYERS:
            used = self.used(target.round, target.client).unique()
            index = used[labels[used] == labels[used].unique()[target.index]]
        elif origin == "mixture":
            weights = self.mixture(target).abs()  # signed draws count by magnitude
            index = (weights > 0).nonzero().squeeze(1)
            return index, weights[index] / weights[index].sum()
        elif self.kind in NETWORKS:
            index = self.used(target.round, target.client)
        else:
            raise UserError(
                f"no images are known to be behind an upload of {self.kind}, which is computed from: {origin}"
            )
        return index, torch.full((len(index),), 1 / max(len(index), 1), dtype=torch.float64)


def read_card(
    given: Mapping[str, Any] | Sequence[str], default: Mapping[str, Any] = MappingProxyType({})
) -> ThreatModel:
    """Return the threat model that grants describe, a mapping or texts ``GRANT=VALUE``; each attack sets its rounds."""
    values = {**default, **mapping("knowledge", given)}
    if "rounds_seen" in values:
        raise UserError("knowledge rounds_seen: use rounds_seen")
    if values.get("batch") in ("known", "none"):
        values["batch"] = values["batch"] == "known"
    card = parse(ThreatModel, values, "knowledge")
    if card.extractor == "shadow" and card.attacker_data != "same_domain":
        raise UserError("knowledge extractor=shadow: is trained on the attacker's own images; grant attacker_data too")
    return card
