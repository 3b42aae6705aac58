"""Representations by the extractors that a threat model grants: whose, and one batch a client."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedpriv.attacks.contract import Same, Trained
from fedpriv.attacks.observation import Knowledge, TargetId
from fedpriv.util.errors import UserError, shown
from fedpriv.util.seeds import Last

_PASS = 256


def require_extractors(knowledge: Knowledge, targets: Sequence[TargetId]) -> None:
    """Refuse where there is no extractor for an attacked client, naming the first."""
    for client in sorted({target.client for target in targets} - set(knowledge.extractors)):
        raise UserError(
            f"no extractor of client {client} was handed over, though the threat model grants "
            f"extractor={knowledge.card.extractor}; expected one for each attacked client"
        )


@torch.no_grad()
def represent(knowledge: Knowledge, client: int, images: Tensor, kept: Trained | None = None) -> Tensor:
    """Return the representations ``(n, d)`` of images by a client's extractor, in passes of 256, on the CPU.

    Those of the very same images are looked up where something is kept.
    """
    if client not in knowledge.extractors:
        raise UserError(
            f"no extractor of client {client} was handed over; pass knowledge={shown({'extractor': 'white_box'})}"
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

    Where the same owners are asked for again (the very same tensor), who owns what is not worked out anew.
    """

    def __init__(self, knowledge: Knowledge) -> None:
        self._extractors, self._device = knowledge.extractors, torch.device("cpu")
        self._calls = Last(self._plan)

    def __call__(self, images: Tensor, owners: Tensor) -> Tensor:
        """Return the representations ``(n, d)`` of images ``(n, c, h, w)``, whose clients ``owners`` ``(n,)`` names.

        ``owners`` lies on the CPU.
        """
        self._device = images.device
        calls, back = self._calls(owners)
        if len(calls) == 1:
            return calls[0][0](images)
        return torch.cat([extractor(images[places]) for extractor, places in calls])[back]

    def _plan(self, owners: Tensor) -> tuple[list[tuple[Callable[[Tensor], Tensor], Tensor]], Tensor]:
        """Return the extractors with the places of their images, and the way back to the order of the images."""
        clients = owners.unique().tolist()
        places = [(owners == client).nonzero().flatten() for client in clients]
        calls = [(self._extractors[k], current.to(self._device)) for k, current in zip(clients, places, strict=True)]
        return calls, torch.cat(places).argsort().to(self._device)
