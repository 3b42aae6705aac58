"""Distances of candidates' statistics before batch normalisation from a client's.

Sources: Yin et al., "Dreaming to Distill: Data-free Knowledge Transfer via DeepInversion" (CVPR 2020), equation 4, with a
network's running statistics; Yin et al., "See through Gradients: Image Batch Recovery via GradInversion" (CVPR 2021),
equation 10, for gradients. That statistics of the very batch tell much more than running ones: Huang et al., "Evaluating
gradient inversion attacks and defenses in federated learning" (NeurIPS 2021), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpriv.attacks.gradients.gradient_matching import Matcher, Matching
from fedpriv.attacks.gradients.local_step import RANDOM, LocalStep, same_weights
from fedpriv.attacks.gradients.row_gradients import RowNorm, prepared
from fedpriv.attacks.gradients.step_problems import StepProblem
from fedpriv.attacks.observation import Statistics
from fedpriv.attacks.optim.rows import Row

_TINY = 1e-12


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

    def distance(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return ``sum_l |mean_l - mu_l| + |variance_l - sigma^2_l|`` (L2 norms over channels) ``(R,)`` of some of the rows.

        A row's images beyond its own count, in ``(R, M, c, h, w)``, have no part.
        """
        asked = rows.tolist()
        found = images.new_zeros(len(asked))
        for group in self._groups:
            mine = [place for place, row in enumerate(asked) if row in group]
            if not mine:
                continue
            own = images[mine][:, : self._counts[group[0]]]
            for norm in self._norms.values():
                norm.rows = len(mine)
            step = self._steps[group[0]]
            functional_call(self._model, step.weights | step.fixed, (own.flatten(0, 1),))
            there = torch.tensor([asked[place] for place in mine], device=images.device)
            parts = []
            for name, norm in self._norms.items():
                mean, variance = (value[there] for value in self._wanted[name])
                parts += [_length(norm.mean - mean), _length(norm.variance - variance)]
            value = torch.stack(parts).sum(0)
            found = found.index_copy(0, torch.tensor(mine, device=images.device), value)
        return found


class MatchingWithStatistics(Matching):
    """The comparison of updates, and with a weight that of statistics beside it."""

    def __init__(self, matching: Matching, statistics: BatchStatistics, weight: float) -> None:
        self._matching = matching
        self._statistics = statistics
        self._weight = weight

    def of_updates(self, images: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """Return the cosine distance alone."""
        return self._matching.cosine(images, labels, rows)

    def cosine(self, images: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """Return the cosine distance plus the weighted distance of statistics."""
        return self._matching.cosine(images, labels, rows) + self._weight * self._statistics.distance(images, rows)

    def squared(self, images: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """Return the squared distance plus the weighted distance of statistics."""
        return self._matching.squared(images, labels, rows) + self._weight * self._statistics.distance(images, rows)


def matching_of(problem: StepProblem, matcher: Matcher, rows: Sequence[Row], weight: float) -> Matching:
    """Return the comparison of rows' candidates with their targets, with granted statistics under a weight above zero."""
    steps, counts, labels = problem.of(rows)
    matching = matcher.against(steps, counts)
    if not weight or not problem.statistics:
        return matching
    wanted = [problem.statistics[row.position] for row in rows]
    return MatchingWithStatistics(
        matching, BatchStatistics(problem.model, steps, counts, wanted, labels.device), weight
    )


def explained(matching: Matching, images: Tensor, labels: Tensor, found: Tensor) -> Tensor:
    """Return all rows' distance from explaining the update, with images ``(N, M, c, h, w)``, statistics left aside.

    ``found`` ``(N,)`` is what ``matching`` gave for these images and labels.
    """
    if not isinstance(matching, MatchingWithStatistics):
        return found
    return matching.of_updates(images, labels, torch.arange(len(images), device=images.device)).detach()


def _length(values: Tensor) -> Tensor:
    """Return L2 norms ``(R,)`` whose derivative at zero is finite."""
    return (values.square().sum(1) + _TINY).sqrt()
