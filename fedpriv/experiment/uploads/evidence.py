"""From checked uploads to what an attack is handed: observations, their permutation, the knowledge card and its grants."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.attacks.contract import Attack, Declared
from fedpriv.attacks.inference.base import Inference
from fedpriv.attacks.inversion.surrogate import shadow_extractor
from fedpriv.attacks.observation import (
    BatchFacts,
    Knowledge,
    KnowledgeCard,
    Observation,
    Rehearsal,
    Statistics,
    TargetId,
    WeightRehearsal,
)
from fedpriv.attacks.trained import Trained
from fedpriv.datasets.types import Samples
from fedpriv.evidence.gather import Evidence
from fedpriv.evidence.norm_statistics import batch_norms
from fedpriv.evidence.permuted import permute
from fedpriv.evidence.targets import choose_classes, choose_targets, classes_with_weight
from fedpriv.experiment.uploads.announced import tried
from fedpriv.experiment.uploads.given import PrivateImages
from fedpriv.scoring.premise import Rounding
from fedpriv.util.arguments import argument
from fedpriv.util.config import parse, plain
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import ANSWERS, LAYERS, NETWORKS, PUBLIC_OUTPUTS, VECTORS, WHOLE
from fedpriv.wire.plain_tensor import check_plain


@dataclass(frozen=True)
class Handed:
    """Everything that was handed in, checked.

    Attributes:
        target: kind of upload.
        observations: one for each round and client that took part in it.
        own: each client's private images; for scorers, and for labels where the card gives them.
        held_out: each client's own images that it did not train on; for scorers. Empty where none were given.
        image_shape: (channels, height, width).
        n_classes: C.
        extractors: client -> network in evaluation mode, a copy; empty where none was given.
        heads: client -> weight ``(C, d)`` and bias ``(C,)`` of its private head.
        model: architecture of the uploaded weights, a copy; None for other uploads.
        batches: client -> batch facts, where they are known.
        statistics: client -> running statistics of the uploaded network's batch norms.
        public: the attacker's own images with their classes, or None.
        earlier: (round, client) -> network behind an upload before the last round's, a copy; empty where none was given.
        defended: (round, client) -> what was done to its rows before they left, where that was said.
        defended_weights: the same of weights.
        groups: client -> number of its independent unit; empty where each client is one.
        rounding: client -> rounding of its newest upload as it was handed in.
        summed: the server sees the sum over a round's clients, which stands in the place of every upload.
        device: where to compute.
    """

    target: str
    observations: tuple[Observation, ...]
    own: Mapping[int, PrivateImages]
    image_shape: tuple[int, int, int]
    n_classes: int
    extractors: Mapping[int, nn.Module] = field(default_factory=dict)
    heads: Mapping[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    model: nn.Module | None = None
    batches: Mapping[int, BatchFacts] = field(default_factory=dict)
    statistics: Mapping[int, Statistics] = field(default_factory=dict)
    public: Samples | None = None
    earlier: Mapping[tuple[int, int], nn.Module] = field(default_factory=dict)
    defended: Mapping[tuple[int, int], Rehearsal] = field(default_factory=dict)
    defended_weights: Mapping[tuple[int, int], WeightRehearsal] = field(default_factory=dict)
    groups: Mapping[int, int] = field(default_factory=dict)
    rounding: Mapping[int, Rounding] = field(default_factory=dict)
    held_out: Mapping[int, Samples] = field(default_factory=dict)
    summed: bool = False
    device: torch.device = torch.device("cpu")

    @property
    def rounds(self) -> int:
        """The number of rounds; the last one is attacked."""
        return len({seen.round for seen in self.observations})

    @property
    def last(self) -> int:
        """The last round's own number."""
        return max(seen.round for seen in self.observations)

    @property
    def newest(self) -> tuple[Observation, ...]:
        """The observations of the last round."""
        return self.seen(1)

    def seen(self, number: int) -> tuple[Observation, ...]:
        """Return the observations of the last so many rounds."""
        rounds = sorted({seen.round for seen in self.observations})[-number:]
        return tuple(one for one in self.observations if one.round in rounds)


