"""The comparison of updates with what else is known of candidates beside it: statistics of the batch, a layer's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedpriv.attacks.gradients.batch_statistics import BatchStatistics
from fedpriv.attacks.gradients.gradient_matching import Matcher, Matching
from fedpriv.attacks.gradients.separated_batch import KnownInputs
from fedpriv.attacks.gradients.step_problems import StepProblem
from fedpriv.attacks.optim.rows import Row
from fedpriv.attacks.read.updates import HEAD

ALIKE = 3
"""Images from which what went into a layer weighs in full; of fewer, whose gradient says more itself, in proportion."""

HEAD_TELLS = 10.0
"""How much more what went into the head weighs: no fully connected layer stood before it whose gradient says as much."""


class Beside(Protocol):
    """A demand on candidates beside their update."""

    def distance(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the distances ``(R,)`` of some rows' images ``(R, M, c, h, w)``."""
        ...


class MatchingBeside(Matching):
    """The comparison of updates, and others beside it, each with a weight ``(N,)`` of its own for every row."""

    def __init__(self, matching: Matching, terms: Sequence[tuple[Tensor, Beside]]) -> None:
        self._matching = matching
        self._terms = terms

    def of_updates(self, images: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """Return the cosine distance alone."""
        return self._matching.of_updates(images, labels, rows)

    def cosine(self, images: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """Return the cosine distance plus the weighted others."""
        return self._with(self._matching.cosine(images, labels, rows), images, rows)

    def squared(self, images: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """Return the squared distance plus the weighted others."""
        return self._with(self._matching.squared(images, labels, rows), images, rows)

    def _with(self, found: Tensor, images: Tensor, rows: Tensor) -> Tensor:
        for weights, term in self._terms:
            found = found + weights[rows.to(weights.device)] * term.distance(images, rows)
        return found


def matching_of(
    problem: StepProblem, matcher: Matcher, rows: Sequence[Row], statistics_weight: float, inputs_weight: float
) -> Matching:
    """Return the comparison of rows' candidates with their targets, and with what else is known of them.

    Args:
        problem: the targets.
        matcher: compares updates.
        rows: N.
        statistics_weight: of granted statistics before batch norms; 0 leaves them out.
        inputs_weight: of what went into the layer at which images were told apart; 0 leaves it out.
    """
    steps, counts, labels = problem.of(rows)
    device = labels.device
    known = [one.known if one is not None else None for one in (problem.apart[row.position] for row in rows)]
    at_head = [HEAD_TELLS if step.readout.startswith(HEAD.removesuffix(".")) else 1.0 for step in steps]
    shares = [inputs_weight * times * min(1.0, count / ALIKE) for count, times in zip(counts, at_head, strict=True)]
    asks = bool(inputs_weight) and any(one is not None for one in known)
    pairs = list(zip(known, shares, strict=True))
    inside = [None if one is None else (one.inputs.to(device), share * one.sure.to(device)) for one, share in pairs]
    matching = matcher.against(steps, counts, inside if asks and matcher.takes_inputs else ())
    terms: list[tuple[Tensor, Beside]] = []
    if statistics_weight and problem.statistics:
        wanted = [problem.statistics[row.position] for row in rows]
        each = torch.full((len(rows),), statistics_weight, device=device)
        terms.append((each, BatchStatistics(problem.model, steps, counts, wanted, device)))
    if asks and not matcher.takes_inputs:
        terms.append((torch.tensor(shares, device=device), KnownInputs(known)))
    return MatchingBeside(matching, terms) if terms else matching


def explained(matching: Matching, images: Tensor, labels: Tensor, found: Tensor) -> Tensor:
    """Return all rows' distance from explaining the update, with images ``(N, M, c, h, w)``, all else left aside.

    ``found`` ``(N,)`` is what ``matching`` gave for these images and labels.
    """
    if not isinstance(matching, MatchingBeside) and not matching.asks_for_inputs:
        return found
    return matching.of_updates(images, labels, torch.arange(len(images), device=images.device)).detach()
