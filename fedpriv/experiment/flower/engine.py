"""The engine: a round's jobs are spread over Flower's nodes, and answers are awaited for so long and no longer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch

from fedpriv.experiment.flower.wire import RefusedError, fingerprint, pack_job, read_result
from fedpriv.federation.engine import ClientJob, ClientResult
from fedpriv.federation.prepared import Federation
from fedpriv.federation.summary import ClientFailure
from fedpriv.util.errors import UserError, WorkError, short_line

PAUSE: Final = 0.1
"""Seconds between looks for answers, and for nodes."""
LINGERS: Final = 60.0
"""Seconds that a message outlives its time, so that it is the engine that tells who was late."""


class FlowerEngine:
    """Runs the jobs of rounds on the nodes of a Flower federation; see :data:`fedpriv.federation.engine.Engine`.

    Nodes take turns, whichever are there as the round begins. None keeps anything of a client: one that goes away takes no
    state with it, and one that comes late is told all it needs.
    """

    def __init__(
        self,
        grid: Any,
        device: str,
        *,
        nodes: int = 1,
        fault: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the nodes behind a grid.

        Args:
            grid: a ``flwr.serverapp.Grid``.
            device: where nodes compute, unless they know better: as :func:`fedpriv.util.device.pick_device` takes it.
            nodes: the first round waits for so many.
            fault: tells of a fault of what is behind the grid; empty while there is none.
            clock: seconds.
        """
        self._grid, self._device, self._wanted = grid, device, nodes
        self._fault, self._clock = fault, clock
        self._fingerprints: dict[int, str] = {}

    def __call__(self, federation: Federation, jobs: Sequence[ClientJob]) -> Iterator[ClientResult | ClientFailure]:
        """Run the jobs of a round.

        Raises:
            UserError: where a node refused a job for a reason that holds on every node.
            WorkError: where what is behind the grid broke down.
        """
        seconds, device = federation.config.engine.client_timeout, federation.server.device
        until = self._clock() + seconds
        nodes = self._nodes(until)
        asked: dict[str, int] = {}
        found: dict[int, ClientResult | ClientFailure] = {}
        clients: list[int] = []
        for place, job in enumerate(jobs):
            clients.append(job.client)
            sent = self._send(federation, job, nodes[place % len(nodes)], seconds) if nodes else None
            if sent is None:
                told = "its job could not be sent" if nodes else "no node is there"
                found[job.client] = ClientFailure(client=job.client, why="failed", told=told)
            else:
                asked[sent] = job.client
        for client in clients:
            while client not in found and self._clock() < until:
                if not self._collect(asked, found, device):
                    time.sleep(PAUSE)
            late = ClientFailure(client=client, why="timed out", told=f"no answer in {seconds:g} s")
            yield found.pop(client, late)

    def _nodes(self, until: float) -> list[int]:
        """Return the nodes that are there, ascending; wait for some until a moment."""
        while True:
            self._refuse_fault()
            nodes = sorted(self._grid.get_node_ids())  # none at first, whoever is there
            if len(nodes) >= self._wanted or self._clock() >= until:
                self._wanted = 1
                return nodes
            time.sleep(PAUSE)

    def _send(self, federation: Federation, job: ClientJob, node: int, seconds: float) -> str | None:
        """Send one job alone, since a request has a largest size; return its message's id."""
        from flwr.app import Message

        if job.client not in self._fingerprints:
            self._fingerprints[job.client] = fingerprint(federation.clients[job.client])
        content = pack_job(federation.config, self._device, job, self._fingerprints[job.client])
        group, lives = str(job.round), seconds + LINGERS
        message = Message(content, dst_node_id=node, message_type="train", group_id=group, ttl=lives)
        sent = [*self._grid.push_messages([message])]
        return sent[0] if sent else None

    def _collect(
        self, asked: dict[str, int], found: dict[int, ClientResult | ClientFailure], device: torch.device
    ) -> bool:
        """Take the answers that have come in; False where there were none."""
        self._refuse_fault()
        replies = list(self._grid.pull_messages([*asked]))
        for reply in replies:
            client = asked.pop(reply.metadata.reply_to_message_id)
            found[client] = _result(reply, client, device)
        return bool(replies)

    def _refuse_fault(self) -> None:
        told = self._fault()
        if told:
            raise WorkError(told)


def _result(reply: Any, client: int, device: torch.device) -> ClientResult | ClientFailure:
    if reply.has_error():
        told = short_line(str(reply.error.reason or f"Flower's error {reply.error.code}"))
        return ClientFailure(client=client, why="failed", told=told)
    try:
        return read_result(reply.content, client, device)
    except RefusedError:
        raise
    except UserError as error:
        return ClientFailure(client=client, why="failed", told=str(error))
