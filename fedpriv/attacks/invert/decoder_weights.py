"""A trained decoder as the prior of a search: each row moves its own copy of the body's weights, and its own code.

The decoder that the attacker trained on its images is the start, so that the search begins where decoding ends; what it can
show are images that such a network shows, held smooth by total variation.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from fedpriv.attacks.invert.decoder_network import Decoder
from fedpriv.attacks.priors.variation import total_variation

SMOOTH = 0.02
"""Weight of total variation."""


class DecoderWeights:
    """N copies of a decoder, each with its representation: a prior for :func:`fedpriv.attacks.optim.fitting.fit`.

    Args:
        decoder: the start of every row.
        features: ``(N, d)`` representations; those of extractors of less width filled up with zeros.
        extractors: of each row, by which of the decoder's extractors its representation was made.
        labels: ``(N,)`` classes that the attacker is told, or None.
    """

    def __init__(
        self, decoder: Decoder, features: Tensor, extractors: Sequence[int], labels: Tensor | None = None
    ) -> None:
        which = torch.tensor(list(extractors), device=features.device)
        code = decoder.code(features[:, None], which).detach()
        first, last = decoder.network.layers
        rows = len(features)

        def copies(values: Tensor) -> Tensor:
            return values.detach().expand(rows, *values.shape).clone()

        start = [code, copies(first.weight.T), copies(first.bias[None]), copies(last.weight.T), copies(last.bias[None])]
        self.parameters: list[Tensor] = [values.requires_grad_() for values in start]
        self._shape = decoder.image_shape
        begin, apart = decoder.offsets(labels, which)
        begin, apart = begin.expand(rows, -1), apart.expand(rows, 1, code.shape[2])
        readout = decoder.readout[which]
        self._fixed = (begin, apart, readout, decoder.network.entry[which], decoder.network.shift[which])

    def prepare(self, progress: float) -> Hashable:
        """Draw nothing; all iterations are alike."""
        return 0

    def shown(self, moving: Tensor) -> Tensor:
        """Return this iteration's images ``(N, c, h, w)``: there is no noise."""
        return self.clean()

    def clean(self) -> Tensor:
        """Return the images ``(N, c, h, w)`` in [0, 1] of the present weights and codes."""
        code, first, shift, last, bias = self.parameters
        begin, apart, readout, entry, entry_shift = self._fixed
        hidden = torch.baddbmm(entry_shift, code, entry).relu()
        body = torch.baddbmm(bias, torch.baddbmm(shift, hidden, first).relu(), last)
        flat = begin[:, None] + torch.bmm(code - apart, readout) + body
        return flat.clamp(0, 1).reshape(-1, *self._shape)

    def penalty(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the weighted total variation of each image, ``(N,)``."""
        return total_variation(images, 1.0, SMOOTH)

    def project(self) -> None:
        """Leave the weights as they are: they are free."""

    def compile(self) -> None:
        """Leave everything as it is: two layers gain nothing."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, ``rows`` being int64 positions on the CPU."""
        there = rows.to(self._fixed[0].device)
        begin, apart, readout, entry, shift = (values[there] for values in self._fixed)
        self._fixed = (begin, apart, readout, entry, shift)
        self.parameters = [values.detach()[there].requires_grad_() for values in self.parameters]


def bytes_of_copy(decoder: Decoder) -> int:
    """Estimate the memory that a row takes: weights with gradient and Adam's moments, and its extractor's readout."""
    free = sum(value.numel() for value in decoder.network.body.parameters())
    return 4 * (5 * free + decoder.readout[0].numel() + decoder.network.entry[0].numel())
