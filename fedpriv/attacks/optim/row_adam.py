"""Adam over the parameters of N rows as one buffer: a step is a handful of kernels, however many parameters there are.

On a CPU the step goes tensor by tensor instead, which there costs less than gathering the gradients.

The update is that of ``torch.optim.Adam`` with its defaults (Kingma and Ba 2015), elementwise, so a row's steps do not
depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam

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
        self._values = _own([values.detach() for values in parameters])
        self._mean, self._square = torch.zeros_like(self._values), torch.zeros_like(self._values)
        self._gradient = self._values[:0]
        self._rate = Rate(self._values.device)
        self._apart = steps_apart(self._values.device, len(parameters))
        self._taken = [
            torch.zeros((), device=self._values.device) for _ in range(len(parameters) if self._apart else 1)
        ]
        self._view_as(parameters)

    def pace(self, learning_rate: float) -> None:
        """Take steps of this size from now on."""
        self._rate.set(learning_rate)

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Take a step against gradients, one for each parameter."""
        if self._apart:
            values, moments = self.parameters, self._moments
            gradients = [own.contiguous() for own in gradients]
        else:
            values, moments = [self._values], ([self._mean], [self._square])
            gradients = [self._gathered(gradients)]
        with torch.no_grad():
            adam(
                values,
                gradients,
                *moments,
                [],
                self._taken,
                fused=True,
                amsgrad=False,
                beta1=_BETAS[0],
                beta2=_BETAS[1],
                lr=self._rate.value,
                weight_decay=0.0,
                eps=_EPSILON,
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
        left = [values.detach()[rows] for values in self.parameters]
        for name in ("_mean", "_square"):
            setattr(self, name, _own([moments[rows] for moments in self._split(getattr(self, name))]))
        self._values = _own(left)
        self._view_as(left)

    def _view_as(self, parameters: Sequence[Tensor]) -> None:
        self._shapes = [values.shape for values in parameters]
        self.parameters = [view.requires_grad_() for view in self._split(self._values)]
        self._moments = self._split(self._mean), self._split(self._square)

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
