"""A client step's notes: the images of each local step, and their weights in a mixture.

They are the truth that attacks are scored against, stored apart from what the server sees
(:mod:`fedpriv.federation.capture`); no method reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LocalTrace:
    """One client's part in one round.

    Attributes:
        phases: of each phase of training, the last of which made what is uploaded, the batches in order: int64 indices into
            the client's training set. A random batch may be empty.
        mixture: ``(n,)`` float32, the weight of every training image in the entangled upload; None where there is none.
    """

    phases: tuple[tuple[Tensor, ...], ...] = ()
    mixture: Tensor | None = None


class Trace:
    """A recorder for one client step and for the defenses of its upload."""

    def __init__(self, noted: LocalTrace | None = None) -> None:
        """Begin with nothing, or with what was noted elsewhere."""
        self._phases: list[tuple[Tensor, ...]] = [] if noted is None else [*noted.phases]
        self._mixture: Tensor | None = None if noted is None else noted.mixture

    def local_steps(self, batches: Sequence[Tensor]) -> None:
        """Note the batches of a phase of local training: int64 indices into the training set, one tensor a step."""
        self._phases.append(tuple(batches))

    def mixture(self, weights: Tensor) -> None:
        """Note the weight ``(n,)`` of every training image in an entangled upload."""
        self._mixture = weights

    def result(self) -> LocalTrace:
        """Return all notes so far."""
        return LocalTrace(tuple(self._phases), self._mixture)
