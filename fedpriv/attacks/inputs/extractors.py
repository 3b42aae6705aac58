"""Representations by the extractors that a knowledge card grants: whose, and one batch a client."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.inputs.stacked import StackedExtractors, architecture, stack, worth_stacking
from fedpriv.attacks.observation import Knowledge, TargetId
from fedpriv.attacks.trained import Same, Trained
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.last import Last

_PASS = 256


def require_extractors(knowledge: Knowledge, targets: Sequence[TargetId]) -> None:
    """Refuse where there is no extractor for an attacked client, naming the first."""
    for client in sorted({target.client for target in targets} - set(knowledge.extractors)):
        raise UserError(
            f"no extractor of client {client} was handed over, though the knowledge card grants "
            f"extractor={knowledge.card.extractor}; expected one for each attacked client"
        )


@torch.no_grad()
def represent(knowledge: Knowledge, client: int, images: Tensor, kept: Trained | None = None) -> Tensor:
    """Return the representations ``(n, d)`` of images by a client's extractor, in passes of 256, on the CPU.

    Those of the very same images are looked up where something is kept.
    """
    if client not in knowledge.extractors:
        raise UserError(
            f"no extractor of client {client} was handed over; pass {argument('knowledge', {'extractor': 'white_box'})}"
        )
    return represented(knowledge.extractors[client], images, images.device, kept).cpu()


@torch.no_grad()
def represented(
    extractor: Callable[[Tensor], Tensor], images: Tensor, device: torch.device, kept: Trained | None = None
) -> Tensor:
    """Return the representations ``(n, d)`` of images by an extractor, in passes of 256, on a device."""

    def compute() -> Tensor:
        return torch.cat([extractor(part) for part in images.to(device).split(_PASS)])

    return compute() if kept is None else kept.rows(("rows", Same(extractor), Same(images), device), compute)


def represent_rows(knowledge: Knowledge, images: Tensor, owners: Tensor) -> Tensor:
    """Return the representation ``(n, d)`` of each image by its own client's extractor, in one batch a client."""
    return OwnExtractors(knowledge)(images, owners)


class OwnExtractors:
    """The extractors of a card, as one map of images of several clients.

    Networks that differ in their weights only are called together where that is faster. Where the same owners are asked
    for again (the very same tensor), who owns what is not worked out anew.

    Args:
        knowledge: the card's grants.
        together: whether networks of one architecture are called together; None where that is faster.
    """

    def __init__(self, knowledge: Knowledge, together: bool | None = None) -> None:
        self._extractors, self._together = knowledge.extractors, together
        self._calls = Last(self._plan)
        self._stacks: dict[tuple[int, ...], StackedExtractors | None] = {}
        self._sample: Tensor | None = None

    def __call__(self, images: Tensor, owners: Tensor) -> Tensor:
        """Return the representations ``(n, d)`` of images ``(n, c, h, w)``, whose clients ``owners`` ``(n,)`` names.

        ``owners`` lies on the CPU.
        """
        self._sample = images.detach()
        calls, back = self._calls(owners)
        if back is None:
            return calls[0].of(images)
        found = [call.of(images[call.places]).flatten(0, -2)[call.own] for call in calls]
        return torch.cat(found)[back]

    def _plan(self, owners: Tensor) -> tuple[list[_Call], Tensor | None]:
        """Return the calls that images of these owners take, and the way back to the order of the images."""
        assert self._sample is not None
        device = self._sample.device
        places = {client: (owners == client).nonzero().flatten() for client in sorted(set(owners.tolist()))}
        if len(places) == 1:
            only = next(iter(places))
            return [_Call(self._extractors[only], owners, slice(None))], None
        calls, order = [], []
        for clients in self._groups(places, device):
            own = [places[client] for client in clients]
            order += own
            stacked = self._stacked(clients) if len(clients) > 1 else None
            if stacked is not None:
                most = max(map(len, own))
                # A client with fewer images shows its first again; what comes of those is left out.
                padded = torch.stack([mine[torch.arange(most) * (torch.arange(most) < len(mine))] for mine in own])
                kept = torch.cat([k * most + torch.arange(len(mine)) for k, mine in enumerate(own)])
                calls.append(_Call(stacked, padded.to(device), kept.to(device)))
                continue
            calls += [_Call(self._extractors[k], places[k].to(device), slice(None)) for k in clients]
        return calls, torch.cat(order).argsort().to(device)

    def _groups(self, places: dict[int, Tensor], device: torch.device) -> list[tuple[int, ...]]:
        """Return the clients that are called together, each once."""
        by_architecture: dict[Hashable, list[int]] = {}
        for client in places:
            alone = ("client", client)
            key = alone if self._together is False else architecture(self._extractors[client]) or alone
            by_architecture.setdefault(key, []).append(client)
        found: list[tuple[int, ...]] = []
        for clients in by_architecture.values():
            sizes = [len(places[client]) for client in clients]
            if self._together or worth_stacking(self._extractors[clients[0]], sizes, device):
                found.append(tuple(clients))
            else:
                found += [(client,) for client in clients]
        return found

    def _stacked(self, clients: tuple[int, ...]) -> StackedExtractors | None:
        if clients not in self._stacks:
            assert self._sample is not None
            self._stacks[clients] = stack([self._extractors[client] for client in clients], self._sample)
        return self._stacks[clients]


@dataclass(frozen=True)
class _Call:
    """One call of an extractor, or of several together.

    Attributes:
        of: the extractor, or extractors.
        places: of the images that it is given, ``(n,)`` or ``(K, n)``.
        own: which of what comes out is kept, all entries of K counted through.
    """

    of: Callable[[Tensor], Tensor]
    places: Tensor
    own: Tensor | slice
