"""A model cut where federated methods cut it: extractor, representation mapping, head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus


@dataclass(frozen=True)
class Blueprint:
    """An architecture with its sizes.

    Attributes:
        name: a name of ``fedpriv.models.MODELS``.
        image_shape: (channels, height, width) of the input.
        n_classes: number of logits C.
        width: representation width d after the mapping.
        mapping: ``ap``, ``mp`` or ``fc``.
        norm_bound: longer representations are shortened to this L2 norm; None for no bound.
        bottleneck: entries of the code of a variational bottleneck behind the mapping; 0 for none.
        group_norm: whether group normalisation stands in place of batch normalisation.
        last_hidden: units of the extractor's last linear layer; 0 for the architecture's own number.
    """

    name: str
    image_shape: tuple[int, int, int]
    n_classes: int
    width: int
    mapping: str = "ap"
    norm_bound: float | None = None
    bottleneck: int = 0
    group_norm: bool = False
    last_hidden: int = 0


LEAST_DEVIATION = 1e-6
"""Softplus underflows to zero far below zero, where the logarithm in the divergence would be infinite."""


class VariationalBottleneck(nn.Module):
    """``(n, d)`` to ``(n, d)`` through a code ``z ~ N(mean, deviation^2)`` of K entries, so that gradients are random.

    PRECODE (Scheliga, Maeder, Seeland, WACV 2022, section 3), by the bottleneck of Alemi et al. (ICLR 2017).

    In training the code is drawn from torch's global generator; in evaluation it is the mean. ``divergence`` is the mean
    over the newest training batch of KL(N(mean, deviation^2) || N(0, 1)), summed over the code, in nats.
    """

    def __init__(self, width: int, code: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(width, 2 * code)
        self.decoder = nn.Linear(code, width)
        self.divergence: Tensor | None = None

    def forward(self, vectors: Tensor) -> Tensor:
        """Return vectors ``(n, d)``."""
        mean, raw = self.encoder(vectors).chunk(2, 1)
        if not self.training:
            decoded: Tensor = self.decoder(mean)
            return decoded
        deviation = softplus(raw).clamp(min=LEAST_DEVIATION)
        self.divergence = divergence(mean, deviation)
        drawn: Tensor = self.decoder(mean + deviation * torch.randn_like(mean))
        return drawn

    def __getstate__(self) -> dict[str, Any]:
        """Leave the divergence behind: it hangs in a graph, which cannot be copied."""
        return self.__dict__ | {"divergence": None}


def divergence(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return KL(N(mean, deviation^2) || N(0, 1)) in nats of ``(n, K)``, summed over a row, averaged over rows."""
    return (mean.square() + deviation.square() - 2 * deviation.log() - 1).sum(1).mean() / 2


class SplitModel(nn.Module):
    """``logits = head(bounded(bottleneck(mapping(extractor((x - mean) / std)))))``.

    Attributes:
        extractor: images ``(n, c, h, w)`` to vectors ``(n, L)``.
        mapping: ``(n, L)`` to representations ``(n, d)``.
        head: one linear layer d -> C with bias.
        norm_bound, bottleneck: as of :class:`Blueprint`.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        extractor: nn.Module,
        mapping: nn.Module,
        head: nn.Linear,
        mean: float = 0.5,
        std: float = 0.5,
        norm_bound: float | None = None,
        bottleneck: VariationalBottleneck | None = None,
    ) -> None:
        super().__init__()
        self.extractor = extractor
        self.mapping = mapping
        self.bottleneck = bottleneck  # before the head: parameters are listed in the order in which they are passed
        self.head = head
        self.norm_bound = norm_bound
        self.register_buffer("mean", torch.tensor(mean), persistent=False)
        self.register_buffer("std", torch.tensor(std), persistent=False)

    def represent(self, images: Tensor) -> Tensor:
        """Return representations ``(n, d)`` of images ``(n, c, h, w)`` in [0, 1]."""
        vectors: Tensor = self.mapping(self.extractor((images - self.mean) / self.std))
        if self.bottleneck is not None:
            vectors = self.bottleneck(vectors)
        if self.norm_bound is None:
            return vectors
        lengths = vectors.norm(dim=1, keepdim=True).clamp(min=1e-12)
        bounded: Tensor = vectors * (self.norm_bound / lengths).clamp(max=1)
        return bounded

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``(n, C)`` of images ``(n, c, h, w)`` in [0, 1]."""
        logits: Tensor = self.head(self.represent(images))
        return logits
