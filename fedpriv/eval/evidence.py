"""From a finished run: what the server saw, what the card grants, which targets there are, and the truth about them.

The first three go to attacks, the last to scorers, and nothing goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedpriv.attacks.observation import BatchFacts, Knowledge, KnowledgeCard, Observation, TargetId, Unit
from fedpriv.attacks.shadow import shadow_extractor
from fedpriv.data.types import Samples, as_unit
from fedpriv.entanglement import WEIGHTS
from fedpriv.errors import UserError
from fedpriv.eval.local_rounds import (
    UPDATES,
    round_batches,
    round_classes,
    round_labels,
    round_members,
    state_of_update,
)
from fedpriv.eval.truth import Truth
from fedpriv.federation import Federation
from fedpriv.methods.local_training import represent
from fedpriv.methods.states import put
from fedpriv.models.build import build_model
from fedpriv.runs import RunDirectory
from fedpriv.seeds import derive_seed, generator
from fedpriv.uploads import ClassLogits, Entangled, Message, Payload, Prototypes, Representations, part

NONMEMBERS = 240
"""Size of the pool of images that a client's targets had nothing to do with."""


@dataclass(frozen=True)
class Evidence:
    """Everything about a run that an attack or a scorer needs, kept apart.

    Attributes:
        observations: what the server saw.
        permuted: the same with every client's upload replaced by another client's, or None with a single client.
        knowledge: card and grants.
        targets: which private things to recover.
    """

    observations: tuple[Observation, ...]
    permuted: tuple[Observation, ...] | None
    knowledge: Knowledge
    targets: tuple[TargetId, ...]


# ---------------------------------------------------------------- for attacks


def gather(
    run: RunDirectory,
    federation: Federation,
    kind: str,
    card: KnowledgeCard,
    *,
    n_targets: int,
    seed: int,
    round_: int | None = None,
    unit: Unit = "upload",
) -> Evidence:
    """Collect what a semi-honest server holds after a run.

    Args:
        run: a complete run.
        federation: the run prepared again from its configuration.
        kind: kind of upload to attack.
        card: what else the attacker is granted.
        n_targets: how many targets at most; drawn by seed, spread evenly over clients.
        seed: of the drawing of targets.
        round_: attack the upload of this round; default the last captured one.
        unit: what one target is; see :class:`fedpriv.attacks.observation.Attack`. Targets of unit ``class`` come in
            whole clients, so that each recovered class can be told apart from the client's others.

    Raises:
        UserError: when the run stored no such upload, or cannot grant what the card says.
    """
    if kind not in federation.method.uploads:
        sent = ", ".join(federation.method.uploads) or "nothing"
        raise UserError(f"{run.path}: clients of {federation.method.name!r} upload no {kind!r}; they upload: {sent}")
    rounds = run.captured_rounds()
    if not rounds:
        raise UserError(f"{run.path}: the run stored no uploads; train it again with --capture all, last or auto")
    last = max(rounds) if round_ is None else round_
    if last not in rounds:
        there = ", ".join(str(number) for number in rounds)
        raise UserError(f"{run.path}: no uploads of round {last} are stored; stored rounds: {there}")
    seen = [number for number in rounds if number <= last][-card.rounds_seen :]
    if len(seen) < card.rounds_seen:
        raise UserError(
            f"{run.path}: --rounds-seen {card.rounds_seen}, but only {len(seen)} round(s) up to round {last} are stored; "
            "train with --capture all"
        )
    observations = tuple(
        Observation(number, client, run.message(run.upload_path(number, client)), broadcast)
        for number in seen
        for broadcast in (run.message(run.broadcast_path(number)),)
        for client in rounds[number]
    )
    newest = [o for o in observations if o.round == last]
    if unit == "class":
        given = card.labels == "given"
        of_client = (
            [round_classes(federation, last, o.client, given=given) for o in newest]
            if kind in UPDATES
            else [_classes_with_weight(observations, o) for o in newest]
        )
        targets = choose_classes(of_client, n_targets, seed)
    else:
        targets = choose_targets(newest, kind, n_targets, seed)
    clients = {target.client for target in targets}
    knowledge = grant(run, federation, kind, card, last, clients, observations, seed)
    return Evidence(observations, permute(observations), knowledge, targets)


