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

from fedpriv.attacks.gradients.local_step import RANDOM, LocalStep, same_weights
from fedpriv.attacks.gradients.row_gradients import RowNorm, prepared
from fedpriv.attacks.observation import Statistics

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


def _length(values: Tensor) -> Tensor:
    """Return L2 norms ``(R,)`` whose derivative at zero is finite."""
    return (values.square().sum(1) + _TINY).sqrt()
