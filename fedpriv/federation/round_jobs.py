"""The jobs of a round, each with its client's state, which is looked up only when the job's turn comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import overload

from fedpriv.federation.client_part import ClientJob
from fedpriv.federation.method import State
from fedpriv.wire.payload import Message


@dataclass(frozen=True)
class RoundJobs(Sequence[ClientJob]):
    """The jobs of a round by their place, so that memory need not hold the states of all its clients at once.

    Attributes:
        round: from 1.
        clients: of the round, ascending.
        states: of all clients; a job takes its state from here as it stands when the job is asked for.
        broadcast: what the server sent.
    """

    round: int
    clients: tuple[int, ...]
    states: Sequence[State] = field(repr=False)
    broadcast: Message = field(repr=False)

    def __len__(self) -> int:
        return len(self.clients)

    @overload
    def __getitem__(self, place: int) -> ClientJob: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[ClientJob]: ...

    def __getitem__(self, place: int | slice) -> ClientJob | Sequence[ClientJob]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        client = self.clients[place]
        return ClientJob(self.round, client, self.states[client], self.broadcast)
