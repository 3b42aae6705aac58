"""Fit of an attack's images to the uploads that they were found from, beside images that were not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem
from fedpriv.util.seeds import generator

if TYPE_CHECKING:
    from fedpriv.attacks.observation import Reconstruction
    from fedpriv.evidence.gather import Evidence
    from fedpriv.evidence.truth import Truth
    from fedpriv.experiment.suite import Execution

STRANGERS = 8
"""Sets of strangers' images that are compared with an upload."""


def with_fits(
    attack: Attack,
    reconstruction: Reconstruction,
    permuted: Reconstruction,
    evidence: Evidence,
    truths: Sequence[Truth],
    execution: Execution,
) -> Reconstruction:
    """Return the reconstruction with its ``fits``; as it is where nothing leads from images to uploads.

    Strangers are of the classes that the attack was told or recovered: what the client's labels say beyond that has no part.

    Args:
        attack: whose objective it is.
        reconstruction: T targets.
        permuted: the control, rows aligned with the targets.
        evidence: what the attack was handed.
        truths: T, of which only the strangers are taken.
        execution: how the attack was computed.
    """
    targets, found = reconstruction.targets, []
    for start in range(0, len(targets), execution.piece):
        some = slice(start, start + execution.piece)
        problem = AttackProblem(
            evidence.observations,
            evidence.knowledge,
            targets[some],
            execution.seed,
            execution.device,
            execution.chunk_rows,
            say=execution.say,
            trained=execution.trained,
        )
        objective = attack.objective(problem)
        if objective is None:
            return reconstruction
        known = zip(truths[some], reconstruction.labels[some], targets[some], strict=True)
        others = [
            strangers(truth, labels, generator(execution.seed, "fit", one.round, one.client, one.index))
            for truth, labels, one in known
        ]
        sets = [reconstruction.images[some], permuted.images[some], *torch.stack(others, 1)]
        values = torch.stack([objective(images.to(execution.device)).detach().double().cpu() for images in sets], 1)
        values = values.nan_to_num(nan=torch.inf)
        found.append(torch.cat([values[:, :2], values[:, 2:].amin(1, keepdim=True)], 1))
    return replace(reconstruction, fits=torch.cat(found))


def strangers(truth: Truth, labels: Tensor, rng: torch.Generator) -> Tensor:
    """Draw sets of strangers' images, each image of the class of the guess that it stands in for.

    Args:
        truth: holds the strangers.
        labels: ``(M,)`` classes of the guesses, -1 where none is told; then, as for classes without strangers, any.
        rng: of the draw.

    Returns:
        ``(STRANGERS, M, c, h, w)`` in [0, 1].
    """
    order = torch.randperm(len(truth.pool.guesses), generator=rng)
    chosen = torch.zeros(STRANGERS, len(labels), dtype=torch.int64)
    for label in labels.unique().tolist():
        guesses = (labels == label).nonzero().flatten()
        of_class = order[truth.pool.guess_labels[order] == label] if label >= 0 else order
        pool = of_class if len(of_class) else order
        chosen[:, guesses] = pool[torch.arange(STRANGERS * len(guesses)) % len(pool)].view(STRANGERS, -1)
    return truth.pool.guesses[chosen]
