"""Representations by the extractors that a knowledge card grants: whose, and one batch a client."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpriv.attacks.observation import Knowledge, TargetId
from fedpriv.util.errors import UserError


def require_extractors(knowledge: Knowledge, targets: Sequence[TargetId]) -> None:
    """Check that there is an extractor for every attacked client.

    Raises:
        UserError: naming the first client without one.
    """
    for client in sorted({target.client for target in targets} - set(knowledge.extractors)):
        raise UserError(
            f"no extractor of client {client} was handed over, though the knowledge card grants "
            f"extractor={knowledge.card.extractor}; expected one for each attacked client"
        )


def represent_rows(knowledge: Knowledge, images: Tensor, owners: Tensor) -> Tensor:
    """Return the representation ``(n, d)`` of each image by the extractor of its own client, one batch a client.

    Args:
        knowledge: holds an extractor for each owner.
        images: ``(n, c, h, w)`` in [0, 1].
        owners: ``(n,)`` int64 clients, on the CPU.
    """
    clients = sorted(set(owners.tolist()))
    if len(clients) == 1:
        return knowledge.extractors[clients[0]](images)
    parts = []
    places = []
    for client in clients:
        mine = (owners == client).nonzero().flatten()
        places.append(mine)
        parts.append(knowledge.extractors[client](images[mine.to(images.device)]))
    back = torch.cat(places).argsort()
    return torch.cat(parts)[back.to(images.device)]
