"""The premise of handed uploads: each client's true images are put through the computation that attacks assume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
    half_precision,
    over_clients,
    represented,
    steps_agreement,
)
from fedpriv.scoring.records.made import Premise
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import CLASS_MEANS, CLASS_OUTPUTS, LAYERS, MIXTURES, NETWORKS, OF_IMAGES
from fedpriv.wire.payload import Message, Payload

MOST_CLIENTS: Final = 50
"""Clients that are checked: targets are of no more."""


def rounding_of(given: Message | Update | Gradient) -> Rounding:
    """Return the rounding of an upload as it was handed in, by its values: who sends bfloat16 may have made float32 of it."""
    if isinstance(given, Update):
        floats = [value for value in given.after.values() if value.is_floating_point()]
        return Rounding(weights=max(half_precision(floats)[0], 2.0**-24))
    values = given.values if isinstance(given, Gradient) else [payload.tensors() for payload in given]
    found = values.values() if isinstance(values, Mapping) else values
    nested = [one for each in found for one in (each.values() if isinstance(each, Mapping) else (each,))]
    return Rounding(*half_precision([one.detach() for one in nested if one.is_floating_point()]))


def premise_of(handed: Handed, *, defended: bool) -> Premise:
    """Return whether the newest uploads are what the clients' true images give.

    Args:
        handed: uploads and truth.
        defended: whether clients are said to change uploads before they leave, which explains any difference.
    """
    if defended:
        return Premise(status="defense")
    trained = handed.target in NETWORKS | LAYERS
    others = sorted({one.optimiser.lower() for one in handed.batches.values()} - {"sgd"}) if trained else []
    found: list[Agreement] = []
    unchecked: list[str] = []
    for seen in handed.newest[:MOST_CLIENTS]:
        try:
            found.append(_agreement(handed, seen))
        except Exception as error:  # a network of somebody else raises anything
            unchecked.append(str(error).splitlines()[0] if str(error) else type(error).__name__)
    return over_clients(found, unchecked, ", ".join(others))


def _agreement(handed: Handed, seen: Observation) -> Agreement:
    """Return the agreement of one client's upload.

    Raises:
        UserError: where it cannot be told.
    """
    kind, own, client = handed.target, handed.own[seen.client], seen.client
    rounding = handed.rounding.get(client, Rounding())
    payload = next(payload for payload in seen.upload if payload.kind == kind)
    if handed.summed:
        raise UserError("the server sees the sum over clients alone")
    _refuse_partial(seen.upload, own)
    if kind in NETWORKS:
        if handed.model is None or client not in handed.batches:
            raise UserError("the batch facts of the local steps were not handed in")
        given = {"head": handed.heads.get(client), "device": handed.device}
        return steps_agreement(seen, handed.model, (own.images, own.labels), handed.batches[client], rounding, **given)
    if kind not in OF_IMAGES | CLASS_MEANS | MIXTURES | CLASS_OUTPUTS:
        raise UserError(f"{kind} uploads are computed from more than the images and what was handed in")
    if client not in handed.extractors or (kind in CLASS_OUTPUTS and client not in handed.heads):
        raise UserError(f"no {'extractor and head were' if kind in CLASS_OUTPUTS else 'extractor was'} handed in")
    rows, made = payload.rows(), represented(handed.extractors[client], own.images, handed.device)
    if kind in OF_IMAGES:
        return agreement(rows, made, rounding, "rows")
    if kind in MIXTURES:
        return _mixture(handed, seen, own, rows, made, rounding)
    if kind in CLASS_MEANS:
        return agreement(rows, _means(payload, made, own), rounding, "means")
    logits = linear(made, *handed.heads[client])  # or what softmax makes of them: an upload does not say
    both = [agreement(rows, _means(payload, one, own), rounding, "means") for one in (logits, logits.softmax(1))]
    return min(both, key=lambda one: one.error)


def _means(payload: Payload, rows: Tensor, own: PrivateImages) -> Tensor:
    classes = payload.said("classes")
    assert classes is not None
    return class_means(rows, own.labels, classes)


def _mixture(
    handed: Handed, seen: Observation, own: PrivateImages, rows: Tensor, made: Tensor, rounding: Rounding
) -> Agreement:
    """Return the agreement of a mixture, whose weights within a class are equal unless they were handed in."""
    shares = mixture_shares(handed, own, seen.client)
    found = agreement(rows, (shares[:, None] * made).sum(0, keepdim=True), rounding, "rows")
    if found.differs and own.weights is None:
        raise UserError("the weights of single images in the mixture were not handed in")
    return found


def _refuse_partial(upload: Message, own: PrivateImages) -> None:
    """Check that no fewer images were handed in than the upload says that it was computed from."""
    for payload in upload:
        classes, counts = payload.said("classes"), payload.said("counts")
        histogram, size = payload.said("histogram"), payload.said("size")
        least = torch.zeros(1, dtype=torch.int64) if histogram is None else histogram
        if classes is not None:
            least = torch.zeros(int(classes.max()) + 1, dtype=torch.int64)
            least[classes] = torch.ones_like(classes) if counts is None else counts
        there = torch.bincount(own.labels, minlength=len(least))[: len(least)]
        if bool((there < least).any()) or (size is not None and len(own.images) < int(size)):
            raise UserError("fewer images were handed in than the upload was computed from")