def derive_card(handed: Handed, wanted: Mapping[str, Any]) -> KnowledgeCard:
    """Return the card that follows from what was handed in, with what is wanted instead.

    Raises:
        UserError: for an unknown grant, or one for which nothing was handed in.
    """
    normed = handed.model is not None and bool(batch_norms(handed.model))
    derived: dict[str, Any] = plain(KnowledgeCard()) | {
        "extractor": "white_box" if handed.extractors or handed.heads else "none",
        "batch": bool(handed.batches),
        "batch_norm": "none" if normed and not handed.statistics else "running",
        "attacker_data": "none" if handed.public is None else "same_domain",
    }
    values = dict(wanted)
    if values.get("batch") in ("known", "none"):
        values["batch"] = values["batch"] == "known"
    card = parse(KnowledgeCard, derived | values, argument("knowledge"))
    lacking = {
        "extractor": card.extractor in ("white_box", "query") and not (handed.extractors or handed.heads),
        "batch": card.batch and not handed.batches,
        "attacker_data": card.attacker_data != "none" and handed.public is None,
        "batch_norm": card.batch_norm == "exact" or (card.batch_norm == "running" and normed and not handed.statistics),
    }
    source = {"extractor": "extractor", "batch": "batch", "attacker_data": "public", "batch_norm": "uploads"}
    for name, lacks in lacking.items():
        if lacks:
            where = argument("knowledge", {name: getattr(card, name)})
            raise UserError(f"{where}: grants what was not handed in; {argument(source[name])} would give it")
    if card.extractor == "shadow" and handed.public is None:
        where = argument("knowledge", {"extractor": "shadow"})
        raise UserError(f"{where}: a substitute is trained on {argument('public')} with {argument('public_labels')}")
    return replace(card, rounds_seen=1)


def make_evidence(
    handed: Handed, card: KnowledgeCard, attack: Declared, number: int, seed: int, trained: Trained
) -> Evidence:
    """Return the evidence of one attack: of the last round, or of the last ``card.rounds_seen`` rounds.

    Args:
        handed: what was handed in.
        card: the grants.
        attack: says what one target is; for an inference every upload.
        number: targets at most.
        seed: of the drawing of targets.
        trained: substitutes for extractors that were trained already.

    Raises:
        UserError: when the uploads hold no target.
    """
    seen = handed.seen(card.rounds_seen)
    if isinstance(attack, Attack) and attack.unit == "class":
        targets = choose_classes([_classes(handed, o, card) for o in handed.newest], number, seed)
    else:
        select = partial(attack.select, seen) if isinstance(attack, Attack) else None
        targets = choose_targets(handed.newest, handed.target, number, seed, select)
    if not targets:
        raise UserError(f"{argument('uploads')}: hold nothing that attack {attack.name!r} could recover")
    knowledge = _grant(handed, card, sorted({target.client for target in targets}), seed, trained)
    if attack.needs.every_extractor:
        knowledge = replace(knowledge, earlier=_earlier(handed, card))
    return Evidence(seen, None if handed.summed else permute(seen), knowledge, targets)


def earlier_evidence(
    handed: Handed, evidence: Evidence, inference: Inference, rounds_seen: int | None
) -> tuple[Evidence, ...]:
    """Return the evidence of rounds before the last, in order, for an inference that takes several.

    Networks were handed in as they are after the last round. So these are rounds of uploads that hold all that is looked at.
    """
    complete = handed.target in WHOLE | ANSWERS and inference.uses_rounds_on(handed.target)
    most = (rounds_seen or inference.rounds_on(handed.target, evidence.knowledge.card)) - 1 if complete else 0
    found = []
    for number in sorted({one.round for one in handed.observations})[:-1][-most:] if most else ():
        seen = tuple(one for one in handed.observations if one.round == number)
        if handed.target in ANSWERS or all(NETWORKS.first(one.broadcast) is not None for one in seen):
            permuted = None if handed.summed else permute(seen)
            found.append(replace(evidence, observations=seen, permuted=permuted))
    return tuple(found)


def _classes(handed: Handed, seen: Observation, card: KnowledgeCard) -> list[TargetId]:
    held = handed.own[seen.client].labels.unique().tolist()
    if handed.target in LAYERS | PUBLIC_OUTPUTS:
        given = card.labels == "given"
        return [TargetId(seen.round, seen.client, n, label if given else -1) for n, label in enumerate(held)]
    return [target for target in classes_with_weight(handed.seen(card.rounds_seen), seen) if target.label in held]


