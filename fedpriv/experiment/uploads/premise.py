"""The premise of handed uploads: each client's true images are put through the computation that attacks assume."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from fedpriv.attacks.observation import Observation
from fedpriv.experiment.uploads.evidence import Handed
from fedpriv.experiment.uploads.given import Gradient, PrivateImages, Update
from fedpriv.experiment.uploads.truth import mixture_shares
from fedpriv.scoring.premise import (
    Agreement,
    Rounding,
    agreement,
    class_means,
    over_clients,
    represented,
    rounding_of,
    steps_agreement,
)
from fedpriv.scoring.records.made import Cause, Premise
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import CLASS_MEANS, CLASS_OUTPUTS, LAYERS, MIXTURES, NETWORKS, OF_IMAGES
from fedpriv.wire.payload import Message

MOST_CLIENTS: Final = 50
MOST_OF_SEVERAL_STEPS: Final = 10
"""Clients that are checked, the first ones; several steps may take many replays each."""


def upload_rounding(upload: Message | Update | Gradient) -> Rounding:
    """Return the rounding of an upload as it was handed in."""
    if isinstance(upload, Update):
        return Rounding(weights=max(rounding_of(_floats(upload.after.values())).values, 2.0**-24))
    if isinstance(upload, Gradient):
        return rounding_of(_floats(upload.values.values() if isinstance(upload.values, Mapping) else upload.values))
    return rounding_of(_floats(value for payload in upload for value in payload.tensors().values()))


def _floats(values: Iterable[object]) -> list[Tensor]:
    """Return the tensors and arrays of floats among some values."""
    tensors = [torch.as_tensor(value) for value in values if isinstance(value, (Tensor, np.ndarray))]
    return [tensor.detach() for tensor in tensors if tensor.is_floating_point()]


def premise_of(handed: Handed, *, defended: bool) -> Premise:
    """Return the agreement of the newest uploads with what the true images of their clients give.

    Args:
        handed: uploads and truth.
        defended: whether clients are said to change uploads before they leave, which explains any difference.
    """
    if defended:
        return Premise(status="defense")
    trained = handed.target in NETWORKS | LAYERS
    others = {facts.optimiser.lower() for facts in handed.batches.values()} - {"sgd"} if trained else ()
    agreements: list[Agreement] = []
    unchecked: list[str] = []
    several = any(facts.steps > 1 for facts in handed.batches.values())
    for seen in handed.newest[: MOST_OF_SEVERAL_STEPS if several else MOST_CLIENTS]:
        try:
            agreements.append(_agreement(handed, seen))
        except Exception as error:  # a network of somebody else raises anything
            unchecked.append(str(error).splitlines()[0] if str(error) else type(error).__name__)
    return over_clients(agreements, unchecked, ", ".join(sorted(others)))


def _agreement(handed: Handed, seen: Observation) -> Agreement:
    """Return the agreement of one client's upload.

    Raises:
        UserError: where it cannot be told.
    """
    kind, client, truth = handed.target, seen.client, handed.own[seen.client]
    rounding, head = handed.rounding.get(client, Rounding()), handed.heads.get(client)
    if handed.summed:
        raise UserError("the server sees the sum over clients alone")
    _refuse_partial(seen.upload, truth)
    if kind in NETWORKS:
        if handed.model is None or client not in handed.batches:
            raise UserError("the batch facts of the local steps were not handed in")
        batch, facts = (truth.images, truth.labels), handed.batches[client]
        return steps_agreement(seen, handed.model, batch, facts, rounding, head=head, device=handed.device)
    if kind not in OF_IMAGES | CLASS_MEANS | MIXTURES | CLASS_OUTPUTS:
        raise UserError(f"{kind} uploads are computed from more than what was handed in")
    if client not in handed.extractors:
        raise UserError("no extractor was handed in")
    if head is None and kind in CLASS_OUTPUTS:
        raise UserError("no head was handed in")
    network, device = handed.extractors[client], handed.device
    made = _replayed(handed, seen, represented(network, truth.images, device))
    payload = next(payload for payload in seen.upload if payload.kind == kind)
    cause: Cause = "means" if kind in CLASS_MEANS | CLASS_OUTPUTS else "rows"
    nearest = min((agreement(payload.rows(), rows, rounding, cause) for rows in made), key=lambda either: either.error)
    if nearest.differs:
        in_half = _replayed(handed, seen, represented(network, truth.images, device, rounding.half))
        pairs = [(rows, rounding.of_computing(rows, half)) for rows, half in zip(made, in_half, strict=True)]
        agreements = [agreement(payload.rows(), rows, rounding, cause, lost) for rows, lost in pairs]
        nearest = min(agreements, key=lambda either: either.error)
    if nearest.differs and kind in MIXTURES and truth.weights is None:
        raise UserError("the weights of single images in the mixture were not handed in")
    return nearest


def _replayed(handed: Handed, seen: Observation, rows: Tensor) -> tuple[Tensor, ...]:
    """Return the rows that a client would upload of its representations; of class outputs logits, and their softmax."""
    client, truth = seen.client, handed.own[seen.client]
    if handed.target in OF_IMAGES:
        return (rows,)
    if handed.target in MIXTURES:
        return ((mixture_shares(handed, truth, client)[:, None] * rows).sum(0),)
    classes = next(payload for payload in seen.upload if payload.kind == handed.target).said("classes")
    assert classes is not None
    if handed.target in CLASS_MEANS:
        return (class_means(rows, truth.labels, classes),)
    logits = linear(rows, *handed.heads[client])
    return tuple(class_means(values, truth.labels, classes) for values in (logits, logits.softmax(1)))


def _refuse_partial(upload: Message, truth: PrivateImages) -> None:
    """Check that no fewer images were handed in than the upload says that it was computed from."""
    for payload in upload:
        classes, counts = payload.said("classes"), payload.said("counts")
        histogram, size = payload.said("histogram"), payload.said("size")
        least = torch.zeros(1, dtype=torch.int64) if histogram is None else histogram
        if classes is not None and len(classes):
            least = torch.zeros(int(classes.max()) + 1, dtype=torch.int64)
            least[classes] = torch.ones_like(classes) if counts is None else counts
        there = torch.bincount(truth.labels, minlength=len(least))[: len(least)]
        if bool((there < least).any()) or (size is not None and len(truth.images) < int(size)):
            raise UserError("fewer images were handed in than the upload was computed from")
