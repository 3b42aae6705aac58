"""Representations by the extractors that a knowledge card grants: whose, and one batch a client."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpriv.attacks.observation import Knowledge, TargetId
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError

_PASS = 256


def require_extractors(knowledge: Knowledge, targets: Sequence[TargetId]) -> None:
    """Refuse where there is no extractor for an attacked client, naming the first."""
    for client in sorted({target.client for target in targets} - set(knowledge.extractors)):
        raise UserError(
            f"no extractor of client {client} was handed over, though the knowledge card grants "
            f"extractor={knowledge.card.extractor}; expected one for each attacked client"
        )


@torch.no_grad()
def represent(knowledge: Knowledge, client: int, images: Tensor) -> Tensor:
    """Return the representations ``(n, d)`` of images by a client's extractor, in passes of 256, on the CPU."""
    if client not in knowledge.extractors:
        raise UserError(
            f"no extractor of client {client} was handed over; pass {argument('knowledge', {'extractor': 'white_box'})}"
        )
    extractor = knowledge.extractors[client]
    return torch.cat([extractor(part).cpu() for part in images.split(_PASS)])


def represent_rows(knowledge: Knowledge, images: Tensor, owners: Tensor) -> Tensor:
    """Return the representation ``(n, d)`` of each image by its own client's extractor, in one batch a client."""
    clients = sorted(set(owners.tolist()))
    if len(clients) == 1:
        return knowledge.extractors[clients[0]](images)
    places = [(owners == client).nonzero().flatten() for client in clients]
    parts = [knowledge.extractors[k](images[mine.to(images.device)]) for k, mine in zip(clients, places, strict=True)]
    back = torch.cat(places).argsort()
    return torch.cat(parts)[back.to(images.device)]
