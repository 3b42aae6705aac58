"""Uploads from a user's own code as a source, and the threat model that follows from what was handed in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpriv.attacks.contract import Same, Trained
from fedpriv.attacks.observation import GIVEN, BatchFacts, Observation, Statistics, TargetId, ThreatModel
from fedpriv.datasets.types import Samples
from fedpriv.federation.summary import DefenseFacts
from fedpriv.sources.messages import Raw
from fedpriv.sources.source import Source, batch_norms, by_round, read_card
from fedpriv.sources.truth import MOST_VALUES, Holdings, Pool, image_key
from fedpriv.uploads.kinds import ANSWERS, MIXTURES, NETWORKS, WHOLE
from fedpriv.uploads.payload import Message
from fedpriv.util.errors import UserError, shown
from fedpriv.util.seeds import generator


@dataclass(eq=False, kw_only=True)
class ExternalSource(Source):
    """Uploads that were made elsewhere, checked; mappings are by client, and hold those of whom something is known."""

    seen: tuple[Observation, ...]  # one for each round and client that took part in it
    images: Mapping[int, Samples]  # private images and their classes
    auxiliary: Samples  # images that no upload was computed from; classes are -1 where they are not known
    shares: Mapping[int, Tensor] = field(default_factory=dict)  # each image's share in the client's mixture
    extractors: Mapping[tuple[int, int], nn.Module] = field(default_factory=dict)  # (round, client) -> a copy
    heads: Mapping[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # weight ``(C, d)``, bias ``(C,)``
    batches: Mapping[int, BatchFacts] = field(default_factory=dict)
    running: Mapping[int, Statistics] = field(default_factory=dict)  # of the uploaded network's batch norms
    public: Samples | None = None  # the attacker's own images with their classes
    groups: Mapping[int, int] = field(default_factory=dict)  # independent unit; empty where each client is one
    per_image: bool = False  # of one client: each image is a unit
    raw: Mapping[int, Raw] = field(default_factory=dict)  # the newest upload as it was handed in
    held_out: Mapping[int, Samples] = field(default_factory=dict)  # the client's images that it did not train on
    method: str = "own uploads"  # as records call it
    dataset: str = "own images"
    command: str = "fedpriv.attack_uploads(...)"  # a call that does the same again
    defenses: tuple[DefenseFacts, ...] = ()  # for records
    notices: tuple[str, ...] = ()  # what was left out, and why

    def __str__(self) -> str:
        """The argument."""
        return "uploads"

    @property
    def last(self) -> int:
        """The attacked round."""
        return max(item.round for item in self.seen)

    @property
    def newest(self) -> tuple[Observation, ...]:
        """The observations of the attacked round."""
        return tuple(item for item in self.seen if item.round == self.last)

    def rounds(self) -> Mapping[int, Sequence[int]]:
        return {number: [o.client for o in group] for number, group in by_round(self.seen).items()}

    def upload(self, round_: int, client: int) -> Message:
        return next(item.upload for item in self.seen if (item.round, item.client) == (round_, client))

    def observations(self, rounds: Sequence[int]) -> tuple[Observation, ...]:
        return tuple(item for item in self.seen if item.round in rounds)

    def view(
        self, observations: tuple[Observation, ...]
    ) -> tuple[tuple[Observation, ...], tuple[Observation, ...] | None]:
        return (observations, None) if self.summed else super().view(observations)

    def usable_rounds(self, card: ThreatModel) -> Sequence[int]:
        # Networks are those behind the last round: of others only uploads count that hold all that is looked at.
        known = {o.round for o in self.seen if NETWORKS.first(o.broadcast) is not None} if self.kind in WHOLE else set()
        return sorted(self.rounds()) if self.kind in ANSWERS else sorted({*known, self.last})

    def extractor(self, round_: int, client: int, card: ThreatModel) -> Callable[[Tensor], Tensor]:
        if (round_, client) not in self.extractors:
            raise UserError(f"extractor: none of client {client} was handed in")
        return self.extractors[round_, client]

    def extractor_rounds(self) -> Collection[int]:
        return {number for number, _ in self.extractors}

    def head(self, round_: int, client: int) -> tuple[Tensor, Tensor] | None:
        return self.heads.get(client)

    def protocol(self, clients: Collection[int]) -> BatchFacts | None:
        facts = [self.batches[client] for client in clients if client in self.batches]
        if not facts:
            return None
        largest, most = max(fact.batch_size for fact in facts), max(fact.steps for fact in facts)
        return replace(facts[0], batch_size=largest, steps=most, sizes=())

    def batch(self, round_: int, client: int) -> BatchFacts | None:
        return self.batches.get(client)

    def statistics(self, card: ThreatModel, client: int, seen: Observation) -> Statistics | None:
        return self.running.get(client) if card.batch_norm == "running" and seen.round == self.last else None

    def auxiliary_images(self, card: ThreatModel) -> tuple[Tensor | None, Tensor | None]:
        if self.public is None or card.attacker_data == "none":
            return None, None
        return self.public.images, self.public.labels

    # ------------------------------------------------------------ the truth

    def private(self, client: int) -> Samples:
        return self.images[client]

    def used(self, round_: int, client: int) -> Tensor:
        return torch.arange(len(self.images[client]))

    def mixture(self, target: TargetId) -> Tensor:
        if target.client in self.shares:
            return self.shares[target.client]
        labels, payload = self.images[target.client].labels, MIXTURES.first(self.upload(target.round, target.client))
        encoding = None if payload is None else payload.said("weights")
        if encoding is None:
            raise UserError("weights: missing; the upload does not say how images are weighted")
        encoding = encoding.double().abs()
        return (encoding / torch.bincount(labels, minlength=len(encoding)).clamp(min=1))[labels]

    def pool(self, client: int, seed: int, kept: Trained) -> Pool:
        def draw() -> Pool:
            images, labels = self.auxiliary.images, self.auxiliary.labels
            order = torch.randperm(len(images), generator=generator(seed, "strangers"))
            order = order[: MOST_VALUES // images[0].numel()]
            return Pool.divided(images[order], labels[order], seed, "strangers")

        return kept.get(("pool", seed, Same(self.auxiliary)), draw)

    @torch.no_grad()
    def feature(self, target: TargetId, images: Tensor) -> Tensor | None:
        network = self.extractors.get((target.round, target.client))
        return None if network is None else network(images.to(self.device)).mean(0).cpu()

    def holdings(self, rounds: Collection[int], clients: Collection[int]) -> Holdings:
        places: dict[bytes, int] = {}  # an image that two clients have is nobody's non-member
        distinct: list[tuple[Tensor, Tensor]] = []

        def placed(samples: Samples) -> np.ndarray:
            index = [places.setdefault(image_key(image), len(places)) for image in samples.images]
            for place, image, label in zip(index, samples.images, samples.labels, strict=True):
                if place == len(distinct):
                    distinct.append((image, label))
            return np.array(index)

        train = {client: placed(current) for client, current in self.images.items()}
        used = {}
        if self.public is not None:  # a member that the attacker has too is not asked about
            known = [places[key] for key in map(image_key, self.public.images.cpu()) if key in places]
            used = {client: np.setdiff1d(index, known) for client, index in train.items()} if known else {}
        held_out = {client: placed(selected) for client, selected in self.held_out.items()}
        images, labels = map(torch.stack, zip(*distinct, strict=True))
        auxiliary = self.auxiliary
        samples = Samples(torch.cat([images, auxiliary.images]), torch.cat([labels, auxiliary.labels]))
        return Holdings(samples, train, used, held_out, self.device)

    def described(self, round_: int | None) -> dict[str, Any]:
        how = {"groups": self.groups, "per_image": self.per_image, "defenses": self.defenses}
        return {"method": self.method, "dataset": self.dataset, **how}


def derive_card(source: ExternalSource, granted: Mapping[str, Any] | Sequence[str]) -> ThreatModel:
    """Return the card that follows from what was handed in, with what is granted instead."""
    no_statistics = source.model is not None and bool(batch_norms(source.model)) and not source.running
    private = source.extractors or source.heads
    derived: dict[str, Any] = {
        "extractor": "white_box" if private else "none",
        "batch": bool(source.batches),
        "batch_norm": "none" if no_statistics else "running",
        "attacker_data": "none" if source.public is None else "same_domain",
    }
    card = read_card(granted, derived)
    for name, lacks in (
        ("extractor", card.extractor in ("white_box", "query") and not private),
        ("batch", card.batch and not source.batches),
        ("attacker_data", card.attacker_data != "none" and source.public is None),
        ("batch_norm", card.batch_norm == "running" and no_statistics),
    ):
        if lacks:
            where = f"knowledge={shown({name: getattr(card, name)})}"
            given = GIVEN.get(name, "fedpriv.Update(before, after) of whole state dicts")
            raise UserError(f"{where}: assumes what was not handed in; pass {given}")
    return replace(card, rounds_seen=1)
