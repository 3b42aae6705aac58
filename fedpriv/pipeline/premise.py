"""The premise of uploads from elsewhere: each client's true images are put through the computation that attacks assume."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from fedpriv.attacks.inputs.targets import represented
from fedpriv.attacks.observation import Observation, TargetId
from fedpriv.datasets.types import Samples
from fedpriv.eval.premise import Agreement, Rounding, agreement, class_means, over_clients, rounding_of, steps_agreement
from fedpriv.eval.records import Cause, Premise
from fedpriv.sources.external import ExternalSource
from fedpriv.sources.messages import Gradient, Raw, Update
from fedpriv.uploads.kinds import CLASS_MEANS, CLASS_OUTPUTS, LAYERS, MIXTURES, NETWORKS, OF_IMAGES
from fedpriv.uploads.payload import Message
from fedpriv.util.errors import UserError, first_line

MOST_CLIENTS: Final = 50
MOST_OF_SEVERAL_STEPS: Final = 10
"""Clients that are checked, the first ones; several steps may take many replays each."""


def rounding_as_given(upload: Raw) -> Rounding:
    """Return the rounding of an upload as it was handed in."""
    values: Iterable[object] = ()
    if isinstance(upload, Update):
        values = upload.after.values()
    elif isinstance(upload, Gradient):
        values = upload.values.values() if isinstance(upload.values, Mapping) else upload.values
    else:
        values = [value for payload in upload for value in payload.tensors().values()]
    tensors = [torch.as_tensor(value) for value in values if isinstance(value, (Tensor, np.ndarray))]
    rounding = rounding_of([tensor.detach() for tensor in tensors if tensor.is_floating_point()])
    return Rounding(weights=max(rounding.values, 2.0**-24)) if isinstance(upload, Update) else rounding


def premise_of(source: ExternalSource) -> Premise:
    """Return the agreement of the newest uploads with what the true images of their clients give."""
    if source.defenses:  # that clients change uploads explains any difference
        return Premise(status="defense")
    trained = source.kind in NETWORKS | LAYERS
    others = {facts.optimiser.lower() for facts in source.batches.values()} - {"sgd"} if trained else ()
    agreements: list[Agreement] = []
    unchecked: list[str] = []
    several = any(facts.steps > 1 for facts in source.batches.values())
    for seen in source.newest[: MOST_OF_SEVERAL_STEPS if several else MOST_CLIENTS]:
        try:
            agreements.append(_agreement(source, seen))
        except Exception as error:  # a network of somebody else raises anything
            unchecked.append(first_line(error))
    return over_clients(agreements, unchecked, ", ".join(sorted(others)))


def _agreement(source: ExternalSource, seen: Observation) -> Agreement:
    kind, client, truth = source.kind, seen.client, source.images[seen.client]
    rounding, head = rounding_as_given(source.raw[client]), source.heads.get(client)
    if source.summed:
        raise UserError("the server sees the sum over clients alone")
    _refuse_partial(seen.upload, truth)
    if kind in NETWORKS:
        if source.model is None or client not in source.batches:
            raise UserError("the batch facts of the local steps were not handed in")
        batch, facts = (truth.images, truth.labels), source.batches[client]
        return steps_agreement(seen, source.model, batch, facts, rounding, head=head, device=source.device)
    if kind not in OF_IMAGES | CLASS_MEANS | MIXTURES | CLASS_OUTPUTS:
        raise UserError(f"{kind} uploads are computed from more than what was handed in")
    network = source.extractors.get((seen.round, client))
    if network is None or (head is None and kind in CLASS_OUTPUTS):
        raise UserError(f"no {'extractor' if network is None else 'head'} was handed in")
    images = truth.images.float()
    made = _replayed(source, seen, represented(network, images, source.device))
    payload = next(payload for payload in seen.upload if payload.kind == kind)
    cause: Cause = "means" if kind in CLASS_MEANS | CLASS_OUTPUTS else "rows"
    nearest = min((agreement(payload.rows(), rows, rounding, cause) for rows in made), key=lambda either: either.error)
    if nearest.differs:
        halved = copy.deepcopy(network).to(rounding.half)
        in_half = _replayed(source, seen, represented(halved, images.to(rounding.half), source.device))
        pairs = [(rows, rounding.of_computing(rows, half)) for rows, half in zip(made, in_half, strict=True)]
        agreements = [agreement(payload.rows(), rows, rounding, cause, lost) for rows, lost in pairs]
        nearest = min(agreements, key=lambda either: either.error)
    if nearest.differs and kind in MIXTURES and client not in source.shares:
        raise UserError("the weights of single images in the mixture were not handed in")
    return nearest


def _replayed(source: ExternalSource, seen: Observation, rows: Tensor) -> tuple[Tensor, ...]:
    """Return the rows that a client would upload of its representations; of class outputs logits, and their softmax."""
    rows = rows.cpu().float()
    if source.kind in OF_IMAGES:
        return (rows,)
    if source.kind in MIXTURES:
        return ((source.mixture(TargetId(seen.round, seen.client))[:, None] * rows).sum(0),)
    labels = source.images[seen.client].labels
    classes = next(payload for payload in seen.upload if payload.kind == source.kind).said("classes")
    assert classes is not None
    if source.kind in CLASS_MEANS:
        return (class_means(rows, labels, classes),)
    logits = linear(rows, *source.heads[seen.client])
    return tuple(class_means(values, labels, classes) for values in (logits, logits.softmax(1)))


def _refuse_partial(upload: Message, truth: Samples) -> None:
    """Check that no fewer images were handed in than the upload says that it was computed from."""
    for payload in upload:
        classes, counts = payload.said("classes"), payload.said("counts")
        histogram, size = payload.said("histogram"), payload.said("size")
        least = torch.zeros(1, dtype=torch.int64) if histogram is None else histogram
        if classes is not None and len(classes):
            least = torch.zeros(int(classes.max()) + 1, dtype=torch.int64)
            least[classes] = torch.ones_like(classes) if counts is None else counts
        there = torch.bincount(truth.labels, minlength=len(least))[: len(least)]
        if bool((there < least).any()) or (size is not None and len(truth) < int(size)):
            raise UserError("fewer images were handed in than the upload was computed from")
