"""Adam over the parameters of N rows as one buffer: a step is a handful of kernels, however many parameters there are.

On a CPU the step goes tensor by tensor instead, which there costs less than gathering the gradients.

The update is that of ``torch.optim.Adam`` with its defaults (Kingma and Ba 2015), elementwise, so a row's steps do not
depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedpriv.attacks.optim.rate import Rate

_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


def steps_apart(device: torch.device, number: int) -> bool:
    """True where a step goes through that many tensors one by one: on a GPU it would be as many kernels."""
    return device.type == "cpu" and number > 1


class RowAdam:
    """Adam on parameters whose first axis is the rows.

    Args:
        parameters: tensors ``(N, ...)`` of one type on one device; their values are copied.

    Attributes:
        parameters: leaves to differentiate by, views of one buffer that :meth:`step` changes.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        device = parameters[0].device
        self._apart = steps_apart(device, len(parameters))
        values = [one.detach() for one in parameters]
        size = sum(one.numel() for one in values)
        self._hold(values, values[0].new_zeros(size), values[0].new_zeros(size))
        self._gradient = self._mean[:0]
        self._rate = Rate(device)
        self._taken = torch.ones((), device=device)  # steps, the present one among them

    def pace(self, learning_rate: float) -> None:
        """Take steps of this size from now on."""
        self._rate.set(learning_rate)

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Take a step against gradients, one for each parameter."""
        if self._apart:
            values, means, squares = self._parts
            self._move(values, [own.contiguous() for own in gradients], means, squares)
        else:
            self._move([self._values], [self._gathered(gradients)], [self._mean], [self._square])
        self._taken += 1

    def _move(self, values: list[Tensor], gradients: list[Tensor], means: list[Tensor], squares: list[Tensor]) -> None:
        rate: Any = self._rate.value
        # What torch.optim calls, which counts the steps of each tensor apart and sorts them by device.
        torch._fused_adam_(
            values,
            gradients,
            means,
            squares,
            [],
            [self._taken] * len(values),
            lr=rate,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            weight_decay=0.0,
            eps=_EPSILON,
            amsgrad=False,
            maximize=False,
        )

    def _gathered(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return gradients as one, in memory that is kept: for many rows too much to ask for at every step."""
        if len(gradients) == 1:
            return _joined(gradients)
        if self._gradient.shape != self._values.shape:
            self._gradient = torch.empty_like(self._values)
        return torch.cat([values.reshape(-1) for values in gradients], out=self._gradient)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only (int64 positions on the device of the parameters)."""
        values, means, squares = ([part[rows] for part in parts] for parts in self._parts)
        self._hold(values, _own(means), _own(squares))

    def _hold(self, values: list[Tensor], mean: Tensor, square: Tensor) -> None:
        self._shapes = [one.shape for one in values]
        self._values, self._mean, self._square = _own(values), mean, square
        self._parts = self._split(self._values), self._split(mean), self._split(square)
        self.parameters = [view.requires_grad_() for view in self._split(self._values)]

    def _split(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]


def _own(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors as one in memory of its own, no view of another."""
    return _joined(tensors) if len(tensors) > 1 else _joined(tensors).clone()


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    # Whatever memory layout a tensor has, its entries stand in the order of its axes.
    flat = [values.reshape(-1) for values in tensors]
    return torch.cat(flat) if len(flat) > 1 else flat[0]
