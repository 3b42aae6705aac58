"""One case for every source: what the server saw, what the threat model grants, and which targets there are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedpriv.attacks.contract import Attack, Declared, Same, Trained
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.surrogate import ShadowModel, find_anchors, shadow_extractor, shadow_model
from fedpriv.attacks.observation import Knowledge, Observation, TargetId, ThreatModel
from fedpriv.datasets.types import Samples
from fedpriv.sources.rehearsal import changes_rows, rehearsed
from fedpriv.sources.source import Source
from fedpriv.uploads.kinds import CLASS_MEANS, CLASS_OUTPUTS, LAYERS, NETWORKS, PUBLIC_OUTPUTS
from fedpriv.uploads.payload import Payload
from fedpriv.uploads.payloads import Entangled, get_payload
from fedpriv.util.errors import UserError, shown
from fedpriv.util.seeds import derive_seed

K = TypeVar("K")
T = TypeVar("T")

EVERYTHING = 10**9  # targets at most, where a case is to cover every client


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
    newest = {o.client: o for o in observations if o.round == seen[-1] and source.has_images(o.round, o.client)}
    if not newest:
        raise UserError(f"{source}: no client's local steps of round {seen[-1]} used an image; attack another round")
    if isinstance(attack, Attack) and attack.unit == "class":
        targets = _choose_classes([_classes(source, observations, o, card) for o in newest.values()], n_targets, seed)
    else:
        if isinstance(attack, Attack):
            attack.check(observations)
        targets = _choose_targets(source, [*newest.values()], n_targets, seed)
    knowledge = _knowledge(
        source,
        source.settled(card),
        observations,
        newest,
        sorted({target.client for target in targets}),
        seed,
        trained or Trained(),
        every_extractor=attack is not None and attack.needs.every_extractor,
    )
    order = sorted(targets, key=lambda target: (target.round, target.client, target.index))
    return Case(observations, shuffled, knowledge, tuple(order))


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


def _choose_targets(source: Source, newest: Sequence[Observation], number: int, seed: int) -> list[TargetId]:
    """Draw targets by seed, the same number from every client as far as it goes.

    A client's means of one image and of several come in turns, so that there are enough of both.
    """
    rng = np.random.default_rng(derive_seed(seed, "targets", source.kind))
    queues: list[list[TargetId]] = []
    for observation in newest:
        every = list_targets([observation], source.kind)
        queue = [every[i] for i in rng.permutation(len(every))]
        alone: list[TargetId] = []
        if source.kind in CLASS_MEANS:
            labels = source.private(observation.client).labels
            alone = [target for target in queue if int((labels == target.label).sum()) == 1]
        parts = (alone, [target for target in queue if target not in alone])
        turns = [part[-1 - place] for place in range(len(queue)) for part in parts if place < len(part)]
        queues.append(turns[::-1])  # the last is drawn first
    chosen: list[TargetId] = []
    while len(chosen) < number and any(queues):
        for queue in queues:
            if queue and len(chosen) < number:
                chosen.append(queue.pop())
    return chosen


def _choose_classes(of_client: Sequence[Sequence[TargetId]], number: int, seed: int) -> list[TargetId]:
    """Draw clients by seed and take every class of theirs, until ``number`` targets are reached."""
    rng = np.random.default_rng(derive_seed(seed, "targets", "class"))
    chosen: list[TargetId] = []
    for i in rng.permutation(len(of_client)):
        if chosen and len(chosen) + len(of_client[i]) > number:
            break
        chosen += of_client[i]
    return chosen


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


def _knowledge(
    source: Source,
    card: ThreatModel,
    observations: Sequence[Observation],
    newest: Mapping[int, Observation],
    clients: Sequence[int],
    seed: int,
    kept: Trained,
    *,
    every_extractor: bool,
) -> Knowledge:
    """Return a card and what it grants about some clients and the newest round, loaded or trained once each.

    With ``every_extractor`` extractors behind the earlier uploads that are seen, too.
    """
    number, kind = next(iter(newest.values())).round, source.kind
    images, labels = source.auxiliary_images(card)

    def fitted(key: Hashable, fit: Callable[[Samples], T]) -> T:
        """Return a substitute that is trained on the attacker's own images, once for a key."""
        if images is None or labels is None:
            raise UserError(
                "knowledge extractor=shadow: a shadow extractor is trained on the attacker's own images; add "
                "attacker_data=same_domain"
            )
        samples = Samples(images, labels.to(images.device))
        return kept.get(("substitute", key, seed, Same(images)), lambda: fit(samples))

    def extractor(round_: int, client: int) -> Callable[[Tensor], Tensor]:
        """Return a client's own extractor behind an upload, or a substitute for it."""
        if card.extractor == "shadow":
            anchors = find_anchors(observations, client, round_)
            return fitted(_content(anchors), lambda samples: shadow_extractor(anchors, samples, source.n_classes, seed))

        def load() -> Callable[[Tensor], Tensor]:
            current = source.extractor(round_, client, card)
            return torch.no_grad()(current) if card.extractor == "query" else current

        return kept.get(("extractor", kind, round_, client, card.extractor, card.batch_norm), load)

    extractors: dict[int, Callable[[Tensor], Tensor]] = {}
    heads: dict[int, tuple[Tensor, Tensor]] = {}
    if kind in CLASS_OUTPUTS and card.extractor == "shadow":
        # Nothing was seen that an extractor alone could be fitted to.

        def model(client: int) -> ShadowModel:
            return fitted(
                (number, client),
                lambda samples: shadow_model(observations, client, number, samples, source.n_classes, seed),
            )

        models = {k: model(k) for k in clients}
        extractors, heads = {k: made[0] for k, made in models.items()}, {k: made[1] for k, made in models.items()}
    elif card.extractor != "none" and kind not in NETWORKS:
        extractors = {k: extractor(number, k) for k in clients}
    if card.extractor == "white_box":
        heads = _there({k: source.head(number, k) for k in clients})
    before = sorted({(o.round, o.client) for o in observations if o.round < number and o.client in clients})
    earlier = [(n, k) for n, k in before if every_extractor and n in source.extractor_rounds()]
    if every_extractor and not earlier:
        last = max((n for n, _ in before), default=max(number - 1, 1))
        raise UserError(
            f"{source}: an attack on all rounds together needs the extractors behind earlier uploads, and none is "
            f"kept; train with keep={shown(last)}, once for each round that is to count"
        )
    defended = {}
    for seen in observations if changes_rows(source.pipeline, kind) else ():
        make = partial(rehearsed, source.pipeline, seen, kind, source.n_classes, source.total_rounds)
        defended[seen.round, seen.client] = kept.get(("rehearsed", kind, seen.round, seen.client), make)
    given = clients if card.labels == "given" and kind in NETWORKS | LAYERS else ()
    return Knowledge(
        card=card,
        image_shape=source.image_shape,
        n_classes=source.n_classes,
        extractors=extractors,
        earlier={(n, k): extractor(n, k) for n, k in earlier},
        heads=heads,
        model=source.model,
        batch=source.protocol(clients) if card.batch else None,
        batches=_there({k: source.batch(number, k) for k in clients if card.batch}),
        loss=source.loss(number),
        defended=_there(defended),
        statistics=_there({(number, k): source.statistics(card, k, newest[k]) for k in clients}),
        labels={(number, k): source.labels(number, k) for k in given},
        public_images=images,
        public_labels=labels,
    )


def _content(payloads: Sequence[Payload | None]) -> Hashable:
    """Return a key that equals that of payloads of the same numbers."""
    sent = [payload.tensors() for payload in payloads if payload is not None]
    return tuple((name, value.cpu().numpy().tobytes()) for values in sent for name, value in values.items())


def _there(values: Mapping[K, T | None]) -> dict[K, T]:
    return {key: value for key, value in values.items() if value is not None}
