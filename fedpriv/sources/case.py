"""One case for every source: what the server saw, what the threat model grants, and which targets there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedpriv.attacks.contract import Attack, Declared, Same, Trained
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.surrogate import ShadowTraining, shadow_extractor, shadow_model
from fedpriv.attacks.observation import Knowledge, Observation, Rehearsal, TargetId, ThreatModel
from fedpriv.datasets.types import Samples
from fedpriv.sources.rehearsal import changes_rows, rehearsed
from fedpriv.sources.source import Source
from fedpriv.uploads.kinds import CLASS_MEANS, CLASS_OUTPUTS, LAYERS, NETWORKS, PUBLIC_OUTPUTS
from fedpriv.uploads.payloads import Entangled, get_payload
from fedpriv.util.errors import UserError, shown
from fedpriv.util.seeds import derive_seed

K = TypeVar("K")
T = TypeVar("T")

EVERYTHING = 10**9
"""Targets at most, where a case is to cover every client."""


@dataclass(frozen=True)
class Case:
    """Everything that an attack is handed."""

    observations: tuple[Observation, ...]  # what the server saw
    shuffled: tuple[Observation, ...] | None  # the shuffled control; None where there is no other client
    knowledge: Knowledge  # card and grants
    targets: tuple[TargetId, ...]  # which private things to recover


def build_case(
    source: Source,
    card: ThreatModel,
    attack: Declared | None = None,
    *,
    n_targets: int,
    seed: int,
    round_: int | None = None,
    trained: Trained | None = None,
) -> Case:
    """Collect what a semi-honest server holds, and draw targets."""
    seen = rounds_up_to(source, round_, card.rounds_seen)
    observations, shuffled = source.view(source.observations(seen))
    newest = [o for o in observations if o.round == seen[-1] and source.has_images(o.round, o.client)]
    if not newest:
        raise UserError(f"{source}: no client's local steps of round {seen[-1]} used an image; attack another round")
    if isinstance(attack, Attack) and attack.unit == "class":
        targets = choose_classes([_classes(source, observations, o, card) for o in newest], n_targets, seed)
    else:
        select = partial(attack.select, observations) if isinstance(attack, Attack) else None
        targets = choose_targets(newest, source.kind, n_targets, seed, select, partial(_alone, source))
    grants = _Grants(source, source.settled(card), observations, seen[-1], seed, trained or Trained())
    every = attack is not None and attack.needs.every_extractor
    knowledge = grants.knowledge(sorted({target.client for target in targets}), every_extractor=every)
    return Case(observations, shuffled, knowledge, targets)


def rounds_up_to(source: Source, round_: int | None, number: int) -> list[int]:
    """Return the last ``number`` of the stored rounds up to ``round_``, ascending; up to the last one for None."""
    rounds = source.rounds()
    if not rounds:
        raise UserError(f"{source}: no uploads are stored; train again with capture all, last or auto")
    last = max(rounds) if round_ is None else round_
    if last not in rounds:
        there = ", ".join(map(str, sorted(rounds)))
        raise UserError(f"{source}: no uploads of round {last} are stored; stored rounds: {there}")
    seen = [item for item in sorted(rounds) if item <= last][-number:]
    if len(seen) < number:
        raise UserError(
            f"{source}: rounds_seen={shown(number)}, but only {len(seen)} round(s) up to round {last} are "
            f"stored; train with capture='all'"
        )
    return seen


# ---------------------------------------------------------------- targets


def choose_targets(
    observations: Sequence[Observation],
    kind: str,
    number: int,
    seed: int,
    select: Callable[[Sequence[TargetId]], Sequence[TargetId]] | None = None,
    alone: Callable[[TargetId], bool] = lambda target: False,
) -> tuple[TargetId, ...]:
    """Draw targets by seed among those that ``select`` returns, the same number from every client as far as it goes.

    A client's means of one image (``alone``) and of several come in turns, so that there are enough of both.
    """
    if number < 1:
        raise UserError(f"targets={shown(number)}: expected at least 1")
    rng = np.random.default_rng(derive_seed(seed, "targets", kind))
    every = list_targets(observations, kind)
    allowed = set(every if select is None else select(every))
    queues = [[all_[i] for i in rng.permutation(len(all_))] for all_ in (list_targets([o], kind) for o in observations)]
    queues = [_in_turns([target for target in queue if target in allowed], alone) for queue in queues]
    chosen: list[TargetId] = []
    while len(chosen) < number and any(queues):
        for queue in queues:
            if queue and len(chosen) < number:
                chosen.append(queue.pop())
    return _in_order(chosen)


def choose_classes(of_client: Sequence[Sequence[TargetId]], number: int, seed: int) -> tuple[TargetId, ...]:
    """Draw clients by seed and take every class of theirs, until ``number`` targets are reached."""
    rng = np.random.default_rng(derive_seed(seed, "targets", "class"))
    chosen: list[TargetId] = []
    for i in rng.permutation(len(of_client)):
        if chosen and len(chosen) + len(of_client[i]) > number:
            break
        chosen += of_client[i]
    return _in_order(chosen)


def _in_turns(queue: Sequence[TargetId], alone: Callable[[TargetId], bool]) -> list[TargetId]:
    parts = [[target for target in queue if alone(target) == single] for single in (True, False)]
    turns = [part[-1 - place] for place in range(len(queue)) for part in parts if place < len(part)]
    return turns[::-1]  # the last is drawn first


def _alone(source: Source, target: TargetId) -> bool:
    """True for a mean of one image."""
    if source.kind not in CLASS_MEANS:
        return False
    return int((source.private(target.client).labels == target.label).sum()) == 1


def _in_order(targets: Sequence[TargetId]) -> tuple[TargetId, ...]:
    return tuple(sorted(targets, key=lambda target: (target.round, target.client, target.index)))


def _classes(
    source: Source, observations: Sequence[Observation], newest: Observation, card: ThreatModel
) -> list[TargetId]:
    """Return one target for each class behind a client's upload; of a mixture, for each that it has and ever gave weight."""
    number, client = newest.round, newest.client
    if source.kind in LAYERS | PUBLIC_OUTPUTS:
        classes, given = source.labels(number, client).unique().tolist(), card.labels == "given"
        return [TargetId(number, client, position, label if given else -1) for position, label in enumerate(classes)]
    encodings = [get_payload(o.upload, Entangled).label_encoding for o in observations if o.client == client]
    classes = (torch.stack(encodings).abs() > 0).any(0).nonzero().squeeze(1).tolist()
    group = set(source.private(client).labels.tolist())  # noise on a label encoding gives weight to other classes
    return [TargetId(number, client, index, label) for index, label in enumerate(classes) if label in group]


