"""Targets, the private things that an attack is asked to recover: drawn by seed from what was uploaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.observation import Observation, TargetId
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed
from fedpriv.wire.payloads import Entangled, get_payload


def choose_targets(
    observations: Sequence[Observation],
    kind: str,
    number: int,
    seed: int,
    select: Callable[[Sequence[TargetId]], Sequence[TargetId]] | None = None,
) -> tuple[TargetId, ...]:
    """Draw targets by seed among those that ``select`` returns, the same number from every client as far as it goes."""
    if number < 1:
        raise UserError(f"{argument('targets', number)}: expected at least 1")
    rng = np.random.default_rng(derive_seed(seed, "targets", kind))
    allowed = None if select is None else set(select(list_targets(observations, kind)))
    queues = [[all_[i] for i in rng.permutation(len(all_))] for all_ in (list_targets([o], kind) for o in observations)]
    if allowed is not None:
        queues = [[target for target in queue if target in allowed] for queue in queues]
    chosen: list[TargetId] = []
    while len(chosen) < number and any(queues):
        for queue in queues:
            if queue and len(chosen) < number:
                chosen.append(queue.pop())
    return tuple(sorted(chosen, key=lambda t: (t.round, t.client, t.index)))


def choose_classes(of_client: Sequence[Sequence[TargetId]], number: int, seed: int) -> tuple[TargetId, ...]:
    """Draw clients by seed and take every class of theirs, until ``number`` targets are reached."""
    rng = np.random.default_rng(derive_seed(seed, "targets", "class"))
    chosen: list[TargetId] = []
    for i in rng.permutation(len(of_client)):
        if chosen and len(chosen) + len(of_client[i]) > number:
            break
        chosen += of_client[i]
    return tuple(sorted(chosen, key=lambda t: (t.round, t.client, t.index)))


def classes_with_weight(observations: Sequence[Observation], newest: Observation) -> list[TargetId]:
    """Return one target for each class that a client ever gave weight in a mixture."""
    encodings = [get_payload(o.upload, Entangled).label_encoding for o in observations if o.client == newest.client]
    classes = (torch.stack(encodings).abs() > 0).any(0).nonzero().squeeze(1).tolist()
    return [TargetId(newest.round, newest.client, position, label) for position, label in enumerate(classes)]
