"""Several images a row: a prior over M images at a time, each from a generator network of its own."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from fedpriv.attacks.priors.dip import DeepImagePrior, Hourglass


class SeveralImages:
    """M deep image priors for each of N rows, all N x M networks computed as one.

    For :func:`fedpriv.attacks.optim.fitting.fit` a row is one picture ``(M * c, h, w)``, its M images one after the
    other along the channels, so that the row has one objective, one stop rule and one running mean.

    Args:
        generators: N lists of M CPU generators, one an image.
        image_shape: (channels, height, width) of one image.
        shape: shape of each generator network.
        device: where to compute.
    """

    def __init__(
        self,
        generators: Sequence[Sequence[torch.Generator]],
        image_shape: tuple[int, int, int],
        shape: Hourglass,
        device: torch.device,
    ) -> None:
        self._images = len(generators[0])
        self._flat = DeepImagePrior([one for row in generators for one in row], image_shape, shape, device)
        self.parameters = self._by_row()

    def prepare(self, progress: float) -> Hashable:
        """Draw the noise of this iteration; all are alike."""
        return self._flat.prepare(progress)

    def shown(self, moving: Tensor) -> Tensor:
        """Return this iteration's pictures ``(N, M * c, h, w)``, from inputs with fresh noise where a row is moving."""
        return self._pictures(self._hand_over().shown(moving.repeat_interleave(self._images)))

    def clean(self) -> Tensor:
        """Return the pictures ``(N, M * c, h, w)`` of the present weights, made from inputs without noise."""
        return self._pictures(self._hand_over().clean())

    def penalty(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return zeros ``(N,)``: the networks themselves are the prior."""
        return images.new_zeros(len(images))

    def project(self) -> None:
        """Leave the weights as they are: they are free."""

    def compile(self) -> None:
        """Have the networks compiled from now on."""
        self._flat.compile()

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, ``rows`` being int64 positions on the CPU."""
        members = rows[:, None] * self._images + torch.arange(self._images)
        self._hand_over().keep(members.flatten())
        self.parameters = self._by_row()

    def _by_row(self) -> list[Tensor]:
        # The optimiser needs one leaf for each weight whose first axis is the rows.
        return [values.detach().unflatten(0, (-1, self._images)).requires_grad_() for values in self._flat.parameters]

    def _hand_over(self) -> DeepImagePrior:
        self._flat.parameters = [values.flatten(0, 1) for values in self.parameters]
        return self._flat

    def _pictures(self, images: Tensor) -> Tensor:
        rows, (_, channels, height, width) = len(images) // self._images, images.shape
        return images.reshape(rows, self._images * channels, height, width)
