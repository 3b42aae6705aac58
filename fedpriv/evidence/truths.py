"""From a finished run: the private images behind targets. For scorers only; no attack imports this."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedpriv.attacks.observation import TargetId, Unit
from fedpriv.attacks.trained import Same, Trained
from fedpriv.datasets.federated import drawn_by_class
from fedpriv.datasets.types import as_unit
from fedpriv.evidence.client_states import state_behind
from fedpriv.evidence.pool import ENOUGH_DECOYS, MOST_VALUES, Pool
from fedpriv.evidence.traces import mixing_weights, round_members, used_images
from fedpriv.evidence.truth import Truth
from fedpriv.federation.local_training import represent
from fedpriv.federation.prepared import Federation
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.federation.states import put
from fedpriv.models.build import build_model
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator
from fedpriv.wire.kinds import LAYERS, NETWORKS, PUBLIC_OUTPUTS, payload_kind
from fedpriv.wire.payloads import Representations, get_payload


def truths(
    run: RunDirectory,
    federation: Federation,
    kind: str,
    targets: Sequence[TargetId],
    *,
    seed: int,
    unit: Unit = "upload",
    kept: Trained | None = None,
) -> tuple[Truth, ...]:
    """Look up the private images behind targets, and draw the images that they have nothing to do with.

    The pool of a client's targets is everything that is not in its training set, strangers that the run set aside and the
    others' images, as far as memory allows; none of the attacker's own.

    Args:
        run: a complete run.
        federation: the run prepared again.
        kind: of upload that is attacked.
        targets: T targets.
        seed: of the drawing of strangers.
        unit: what one target is.
        kept: pools that were drawn already, for scorers alone; None begins anew.
    """
    keep = kept or Trained()
    pools = {
        client: keep.get(("pool", client, seed, Same(federation)), partial(_pool, federation, client, seed))
        for client in sorted({target.client for target in targets})
    }
    found = []
    for target in targets:
        train = federation.clients[target.client].train.to(torch.device("cpu"))
        of_class = unit == "class" and kind not in LAYERS
        recovered = unit in ("class", "row") and kind not in PUBLIC_OUTPUTS  # outputs lead to no representation
        index, weights = _members(run, federation, kind, target, of_class=of_class)
        found.append(
            Truth(
                members=train.images[index],
                weights=weights,
                labels=train.labels[index],
                pool=pools[target.client],
                feature=_prototype(run, federation, kind, target, train.images[index]) if recovered else None,
            )
        )
    return tuple(found)


def _prototype(run: RunDirectory, federation: Federation, kind: str, target: TargetId, images: Tensor) -> Tensor:
    """Return the mean representation ``(d,)`` that an attack with linear algebra should have recovered."""
    model = build_model(federation.clients[target.client].blueprint, 0)
    put(model, state_behind(run, federation, kind, target.client, target.round), "model")
    return represent(model, images).mean(0)


def _pool(federation: Federation, client: int, seed: int) -> Pool:
    """Draw the strangers of a client's targets.

    All images that there are while :data:`MOST_VALUES` allows it, else as many of each class, first of those that no client
    trained on.
    """
    data = federation.data
    parts = [data.dataset.samples] + ([] if data.strangers is None else [data.strangers.others])
    images, labels = torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts])
    order = torch.randperm(len(images), generator=generator(seed, "strangers"))
    order[np.concatenate([held.train_index for held in data.clients])] += len(images)
    outside = torch.ones(len(images), dtype=torch.bool)
    outside[data.clients[client].train_index] = False
    classes = labels.unique().tolist()
    most = max(2 * ENOUGH_DECOYS, MOST_VALUES // (images[0].numel() * len(classes)))
    kept = []
    for label in classes:
        of_class = (outside & (labels == label)).nonzero().squeeze(1)
        kept.append(of_class[order[of_class].argsort()[:most]])
    index = torch.cat(kept).sort().values
    alike = drawn_by_class(federation.config.partition)
    return Pool.divided(as_unit(images[index]), labels[index], seed, "strangers", client, alike=alike)


def _members(
    run: RunDirectory, federation: Federation, kind: str, target: TargetId, *, of_class: bool
) -> tuple[Tensor, Tensor]:
    labels, computed_from = federation.clients[target.client].train.labels.cpu(), payload_kind(kind).computed_from
    if of_class or computed_from == "class":
        index = (labels == target.label).nonzero().squeeze(1)
    elif computed_from == "image":
        index = _uploaded_rows(run, federation, target, labels)[target.index][None]
    elif kind in LAYERS:
        index = round_members(run, federation, target)
    elif computed_from == "mixture":
        weights = mixing_weights(run, target.round, target.client).abs()  # signed draws count by magnitude
        index = (weights > 0).nonzero().squeeze(1)
        return index, weights[index] / weights[index].sum()
    elif kind in NETWORKS:
        index = used_images(run, target.round, target.client)
    else:
        raise UserError(
            f"no images are known to be behind an upload of {kind}, which is computed from: {computed_from}"
        )
    return index, torch.full((len(index),), 1 / len(index), dtype=torch.float64)


def _uploaded_rows(run: RunDirectory, federation: Federation, target: TargetId, labels: Tensor) -> Tensor:
    """Return the training image ``(n,)`` behind each uploaded representation: defenses drop whole classes."""
    if not federation.pipeline.defenses:
        return torch.arange(len(labels))
    sent = get_payload(run.message(run.upload_path(target.round, target.client)), Representations).labels
    return torch.isin(labels, sent).nonzero().squeeze(1)
