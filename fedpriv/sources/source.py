"""The contract of a source of uploads, and what all sources have in common. What one must write, it writes in one file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.attacks.contract import Trained
from fedpriv.attacks.inputs.targets import Said, said
from fedpriv.attacks.observation import BatchFacts, Observation, Statistics, TargetId, ThreatModel, Unit
from fedpriv.datasets.types import Samples
from fedpriv.federation.defense import DefensePipeline
from fedpriv.sources.truth import Holdings, Pool, Truth
from fedpriv.uploads.kinds import BY_CLASS, CLASS_OUTPUTS, LAYERS, NETWORKS, PUBLIC_OUTPUTS, TELLING, payload_kind
from fedpriv.uploads.payloads import Message, Payload, PublicLoss, SampleCount, find_payload
from fedpriv.util.config import mapping, parse
from fedpriv.util.errors import UserError


@dataclass(eq=False, kw_only=True)
class Source(ABC):
    """Uploads of one kind, with all that a threat model may grant beside them, and the truth for scorers."""

    kind: str  # of upload that is attacked
    image_shape: tuple[int, int, int]  # (channels, height, width)
    n_classes: int
    device: torch.device  # where to compute
    uploads: tuple[str, ...]  # kinds of payload that clients send
    pipeline: DefensePipeline  # the defenses that clients apply, as far as they are known
    total_rounds: int  # by which defenses with a budget divide it
    model: nn.Module | None = None  # architecture of uploaded weights
    summed: bool = False  # the server sees sums of uploads alone

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
        if self.summed:
            return summed(observations), summed_without_own(observations)
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
        there = {number: clients for number, clients in sorted(self.rounds().items()) if last is None or number <= last}
        every = sorted({client for clients in there.values() for client in clients})
        return {k: said(self.upload(number, k) for number, clients in there.items() if k in clients) for k in every}

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

    def auxiliary_images(self, card: ThreatModel) -> tuple[Tensor | None, Tensor | None]:
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
        """Return the source as records describe it: fields of :class:`fedpriv.eval.records.Provenance`."""
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
                text = f"client {target.client} has none of class {target.label}, which its upload names"
                raise UserError(f"images: {text}")
            images, pool = private.images[index], self.pool(target.client, seed, keep)
            recovered = unit in ("class", "row") and self.kind not in PUBLIC_OUTPUTS  # these lead to no representation
            feature = self.feature(target, images) if recovered else None
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
            raise UserError(f"no images are known to be behind uploads of {self.kind}, computed from: {origin}")
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
        raise UserError("knowledge extractor=shadow: is trained on the attacker's own images; add attacker_data too")
    return card


def batch_norms(model: nn.Module) -> dict[str, nn.BatchNorm2d]:
    """Return the batch norms of a network by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.BatchNorm2d)}


# ---------------------------------------------------------------- the shuffled control, and sums


def by_round(observations: Sequence[Observation]) -> dict[int, list[Observation]]:
    """Return the observations of each round, in order."""
    groups: dict[int, list[Observation]] = {}
    for observation in observations:
        groups.setdefault(observation.round, []).append(observation)
    return groups


def shuffle(observations: Sequence[Observation]) -> tuple[Observation, ...] | None:
    """Give every client's place the upload of the next client of the same round; None where a round has one client.

    Rows keep their number and labels, so that targets still point at something; only what was computed from images is
    the other client's, and so are the weights that it was computed from. What an attack still reaches, it did not get from
    the upload.
    """
    groups = by_round(observations).values()
    if any(len(group) < 2 for group in groups):
        return None
    return tuple(
        replace(other, client=seen.client, upload=_in_place_of(seen.upload, other.upload))
        for group in groups
        for seen, other in zip(group, [*group[1:], group[0]], strict=True)
    )


def _in_place_of(message: Message, other: Message) -> Message:
    """Return the other client's payloads of the own kinds; what the other did not send (it is sent once) is left out."""
    result = []
    for mine in message:
        theirs = find_payload(other, type(mine))
        if theirs is not None and mine.kind in BY_CLASS:
            field, classes, others = str(mine.values_field()), mine.said("classes"), theirs.said("classes")
            values: Tensor = getattr(theirs, field)
            if classes is not None and others is not None:
                there = [*range(len(others))]
                differing = [there] * len(classes)
                if mine.kind in CLASS_OUTPUTS:  # these look much the same from every client: those of another class
                    differing = [(others != label).nonzero().squeeze(1).tolist() or there for label in classes.tolist()]
                rows = [some[index % len(some)] for index, some in enumerate(differing)]
                values = values[rows]
            theirs = replace(mine, **{field: values})
        result += [] if theirs is None else [theirs]
    return tuple(result)


def summed(observations: Sequence[Observation]) -> tuple[Observation, ...]:
    """Return the observations with each upload replaced by the mean over its round's clients."""
    means = {number: mean_upload([o.upload for o in group]) for number, group in by_round(observations).items()}
    return tuple(replace(o, upload=means[o.round]) for o in observations)


def summed_without_own(observations: Sequence[Observation]) -> tuple[Observation, ...] | None:
    """Return the control: each upload replaced by the mean over the round's other clients; None with a single client."""
    rounds = by_round(observations)
    if any(len(group) < 2 for group in rounds.values()):
        return None
    others = [[other.upload for other in rounds[o.round] if other.client != o.client] for o in observations]
    return tuple(replace(o, upload=mean_upload(uploads)) for o, uploads in zip(observations, others, strict=True))


def mean_upload(uploads: Sequence[Message]) -> Message:
    """Return the mean of uploads of the same kinds, weighted by numbers of samples where they are uploaded.

    Numbers of samples themselves are added up. Angle matrices become dense, as the server's mean is.
    """
    counts = [find_payload(upload, SampleCount) for upload in uploads]
    numbers = torch.tensor([1 if count is None else int(count.count) for count in counts], dtype=torch.float64)
    shares = (numbers / numbers.sum()).tolist()
    return tuple(_mean([payload.addable() for payload in payloads], shares) for payloads in zip(*uploads, strict=True))


def _mean(payloads: Sequence[Payload], shares: Sequence[float]) -> Payload:
    first = payloads[0]
    if first.aggregation == "none":
        raise UserError(f"uploads of {first.kind} are not added up: the server of a method that sends them needs each")

    def weighted(tensors: Sequence[Tensor]) -> Tensor:
        factors = [1.0] * len(shares) if first.aggregation == "sum" else shares
        total = sum(share * tensor.double() for share, tensor in zip(factors, tensors, strict=True))
        return torch.as_tensor(total).to(tensors[0].dtype)

    values: dict[str, Any] = {}
    for spec in fields(first):
        entries = [getattr(payload, spec.name) for payload in payloads]
        if not spec.metadata["private"]:
            values[spec.name] = entries[0]  # metadata, the same for everybody who answers one broadcast
        elif isinstance(entries[0], Mapping):
            values[spec.name] = {name: weighted([each[name] for each in entries]) for name in entries[0]}
        elif entries[0] is not None:
            values[spec.name] = weighted(entries)
    return replace(first, **values)
