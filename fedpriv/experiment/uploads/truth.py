"""The truth of uploads from elsewhere, for scorers: the images behind each target, and strangers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedpriv.attacks.inputs.targets import said
from fedpriv.attacks.observation import TargetId, Unit
from fedpriv.datasets.types import Samples
from fedpriv.evidence.gather import Evidence
from fedpriv.evidence.held import HeldImages
from fedpriv.evidence.pool import Pool
from fedpriv.evidence.truth import Truth
from fedpriv.experiment.uploads.evidence import Handed
from fedpriv.experiment.uploads.given import PrivateImages
from fedpriv.scoring.inference_case import InferenceCase
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import LAYERS, MIXTURES, NETWORKS, PUBLIC_OUTPUTS, payload_kind


def own_truths(handed: Handed, pool: Pool, targets: Sequence[TargetId], unit: Unit) -> tuple[Truth, ...]:
    """Return the truth of each target.

    Args:
        handed: what was handed in.
        pool: images that no upload was computed from.
        targets: T targets.
        unit: what one target is.

    Raises:
        UserError: when no image is behind a target.
    """
    found = []
    for target in targets:
        own = handed.own[target.client]
        index, weights = _members(handed, own, target, of_class=unit == "class")
        if not len(index):
            raise UserError(
                f"{argument('images')}: client {target.client} has no image of class {target.label}, which its upload names"
            )
        recovered = unit in ("class", "row") and handed.target not in PUBLIC_OUTPUTS
        feature = _feature(handed, target, own.images[index]) if recovered else None
        found.append(Truth(own.images[index], weights, own.labels[index], pool, feature))
    return tuple(found)


def _members(handed: Handed, own: PrivateImages, target: TargetId, *, of_class: bool) -> tuple[Tensor, Tensor]:
    kind, labels = handed.target, own.labels
    origin = payload_kind(kind).computed_from
    if kind in LAYERS:
        index = (labels == labels.unique()[target.index]).nonzero().squeeze(1)
    elif of_class or origin == "class":
        index = (labels == target.label).nonzero().squeeze(1)
    elif origin == "image":
        index = torch.tensor([target.index])
    elif origin == "mixture":
        weights = mixture_shares(handed, own, target.client)
        index = (weights > 0).nonzero().squeeze(1)
        return index, weights[index] / weights[index].sum()
    elif kind in NETWORKS:
        index = torch.arange(len(labels))
    else:
        raise UserError(f"{argument('target', kind)}: no images are known to be behind such an upload")
    return index, torch.full((len(index),), 1 / max(len(index), 1), dtype=torch.float64)


def mixture_shares(handed: Handed, own: PrivateImages, client: int) -> Tensor:
    """Return each image's share in a client's mixture: as it was handed in, or by class as the upload says."""
    if own.weights is not None:
        return own.weights
    seen = next(seen for seen in handed.newest if seen.client == client)
    payload = MIXTURES.first(seen.upload)
    name = None if payload is None else payload.field_that_says("weights")
    if name is None:
        raise UserError(f"{argument('weights')}: missing; the upload does not say how images are weighted")
    encoding: Tensor = getattr(payload, name).double().abs()
    counts = torch.bincount(own.labels, minlength=len(encoding)).clamp(min=1)
    return (encoding / counts)[own.labels]


def _feature(handed: Handed, target: TargetId, images: Tensor) -> Tensor | None:
    """Return the mean representation ``(d,)`` that an attack with linear algebra should have recovered."""
    network = handed.extractors.get(target.client)
    if network is None:
        return None
    with torch.no_grad():
        means: Tensor = network(images.to(handed.device)).mean(0).cpu()
    return means


def own_case(handed: Handed, evidence: Evidence, strangers: Samples, seed: int) -> InferenceCase:
    """Return the case of an inference; non-members are the clients' held-out images, where these were handed in.

    Else they are strangers and other clients' images. A member that the attacker has too is not asked about.
    """
    places: dict[bytes, int] = {}
    images: list[Tensor] = []
    labels: list[Tensor] = []

    def placed(samples: PrivateImages | Samples) -> np.ndarray:
        index = []
        for image, label in zip(samples.images, samples.labels, strict=True):
            key = image.numpy().tobytes()  # an image that two clients hold is nobody's non-member
            if key not in places:
                places[key] = len(images)
                images.append(image)
                labels.append(label)
            index.append(places[key])
        return np.array(index)

    held = {client: placed(own) for client, own in handed.own.items()}
    used = {}
    if handed.public is not None:
        attackers = {image.numpy().tobytes() for image in handed.public.images.cpu()}
        known = [place for key, place in places.items() if key in attackers]
        used = {client: np.setdiff1d(index, known) for client, index in held.items()} if known else {}
    held_out = {client: placed(own) for client, own in handed.held_out.items()}
    pool = Samples(
        torch.cat([torch.stack(images), strangers.images]), torch.cat([torch.stack(labels), strangers.labels])
    )
    told = {k: said(o.upload for o in handed.observations if o.client == k) for k in handed.own}
    truth = HeldImages(pool, held, used, held_out, handed.device)
    return InferenceCase(evidence, truth, handed.target, seed, told)


def refuse_known(strangers: Tensor, own: Mapping[int, PrivateImages]) -> None:
    """Check that no stranger is one of the clients' images: floors would be as good as the truth.

    Raises:
        UserError: naming the stranger.
    """
    known = {image.numpy().tobytes(): client for client, each in own.items() for image in each.images}
    for place, image in enumerate(strangers):
        client = known.get(image.numpy().tobytes())
        if client is not None:
            raise UserError(
                f"{argument('strangers')}: image {place} is one of client {client}'s; expected images that no upload was "
                "computed from"
            )
