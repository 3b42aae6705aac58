"""The control of every attack: the same attack, but each client's upload is another client's."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedpriv.attacks.observation import Observation
from fedpriv.evidence.server_view import by_round
from fedpriv.wire.kinds import BY_CLASS, CLASS_OUTPUTS
from fedpriv.wire.payload import Message, Payload, find_payload


def permute(observations: tuple[Observation, ...]) -> tuple[Observation, ...] | None:
    """Give every client's place another client's upload: the next client's of the same round.

    Rows keep their number and labels, so that targets still point at something; only what was computed from images is
    the other client's. What an attack still reaches, it did not get from the upload.
    """
    rounds = by_round(observations)
    if any(len(group) < 2 for group in rounds.values()):
        return None
    result = []
    for group in rounds.values():
        others = [*group[1:], group[0]]
        result += [
            replace(own, upload=_in_place_of(own.upload, other.upload))
            for own, other in zip(group, others, strict=True)
        ]
    return tuple(result)


def _in_place_of(own: Message, other: Message) -> Message:
    """Return the other client's payloads of the own kinds; what the other did not send (it is sent once) is left out."""
    pairs = ((mine, find_payload(other, type(mine))) for mine in own)
    return tuple(_payload_in_place_of(mine, theirs) for mine, theirs in pairs if theirs is not None)


def _payload_in_place_of(own: Payload, other: Payload) -> Payload:
    if own.kind not in BY_CLASS:
        return other
    values, classes, others = own.values_field(), own.said("classes"), other.said("classes")
    theirs: Tensor = getattr(other, str(values))
    if classes is not None and others is not None:
        if own.kind in CLASS_OUTPUTS:
            theirs = theirs[_rows_of_other_classes(classes, others)]
        else:
            theirs = theirs[torch.arange(len(classes)) % len(others)]
    return replace(own, **{str(values): theirs})


def _rows_of_other_classes(own: Tensor, other: Tensor) -> Tensor:
    """Return a row of the other upload for each own class, of another class where there is one.

    A class's output looks much the same from every client, so a row of the same class would be no control.
    """
    rows = []
    for place, label in enumerate(own.tolist()):
        differs = (other != label).nonzero().squeeze(1).tolist() or list(range(len(other)))
        rows.append(differs[place % len(differs)])
    return torch.tensor(rows, dtype=torch.int64)
