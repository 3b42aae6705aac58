"""Distances of candidates beside that of their update: from statistics before batch norms, and from a layer's inputs.

Sources of the statistics: Yin et al., "Dreaming to Distill: Data-free Knowledge Transfer via DeepInversion" (CVPR 2020),
equation 4, with a network's running ones; Yin et al., "See through Gradients: Image Batch Recovery via GradInversion" (CVPR
2021), equation 10, for gradients. That those of the very batch tell much more than running ones: Huang et al., "Evaluating
gradient inversion attacks and defenses in federated learning" (NeurIPS 2021), section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpriv.attacks.gradients.gradient_matching import Matcher, Matching
from fedpriv.attacks.gradients.row_gradients import RowNorm, prepared
from fedpriv.attacks.gradients.separated_batch import KnownInputs
from fedpriv.attacks.gradients.step_problems import StepProblem
from fedpriv.attacks.gradients.update import RANDOM, LocalStep, same_weights
from fedpriv.attacks.inputs.updates import HEAD
from fedpriv.attacks.observation import Statistics
from fedpriv.attacks.search.candidates import Row

_TINY = 1e-12


@dataclass(frozen=True)
class _Share:
    """The asked rows whose clients began with the same weights and hold equally many images.

    Attributes:
        first: a row of theirs.
        places: ``(A,)`` which of the asked rows they are.
        wanted: means and variances ``(A, C)`` by layer.
    """

    first: int
    places: Tensor
    wanted: dict[str, tuple[Tensor, Tensor]]


class BatchStatistics:
    """Statistics of N rows' candidates in one pass of each by the weights that its client began with."""

    def __init__(
        self,
        model: nn.Module,
        steps: Sequence[LocalStep],
        counts: Sequence[int],
        wanted: Sequence[Statistics],
        device: torch.device,
    ) -> None:
        self._model = prepared(model).to(device).train()
        for module in self._model.modules():
            if isinstance(module, RANDOM):
                module.eval()
        self._norms = {name: layer for name, layer in self._model.named_modules() if isinstance(layer, RowNorm)}
        self._steps, self._counts = steps, counts
        self._wanted = {
            name: tuple(torch.stack([one[name][part] for one in wanted]).to(device) for part in (0, 1))
            for name in self._norms
        }
        self._groups = [
            [row for row in alike if counts[row] == count]
            for alike in same_weights(steps)
            for count in dict.fromkeys(counts[row] for row in alike)
        ]
        self._asked: tuple[Tensor, int, list[_Share]] | None = None

    def distance(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return ``sum_l |mean_l - mu_l| + |variance_l - sigma^2_l|`` (L2 norms over channels) ``(R,)`` of some of the rows.

        A row's images beyond its own count, in ``(R, M, c, h, w)``, have no part.
        """
        found = images.new_zeros(len(rows))
        for share in self._shares(rows, images.device):
            own = images[share.places][:, : self._counts[share.first]]
            for norm in self._norms.values():
                norm.rows = len(share.places)
            step = self._steps[share.first]
            functional_call(self._model, step.weights | step.fixed, (own.flatten(0, 1),))
            parts = []
            for name, norm in self._norms.items():
                mean, variance = share.wanted[name]
                parts += [_length(norm.mean - mean), _length(norm.variance - variance)]
            found = found.index_copy(0, share.places, torch.stack(parts).sum(0))
        return found

    def _shares(self, rows: Tensor, device: torch.device) -> list[_Share]:
        """Return the asked rows by group; looked at only where it is another tensor, or was written to."""
        if self._asked is None or self._asked[0] is not rows or self._asked[1] != rows._version:
            self._asked = rows, rows._version, list(self._grouped(rows.tolist(), device))
        return self._asked[2]

    def _grouped(self, asked: list[int], device: torch.device) -> Iterator[_Share]:
        for group in self._groups:
            mine = [place for place, row in enumerate(asked) if row in group]
            if mine:
                there = torch.tensor([asked[place] for place in mine], device=device)
                wanted = {name: (values[0][there], values[1][there]) for name, values in self._wanted.items()}
                yield _Share(group[0], torch.tensor(mine, device=device), wanted)


def _length(values: Tensor) -> Tensor:
    """Return L2 norms ``(R,)`` whose derivative at zero is finite."""
    return (values.square().sum(1) + _TINY).sqrt()


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
