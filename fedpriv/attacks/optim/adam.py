"""Adam on the parameters of one network, or on one tensor: to the last bit that of ``torch.optim.Adam`` and ``AdamW``.

Those take a second or two for the first of them in a process, in which they load a compiler that nothing here uses.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw

BETAS = (0.9, 0.999)
"""Decay of the means of gradients and of their squares, as Kingma and Ba (2015) have them."""


class Adam:
    """Moves parameters against the gradients that are on them.

    Args:
        parameters: leaves; :meth:`step` changes their values.
        learning_rate: of the steps that are told no other.
        weight_decay: by which share of the learning rate parameters shrink in a step, apart from the gradient (Loshchilov
            and Hutter 2019).
        betas: decay of the two means.
        epsilon: beside the root of the second.
        fused: whether a step is one kernel a tensor, which rounds otherwise.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        learning_rate: float,
        *,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = BETAS,
        epsilon: float = 1e-8,
        fused: bool = False,
    ) -> None:
        self.parameters = list(parameters)
        self._learning_rate, self._weight_decay = learning_rate, weight_decay
        self._betas, self._epsilon, self._fused = betas, epsilon, fused
        self._means = [torch.zeros_like(one) for one in self.parameters]
        self._squares = [torch.zeros_like(one) for one in self.parameters]
        self._taken = [torch.zeros((), device=one.device if fused else None) for one in self.parameters]

    def forget_gradients(self) -> None:
        """Take the gradients off the parameters."""
        for one in self.parameters:
            one.grad = None

    @torch.no_grad()
    def step(self, learning_rate: float | Tensor | None = None) -> None:
        """Move every parameter that has a gradient."""
        moved = [place for place, one in enumerate(self.parameters) if one.grad is not None]
        gradients = [one.grad for one in self.parameters if one.grad is not None]
        parameters, means, squares, taken = (
            [values[place] for place in moved] for values in (self.parameters, self._means, self._squares, self._taken)
        )
        update = adamw if self._weight_decay else adam
        update(
            parameters,
            gradients,
            means,
            squares,
            [],
            taken,
            fused=self._fused,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=self._learning_rate if learning_rate is None else learning_rate,
            weight_decay=self._weight_decay,
            eps=self._epsilon,
            maximize=False,
        )