def grant(
    run: RunDirectory,
    federation: Federation,
    kind: str,
    card: KnowledgeCard,
    round_: int,
    clients: set[int],
    observations: Sequence[Observation] = (),
    seed: int = 0,
) -> Knowledge:
    """Hand over what a card grants, and nothing else.

    Args:
        run: a complete run.
        federation: the run prepared again.
        kind: kind of upload to attack.
        card: the grants.
        round_: the attacked round.
        clients: the attacked clients.
        observations: what the server saw, to which shadow extractors are aligned.
        seed: of the training of shadow extractors.

    Raises:
        UserError: when the run does not have what the card names.
    """
    if card.batch_norm == "exact":
        raise UserError("knowledge batch_norm=exact: runs store no batch statistics; use running or none")
    if card.attacker_data == "other_domain":
        raise UserError("knowledge attacker_data=other_domain: runs hold no foreign images; use same_domain or none")
    if card.attacker_data == "same_domain" and federation.server.public is None:
        raise UserError(
            f"knowledge attacker_data=same_domain: {run.path} set no public images aside; train it with --public N"
        )
    first = federation.clients[0]
    training = federation.config.training
    weighty = kind in ("model", "small-model", "extractor")
    return Knowledge(
        card=card,
        image_shape=first.blueprint.image_shape,
        n_classes=first.n_classes,
        extractors={}
        if weighty
        else {
            k: _granted_extractor(run, federation, kind, k, round_, card, observations, seed) for k in sorted(clients)
        }
        if card.extractor != "none"
        else {},
        heads={k: _head(run, federation, kind, k, round_) for k in sorted(clients)}
        if card.extractor == "white_box" and kind in ("angle-matrix", "logits")
        else {},
        model=build_model(first.blueprint, 0).to(federation.server.device).eval() if weighty else None,
        batch=_batch_facts(federation, training.batch_size, training.learning_rate) if card.batch else None,
        labels=_labels(federation, kind, round_, clients)
        if card.labels == "given" and (weighty or kind in UPDATES)
        else {},
        public_images=federation.server.public if card.attacker_data == "same_domain" else None,
        public_labels=federation.public_labels if card.attacker_data == "same_domain" else None,
    )


def _granted_extractor(
    run: RunDirectory,
    federation: Federation,
    kind: str,
    client: int,
    round_: int,
    card: KnowledgeCard,
    observations: Sequence[Observation],
    seed: int,
) -> Callable[[Tensor], Tensor]:
    if card.extractor == "shadow":
        images, labels = federation.server.public, federation.public_labels
        if card.attacker_data != "same_domain" or images is None or labels is None:
            raise UserError(
                "knowledge extractor=shadow: a shadow extractor is trained on the attacker's own images; grant "
                "attacker_data=same_domain too"
            )
        samples = Samples(images, labels.to(images.device))
        return shadow_extractor(observations, client, round_, samples, federation.clients[0].n_classes, seed)
    own = _extractor(run, federation, kind, client, round_, card)
    return torch.no_grad()(own) if card.extractor == "query" else own


def _batch_facts(federation: Federation, batch_size: int, learning_rate: float) -> BatchFacts:
    steps = {len(round_batches(federation, 1, setup.client)) for setup in federation.clients}
    return BatchFacts(batch_size=batch_size, learning_rate=learning_rate, steps=max(steps))


def _labels(federation: Federation, kind: str, round_: int, clients: set[int]) -> dict[tuple[int, int], Tensor]:
    if kind in UPDATES:
        return {(round_, k): round_labels(federation, round_, k) for k in sorted(clients)}
    return {
        (round_, k): federation.clients[k].train.labels[_first_batch(federation, round_, k)] for k in sorted(clients)
    }


def _first_batch(federation: Federation, round_: int, client: int) -> Tensor:
    return round_batches(federation, round_, client)[0]


def _extractor(
    run: RunDirectory, federation: Federation, kind: str, client: int, round_: int, card: KnowledgeCard
) -> Callable[[Tensor], Tensor]:
    if kind not in UPDATES and round_ not in run.checkpointed_rounds():
        there = ", ".join(str(number) for number in run.checkpointed_rounds()) or "none"
        raise UserError(
            f"{run.path}: a white-box extractor of round {round_} needs its checkpoint; kept: {there} "
            f"(train with --keep {round_})"
        )
    model = build_model(federation.clients[client].blueprint, 0)
    fresh = {name: value.clone() for name, value in model.named_buffers()}
    put(model, (state_of_update if kind in UPDATES else _state)(run, federation, client, round_), "model")
    if card.batch_norm == "none":  # weights only: the statistics stay at their initial values
        with torch.no_grad():
            for name, value in model.named_buffers():
                value.copy_(fresh[name])
    model.to(federation.server.device).eval().requires_grad_(False)
    return model.represent