def _grant(handed: Handed, card: KnowledgeCard, clients: Sequence[int], seed: int, kept: Trained) -> Knowledge:
    trained = handed.target in NETWORKS | LAYERS
    batches = {client: handed.batches[client] for client in clients} if card.batch else {}
    public = handed.public if card.attacker_data != "none" else None
    return Knowledge(
        card=card,
        image_shape=handed.image_shape,
        n_classes=handed.n_classes,
        extractors={client: _extractor(handed, card, client, seed, kept) for client in clients}
        if card.extractor != "none" and handed.target not in NETWORKS
        else {},
        heads={client: handed.heads[client] for client in clients if client in handed.heads}
        if card.extractor == "white_box"
        else {},
        model=handed.model,
        batch=_protocol(list(batches.values())),
        batches=batches,
        statistics={
            (handed.last, client): handed.statistics[client] for client in clients if client in handed.statistics
        }
        if card.batch_norm == "running"
        else {},
        defended=handed.defended,
        defended_weights=handed.defended_weights,
        labels={(handed.last, client): handed.own[client].labels for client in clients}
        if card.labels == "given" and trained
        else {},
        public_images=None if public is None else public.images,
        public_labels=public.labels if public is not None and card.attacker_data == "same_domain" else None,
    )


def _extractor(
    handed: Handed, card: KnowledgeCard, client: int, seed: int, kept: Trained
) -> Callable[[Tensor], Tensor]:
    if card.extractor == "shadow":
        assert handed.public is not None
        seen, samples, n_classes, last = handed.observations, handed.public, handed.n_classes, handed.last
        return kept.get(
            ("shadow extractor", client, seed),
            lambda: shadow_extractor(seen, client, last, samples, n_classes, seed),
        )
    own = handed.extractors[client]
    return torch.no_grad()(own) if card.extractor == "query" else own


def _earlier(handed: Handed, card: KnowledgeCard) -> dict[tuple[int, int], Callable[[Tensor], Tensor]]:
    if card.extractor not in ("white_box", "query"):
        return {}
    asked = card.extractor == "query"
    return {where: torch.no_grad()(own) if asked else own for where, own in handed.earlier.items()}


def _protocol(facts: Sequence[BatchFacts]) -> BatchFacts | None:
    """Return the batch facts that hold of every client: the largest batch and the largest number of steps."""
    if not facts:
        return None
    return BatchFacts(max(one.batch_size for one in facts), facts[0].learning_rate, max(one.steps for one in facts))


def own_copy(name: str, network: Any, device: torch.device) -> nn.Module:
    """Return a network in evaluation mode that is not the user's: attacks change nothing of what was handed in.

    Raises:
        UserError: for anything but a module of finite weights that can be copied.
    """
    if not isinstance(network, nn.Module):
        raise UserError(f"{argument(name)}: expected a torch.nn.Module, got {type(network).__name__}")
    for key, value in network.state_dict().items():
        if isinstance(value, Tensor) and not bool(check_plain(f"{argument(name)}: {key}", value).isfinite().all()):
            raise UserError(f"{argument(name)}: {key} holds NaN or infinity; expected finite numbers")
    try:
        return copy.deepcopy(network).to(device).eval().requires_grad_(False)
    except Exception as error:  # a network of somebody else raises anything
        raise UserError(f"{argument(name)}: {type(network).__name__} cannot be copied to {device}: {error}") from error


def check_extractor(
    network: nn.Module, images: Tensor, seen: Observation, target: str, name: str = "extractor"
) -> None:
    """Check that a network maps the client's images to vectors as wide as those of its upload.

    Raises:
        UserError: when it fails on them, or returns another shape.
    """
    where = argument(name)
    found = tried(where, network, images[:2], "representations (n, d)")
    payload = VECTORS.first(seen.upload)
    if payload is not None and payload.kind == target:
        width = payload.rows().shape[1]
        if found.shape[1] != width:
            raise UserError(
                f"{where}: returns vectors of width {found.shape[1]}, but those of client {seen.client}'s upload have "
                f"{width}"
            )
