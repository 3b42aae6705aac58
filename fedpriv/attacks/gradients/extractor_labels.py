"""Labels of a batch from the update of an extractor alone, through a private head that was granted.

The head's own gradient, from which labels are read elsewhere, is not sent. But the cross-entropy's gradient is linear in the
labels, so the extractor's is about a mixture, by class, of the gradients that images of no content would have with each
label. The mixture's weights are the classes' shares: least squares over weights that are not negative.

Derived here. It is a guess, unlike the reading of a head's bias: how good a one depends on how alike private images and
images of no content look to the extractor.
"""

from __future__ import annotations

import torch
from scipy.optimize import nnls  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.attacks.gradients.local_step import LocalStep, StepModel, Weights
from fedpriv.util.seeds import generator

_DUMMIES = 8
_COARSE = 4


def infer_labels_through_head(
    step: LocalStep, model: nn.Module, count: int, n_classes: int, image_shape: tuple[int, int, int]
) -> Tensor:
    """Return the labels of a batch ``(n,)``, as a multiset, ascending.

    Args:
        step: an extractor's step, its head in ``fixed``.
        model: the architecture.
        count: n.
        n_classes: C.
        image_shape: (channels, height, width).
    """
    device = next(iter(step.gradient.values())).device
    client, dummies = StepModel(model, device), images_of_no_content(image_shape).to(device)
    columns = []
    for label in range(n_classes):
        given = functional.one_hot(torch.full((len(dummies),), label, device=device), n_classes).float()
        columns.append(_flat(client.gradient(step.weights, dummies, given, step.fixed), step))
    wanted = torch.cat([value.flatten() for value in step.gradient.values()]).double().cpu()
    shares = torch.tensor(nnls(torch.stack(columns, 1).numpy(), wanted.numpy())[0])
    if not float(shares.sum()):  # no label explains anything: take the least bad one
        shares = functional.one_hot((torch.stack(columns) @ wanted).argmax(), n_classes).double()
    return _dealt(shares / shares.sum() * count, count).to(device)


def images_of_no_content(image_shape: tuple[int, int, int]) -> Tensor:
    """Return fine and coarse noise ``(16, c, h, w)`` in [0, 1], always the same."""
    channels, height, width = image_shape
    draw = generator(0, "images of no content")
    fine = torch.rand(_DUMMIES, *image_shape, generator=draw)
    coarse = torch.rand(_DUMMIES, channels, -(-height // _COARSE), -(-width // _COARSE), generator=draw)
    return torch.cat([fine, functional.interpolate(coarse, size=(height, width), mode="bilinear")])


def _flat(gradient: Weights, step: LocalStep) -> Tensor:
    return torch.cat([gradient[name].detach().flatten() for name in step.gradient]).double().cpu()


def _dealt(shares: Tensor, count: int) -> Tensor:
    """Return labels in whole numbers next to ``shares``, which sum to ``count``: the largest remainders are rounded up."""
    counts = shares.floor().long()
    rest = count - int(counts.sum())
    counts[(shares - counts).argsort(descending=True, stable=True)[:rest]] += 1
    return torch.repeat_interleave(torch.arange(len(counts)), counts)