# ---------------------------------------------------------------- grants


@dataclass(frozen=True)
class _Grants:
    """The grants of a card about the attacked clients and round, loaded or trained once each."""

    source: Source
    card: ThreatModel
    observations: tuple[Observation, ...]
    round: int
    seed: int
    kept: Trained

    def knowledge(self, clients: Sequence[int], *, every_extractor: bool) -> Knowledge:
        """Return card and grants; with ``every_extractor`` extractors behind the earlier uploads that are seen, too."""
        source, card, number, kind = self.source, self.card, self.round, self.source.kind
        images, labels = source.auxiliary_images(card, self.seed)
        extractors: dict[int, Callable[[Tensor], Tensor]] = {}
        heads: dict[int, tuple[Tensor, Tensor]] = {}
        if kind in CLASS_OUTPUTS and card.extractor == "shadow":
            # Nothing was seen that an extractor alone could be fitted to.
            models = {k: self.fitted("shadow model", shadow_model, number, k) for k in clients}
            extractors = {k: extractor for k, (extractor, _) in models.items()}
            heads = {k: head for k, (_, head) in models.items()}
        elif card.extractor != "none" and kind not in NETWORKS:
            extractors = {k: self.extractor(number, k) for k in clients}
        if card.extractor == "white_box":
            heads = _there({k: source.head(number, k) for k in clients})
        newest = {o.client: o for o in self.observations if o.round == number}
        given = clients if card.labels == "given" and kind in NETWORKS | LAYERS else ()
        return Knowledge(
            card=card,
            image_shape=source.image_shape,
            n_classes=source.n_classes,
            extractors=extractors,
            earlier=self.earlier(clients) if every_extractor else {},
            heads=heads,
            model=source.model,
            batch=source.protocol(clients) if card.batch else None,
            batches=_there({k: source.batch(number, k) for k in clients if card.batch}),
            loss=source.loss(number),
            defended=self.rehearsals() if changes_rows(source.pipeline, kind) else {},
            statistics=_there({(number, k): source.statistics(card, k, newest[k]) for k in clients}),
            labels={(number, k): source.labels(number, k) for k in given},
            public_images=images,
            public_labels=labels,
        )

    def extractor(self, number: int, client: int) -> Callable[[Tensor], Tensor]:
        """Return a client's own extractor behind an upload, or a substitute for it."""
        card = self.card
        if card.extractor == "shadow":
            return self.fitted("shadow extractor", shadow_extractor, number, client)

        def load() -> Callable[[Tensor], Tensor]:
            current = self.source.extractor(number, client, card)
            return torch.no_grad()(current) if card.extractor == "query" else current

        return self.kept.get(("extractor", self.source.kind, number, client, card.extractor, card.batch_norm), load)

    def earlier(self, clients: Sequence[int]) -> dict[tuple[int, int], Callable[[Tensor], Tensor]]:
        """Return (round, client) -> extractor behind an upload before the attacked one."""
        seen = sorted({(o.round, o.client) for o in self.observations if o.round < self.round and o.client in clients})
        there = self.source.extractor_rounds()
        if not any(number in there for number, _ in seen):
            last = max((number for number, _ in seen), default=max(self.round - 1, 1))
            raise UserError(
                f"{self.source}: an attack on all rounds together needs the extractors behind earlier uploads, and none is "
                f"kept; train with keep={shown(last)}, once for each round that is to count"
            )
        return {(number, k): self.extractor(number, k) for number, k in seen if number in there}

    def fitted(self, what: str, fit: Callable[..., T], number: int, client: int) -> T:
        """Return a substitute that is trained on the attacker's own images."""
        images, labels = self.source.auxiliary_images(self.card, self.seed)
        if images is None or labels is None:
            raise UserError(
                "knowledge extractor=shadow: a shadow extractor is trained on the attacker's own images; add "
                "attacker_data=same_domain"
            )
        samples, n_classes = Samples(images, labels.to(images.device)), self.source.n_classes
        key = (what, number, client, self.seed, ShadowTraining(), Same(images))
        return self.kept.get(key, lambda: fit(self.observations, client, number, samples, n_classes, self.seed))

    def rehearsals(self) -> dict[tuple[int, int], Rehearsal]:
        """Return (round, client) -> the defenses of an upload, for rows of the attacker's own."""
        source, result = self.source, {}
        for seen in self.observations:
            make = partial(rehearsed, source.pipeline, seen, source.kind, source.n_classes, source.total_rounds)
            result[seen.round, seen.client] = self.kept.get(("rehearsed", source.kind, seen.round, seen.client), make)
        return _there(result)


def _there(values: Mapping[K, T | None]) -> dict[K, T]:
    return {key: value for key, value in values.items() if value is not None}
