"""Distances of candidates' statistics before batch normalisation from a client's.

Sources: Yin et al., "Dreaming to Distill: Data-free Knowledge Transfer via DeepInversion" (CVPR 2020), equation 4, with a
network's running statistics; Yin et al., "See through Gradients: Image Batch Recovery via GradInversion" (CVPR 2021),
equation 10, for gradients. That statistics of the very batch tell much more than running ones: Huang et al., "Evaluating
gradient inversion attacks and defenses in federated learning" (NeurIPS 2021), section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpriv.attacks.gradients.local_step import RANDOM, LocalStep, same_weights
from fedpriv.attacks.gradients.row_gradients import RowNorm, prepared
from fedpriv.attacks.observation import Statistics

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
