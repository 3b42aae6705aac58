"""Adam by torch's own function: ``torch.optim.Adam`` itself imports torch's compiler, a second or two of every process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw

BETAS = (0.9, 0.999)
"""Decay of the means of gradients and of their squares, as Kingma and Ba (2015) have them."""


def rate_stays_in_place(device: torch.device) -> bool:
    """True where step sizes of fused steps are a tensor, which recorded steps read."""
    return device.type == "cuda"


class Adam:
    """Moves parameters against their gradients, to the last bit as ``torch.optim.Adam`` and ``AdamW`` do.

    Args:
        parameters: leaves; :meth:`step` changes their values.
        learning_rate: of the steps until :meth:`pace` says another.
        weight_decay: by which share of the learning rate parameters shrink in a step, apart from the gradient (Loshchilov
            and Hutter 2019).
        betas: decay of the two means.
        epsilon: beside the root of the second.
        fused: whether a step is one kernel a tensor, on a GPU a few for all, which rounds otherwise.

    Attributes:
        parameters: as given; after :meth:`keep` those that are left.
        learning_rate: of the next step.
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
        self._weight_decay, self._betas, self._epsilon, self._fused = weight_decay, betas, epsilon, fused
        self._means = [torch.zeros_like(one) for one in self.parameters]
        self._squares = [torch.zeros_like(one) for one in self.parameters]
        self._taken = [torch.zeros((), device=one.device if fused else None) for one in self.parameters]
        in_place = fused and rate_stays_in_place(self.parameters[0].device)
        self.learning_rate = self.parameters[0].new_tensor(learning_rate) if in_place else learning_rate

    def pace(self, learning_rate: float) -> None:
        """Take steps of this size from now on."""
        if isinstance(self.learning_rate, Tensor):
            self.learning_rate.fill_(learning_rate)
        else:
            self.learning_rate = learning_rate

    def forget_gradients(self) -> None:
        """Take the gradients off the parameters."""
        for one in self.parameters:
            one.grad = None

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor] | None = None) -> None:
        """Move every parameter against its gradient: one for each parameter, or those that are on them."""
        given = [one.grad for one in self.parameters] if gradients is None else [one.contiguous() for one in gradients]
        moved = [place for place, one in enumerate(given) if one is not None]
        parameters, means, squares, taken = (
            [values[place] for place in moved] for values in (self.parameters, self._means, self._squares, self._taken)
        )
        update = adamw if self._weight_decay else adam
        update(
            parameters,
            [one for one in given if one is not None],
            means,
            squares,
            [],
            taken,
            fused=self._fused,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=self.learning_rate,
            weight_decay=self._weight_decay,
            eps=self._epsilon,
            maximize=False,
        )

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows of every parameter only (int64 positions on the device of the parameters)."""
        self.parameters = [one.detach()[rows].requires_grad_() for one in self.parameters]
        self._means, self._squares = ([one[rows] for one in values] for values in (self._means, self._squares))
