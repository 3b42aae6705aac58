"""Shapes of prototypes that a server knows without the uploads: rows of its head, and class means of its own images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpriv.attacks.observation import Observation
from fedpriv.attacks.recover.round_posterior import Shape, Uploads, activity
from fedpriv.wire.payloads import Classifier, find_payload


def head_rows(observations: Sequence[Observation], width: int) -> Tensor | None:
    """Return the rows of the head in each broadcast ``(T, C, d)`` float64; None where one is missing or of another width."""
    found = []
    for seen in observations:
        head = find_payload(seen.broadcast, Classifier)
        rows = None if head is None else head.state.get("weight")
        if rows is None or rows.dim() != 2 or rows.shape[1] != width:
            return None
        found.append(rows.double().cpu())
    return torch.stack(found) if found and len({rows.shape for rows in found}) == 1 else None


def shape_of_head(uploads: Uploads, rows: Tensor, classes: Tensor) -> Shape:
    """Return the shape that a head with rows ``(T, C, d)`` gives the classes ``(m,)``.

    Training under a head moves the prototype of a class along its row, and away from the others': along the rows less
    their mean over all classes. Behind a ReLU (no upload below zero) it does so only as far as a coordinate is active, so
    that rows are taken times the root of that.
    """
    apart = (rows - rows.mean(1, keepdim=True))[:, classes]
    leads = apart[-1]
    if bool((uploads.features >= 0).all()):
        apart = apart * activity(uploads.features).sqrt()
    return Shape(apart[-1], torch.einsum("tm,tmd->td", uploads.weights, apart), leads)


def shape_of_means(uploads: Uploads, means: Tensor) -> Shape:
    """Return the shape of strangers' class means ``(m, d)`` as of the last round."""
    means = means.double()
    return Shape(means, uploads.weights @ means)
