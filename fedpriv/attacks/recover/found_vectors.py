"""Invert vectors that linear algebra found, as if they had been uploaded as prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedpriv.attacks.invert.inversion import DipInversion
from fedpriv.attacks.observation import Knowledge, Observation, Progress, Reconstruction, TargetId
from fedpriv.wire.payloads import Prototypes


def invert_vectors(
    inversion: DipInversion,
    found: Tensor,
    targets: tuple[TargetId, ...],
    knowledge: Knowledge,
    *,
    seed: int,
    device: torch.device,
    chunk_rows: int | None = None,
    progress: Progress | None = None,
) -> Reconstruction:
    """Invert one vector a target.

    Args:
        inversion: how.
        found: ``(T, d)`` vectors.
        targets: T targets, which keep their generators whatever the vectors were found with.
        knowledge: card and grants.
        seed: the run's seed.
        device: where to compute.
        chunk_rows: rows at a time.
        progress: called as the work goes on.

    Returns:
        A reconstruction whose features are the vectors.
    """
    inverted = inversion.run(
        as_uploads(found.detach().cpu(), targets),
        targets,
        knowledge,
        seed=seed,
        device=device,
        chunk_rows=chunk_rows,
        progress=progress,
    )
    return replace(inverted, features=found)


def as_uploads(found: Tensor, targets: Sequence[TargetId]) -> tuple[Observation, ...]:
    """Return observations in which each target's place holds its vector; places without a target hold zeros."""
    rows: dict[tuple[int, int], dict[int, Tensor]] = {}
    for target, vector in zip(targets, found, strict=True):
        rows.setdefault((target.round, target.client), {})[target.index] = vector
    made = []
    for (round_, client), held in rows.items():
        table = found.new_zeros(max(held) + 1, found.shape[1])
        for index, vector in held.items():
            table[index] = vector
        made.append(Observation(round_, client, (Prototypes(table.float(), torch.arange(len(table))),), ()))
    return tuple(made)
