"""Class means of clients, and tables of a row for each class in the state of client or server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.federation.local_training import class_means, represent
from fedpriv.federation.method import ClientSetup
from fedpriv.federation.states import State
from fedpriv.wire.payloads import Prototypes


def of_client(setup: ClientSetup, counted: bool = False) -> Prototypes:
    """Return the mean representation of every class that the client holds, by ``setup.model`` as it is."""
    means, classes, counts = class_means(represent(setup.model, setup.train.images), setup.train.labels)
    return Prototypes(means, classes, counts if counted else None)


@dataclass(frozen=True)
class ClassTable:
    """The names of rows ``(C, d)`` in a state, and of which of them are known ``(C,)`` bool."""

    values: str
    known: str

    def empty(self, n_classes: int, width: int, device: torch.device) -> State:
        """Return a table in which no row is known."""
        return {
            self.values: torch.zeros(n_classes, width, device=device),
            self.known: torch.zeros(n_classes, dtype=torch.bool, device=device),
        }

    def replaced(self, state: State, rows: Tensor, classes: Tensor) -> State:
        """Return the state with these rows in place of those of their classes."""
        values, known = state[self.values].clone(), state[self.known].clone()
        values[classes], known[classes] = rows, True
        return state | {self.values: values, self.known: known}

    def rows(self, state: State) -> tuple[Tensor, Tensor]:
        """Return the known rows ``(c, d)`` and their classes ``(c,)``."""
        classes = state[self.known].nonzero().squeeze(1)
        return state[self.values][classes], classes

    def averaged(self, state: State, sent: Sequence[tuple[Tensor, Tensor, Tensor | None]]) -> State:
        """Return the table with each class's mean over the rows sent, the old row where there were none.

        ``sent`` are each client's rows ``(c, d)``, classes ``(c,)`` and weights ``(c,)``, None for equal ones.
        """
        sums = torch.zeros_like(state[self.values], dtype=torch.float64)
        totals = torch.zeros(len(sums), dtype=torch.float64, device=sums.device)
        for rows, classes, weights in sent:
            share = torch.ones_like(classes, dtype=torch.float64) if weights is None else weights.double()
            sums.index_add_(0, classes, rows.double() * share[:, None])
            totals.index_add_(0, classes, share)
        fresh = totals > 0
        means = (sums / totals.clamp(min=1e-12)[:, None]).float()
        return {
            self.values: torch.where(fresh[:, None], means, state[self.values]),
            self.known: fresh | state[self.known],
        }
