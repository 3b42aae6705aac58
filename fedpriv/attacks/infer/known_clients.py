"""Clients of which an attacker knows how many images of each class they have, and what is learned from them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedpriv.attacks.observation import Observation


@dataclass(frozen=True)
class KnownClient:
    """A client of which the attacker knows how many images of each class it has.

    Attributes:
        observation: its upload.
        counts: ``(C,)`` int64.
    """

    observation: Observation
    counts: Tensor


@dataclass(frozen=True)
class Learned:
    """A logistic regression on standardised numbers; one answer only where all examples had the same."""

    centre: Tensor
    scale: Tensor
    weight: Tensor
    bias: float

    def __call__(self, numbers: Tensor) -> Tensor:
        """Return the log-odds ``(k,)`` of numbers ``(k, f)``."""
        return ((numbers - self.centre) / self.scale) @ self.weight + self.bias