def _head(run: RunDirectory, federation: Federation, kind: str, client: int, round_: int) -> tuple[Tensor, Tensor]:
    state = (state_of_update if kind in UPDATES else _state)(run, federation, client, round_)
    return state["model.head.weight"].cpu(), state["model.head.bias"].cpu()


# ---------------------------------------------------------------- targets


def choose_targets(observations: Sequence[Observation], kind: str, number: int, seed: int) -> tuple[TargetId, ...]:
    """Draw targets by seed, the same number from every client as far as it goes.

    Raises:
        UserError: when ``number`` is less than one.
    """
    if number < 1:
        raise UserError(f"--targets {number}: expected at least 1")
    rng = np.random.default_rng(derive_seed(seed, "targets", kind))
    queues = [[all_[i] for i in rng.permutation(len(all_))] for all_ in (_targets_of(o, kind) for o in observations)]
    chosen: list[TargetId] = []
    while len(chosen) < number and any(queues):
        for queue in queues:
            if queue and len(chosen) < number:
                chosen.append(queue.pop())
    return tuple(sorted(chosen, key=lambda t: (t.round, t.client, t.index)))


def _targets_of(observation: Observation, kind: str) -> list[TargetId]:
    payload = next(payload for payload in observation.upload if payload.kind == kind)
    if isinstance(payload, Representations):
        labels = payload.labels.tolist()
    elif isinstance(payload, (Prototypes, ClassLogits)):
        labels = payload.classes.tolist()
    elif isinstance(payload, Entangled):
        labels = [int(payload.label_encoding.argmax())]
    else:
        labels = [-1]
    return [TargetId(observation.round, observation.client, i, label) for i, label in enumerate(labels)]


def choose_classes(of_client: Sequence[Sequence[TargetId]], number: int, seed: int) -> tuple[TargetId, ...]:
    """Draw clients by seed and take every class of theirs, until ``number`` targets are reached."""
    rng = np.random.default_rng(derive_seed(seed, "targets", "class"))
    chosen: list[TargetId] = []
    for i in rng.permutation(len(of_client)):
        if chosen and len(chosen) + len(of_client[i]) > number:
            break
        chosen += of_client[i]
    return tuple(sorted(chosen, key=lambda t: (t.round, t.client, t.index)))


def _classes_with_weight(observations: Sequence[Observation], newest: Observation) -> list[TargetId]:
    """Return one target for each class that a client ever gave weight in a mixture."""
    encodings = [part(o.upload, Entangled).label_encoding for o in observations if o.client == newest.client]
    classes = (torch.stack(encodings).abs() > 0).any(0).nonzero().squeeze(1).tolist()
    return [TargetId(newest.round, newest.client, position, label) for position, label in enumerate(classes)]


# ---------------------------------------------------------------- the permuted control


def permute(observations: tuple[Observation, ...]) -> tuple[Observation, ...] | None:
    """Give every client's place another client's upload: the next client's of the same round.

    Rows keep their number and labels, so that targets still point at something; only what was computed from images is
    the other client's. What an attack still reaches, it did not get from the upload.
    """
    by_round: dict[int, list[Observation]] = {}
    for observation in observations:
        by_round.setdefault(observation.round, []).append(observation)
    if any(len(group) < 2 for group in by_round.values()):
        return None
    result = []
    for group in by_round.values():
        others = [*group[1:], group[0]]
        result += [
            replace(own, upload=_in_place_of(own.upload, other.upload))
            for own, other in zip(group, others, strict=True)
        ]
    return tuple(result)


def _in_place_of(own: Message, other: Message) -> Message:
    return tuple(_payload_in_place_of(mine, part(other, type(mine))) for mine in own)


def _payload_in_place_of(own: Payload, other: Payload) -> Payload:
    if isinstance(own, (Representations, Prototypes)) and isinstance(other, (Representations, Prototypes)):
        rows = torch.arange(len(own.features)) % len(other.features)
        return replace(own, features=other.features[rows])
    if isinstance(own, ClassLogits) and isinstance(other, ClassLogits):
        return replace(own, values=other.values[_rows_of_other_classes(own.classes, other.classes)])
    if isinstance(own, Entangled) and isinstance(other, Entangled):
        return replace(own, feature=other.feature)
    return other


def _rows_of_other_classes(own: Tensor, other: Tensor) -> Tensor:
    """Return a row of the other upload for each own class, of another class where there is one.

    A class's output looks much the same from every client, so a row of the same class would be no control.
    """
    rows = []
    for place, label in enumerate(own.tolist()):
        differs = (other != label).nonzero().squeeze(1).tolist() or list(range(len(other)))
        rows.append(differs[place % len(differs)])
    return torch.tensor(rows, dtype=torch.int64)


# ---------------------------------------------------------------- for scorers


def truths(
    run: RunDirectory,
    federation: Federation,
    kind: str,
    targets: Sequence[TargetId],
    *,
    seed: int,
    unit: Unit = "upload",
) -> tuple[Truth, ...]:
    """Look up the private images behind targets, and draw the images that they have nothing to do with.

    The pool of a client's targets is drawn from everything that is not in the client's training set.
    """
    pools = {client: _nonmembers(federation, client, seed) for client in sorted({t.client for t in targets})}
    found = []
    for target in targets:
        train = federation.clients[target.client].train.to(torch.device("cpu"))
        of_class = unit == "class" and kind not in UPDATES
        index, weights = _members(run, federation, "prototype" if of_class else kind, target)
        found.append(
            Truth(
                members=train.images[index],
                weights=weights,
                labels=train.labels[index],
                nonmembers=pools[target.client][0],
                nonmember_labels=pools[target.client][1],
                feature=_prototype(run, federation, kind, target, train.images[index]) if unit == "class" else None,
            )
        )
    return tuple(found)


def _state(run: RunDirectory, federation: Federation, client: int, round_: int) -> Mapping[str, Tensor]:
    return run.client_state(round_, client)


def _prototype(run: RunDirectory, federation: Federation, kind: str, target: TargetId, images: Tensor) -> Tensor:
    """Return the mean representation ``(d,)`` that an attack with linear algebra should have recovered."""
    model = build_model(federation.clients[target.client].blueprint, 0)
    put(model, (state_of_update if kind in UPDATES else _state)(run, federation, target.client, target.round), "model")
    return represent(model, images).mean(0)


def _nonmembers(federation: Federation, client: int, seed: int) -> tuple[Tensor, Tensor]:
    samples = federation.data.dataset.samples
    outside = np.setdiff1d(np.arange(len(samples)), federation.data.clients[client].train_index)
    order = torch.randperm(len(outside), generator=generator(seed, "nonmembers", client))[:NONMEMBERS]
    index = torch.as_tensor(outside)[order]
    return as_unit(samples.images[index]), samples.labels[index]


def _members(run: RunDirectory, federation: Federation, kind: str, target: TargetId) -> tuple[Tensor, Tensor]:
    labels = federation.clients[target.client].train.labels.cpu()
    if kind == "representation":
        index = torch.tensor([target.index])
    elif kind in ("prototype", "logits"):
        index = (labels == target.label).nonzero().squeeze(1)
    elif kind in UPDATES:
        index = round_members(federation, target)
    elif kind == "entangled":
        weights = _entanglement_weights(run, target, labels).abs()  # signed draws count by magnitude
        index = (weights > 0).nonzero().squeeze(1)
        return index, weights[index] / weights[index].sum()
    else:
        index = torch.cat(round_batches(federation, target.round, target.client))
    return index, torch.full((len(index),), 1 / len(index), dtype=torch.float64)


def _entanglement_weights(run: RunDirectory, target: TargetId, labels: Tensor) -> Tensor:
    """Return the sample weights of an upload: the client's own record, or, of an older round, by class."""
    if target.round == run.newest_checkpoint():
        return run.client_state(target.round, target.client)[WEIGHTS].double()
    encoding = part(run.message(run.upload_path(target.round, target.client)), Entangled).label_encoding
    counts = torch.bincount(labels, minlength=len(encoding)).clamp(min=1)
    return (encoding / counts)[labels].double()
