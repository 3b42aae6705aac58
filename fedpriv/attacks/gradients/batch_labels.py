"""Labels of a batch from an update: read off the gradient of the last layer, or guessed through a private head.

An extractor is sent without the head whose gradient says them. But the cross-entropy's gradient is linear in the labels, so
the extractor's is about a mixture, by class, of the gradients that images of no content would have with each label. The
mixture's weights are the classes' shares: least squares over weights that are not negative. Derived here, and a guess: how
good a one depends on how alike private images and images of no content look to the extractor.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.attacks.gradients.local_step import LocalStep, StepModel
from fedpriv.attacks.inputs.updates import Weights
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator

_DUMMIES = 8
_COARSE = 4


def last_layer(gradient: Mapping[str, Tensor], n_classes: int) -> tuple[Tensor, Tensor | None]:
    """Return the last linear layer's weight ``(C, d)`` and bias ``(C,)`` or None of a gradient in the order of layers.

    Raises:
        UserError: when no parameter has the shape of such a weight.
    """
    names = [name for name, value in gradient.items() if value.dim() == 2 and len(value) == n_classes]
    if not names:
        raise UserError(f"the model has no linear layer with {n_classes} outputs; labels cannot be inferred from it")
    bias = gradient.get(names[-1].removesuffix("weight") + "bias")
    return gradient[names[-1]], bias


def infer_labels(weight: Tensor, bias: Tensor | None, batch_size: int) -> Tensor:
    """Return the labels of a batch ``(n,)`` from the last layer's gradient ``(C, d)`` and ``(C,)``, as a multiset.

    With the cross-entropy, the bias gradient of a class is its mean predicted probability minus its share of the batch,
    so it is negative only for classes that are there. For one image that is the label (iDLG, Zhao et al. 2020). For
    more, every such class is taken once and the rest by repeatedly taking the most negative entry, where each image
    taken raises its class's entry by what one image is worth (the sum of the negative entries over n). Without bias the
    sum of the weight's row stands in for it: it has the same sign wherever the layer's inputs are not negative.
    """
    signal = (weight.sum(1) if bias is None else bias).double().clone()
    if batch_size == 1:
        return signal.argmin().view(1)
    share = signal.clamp_max(0).sum() / batch_size
    found: list[int] = []
    for label in signal.argsort().tolist():
        if signal[label] < 0 and len(found) < batch_size:
            found.append(label)
    for label in found:
        signal[label] -= share
    while len(found) < batch_size:
        label = int(signal.argmin())
        signal[label] -= share
        found.append(label)
    return torch.tensor(sorted(found), device=weight.device)


def infer_labels_through_head(
    step: LocalStep, model: nn.Module, count: int, n_classes: int, image_shape: tuple[int, int, int]
) -> Tensor:
    """Return the labels of an extractor's batch ``(n,)``, as a multiset, ascending; ``step.fixed`` holds its head."""
    device = next(iter(step.gradient.values())).device
    client, dummies = StepModel(model, device), images_of_no_content(image_shape).to(device)
    columns = []
    for label in range(n_classes):
        given = functional.one_hot(torch.full((len(dummies),), label, device=device), n_classes).float()
        columns.append(_flat(client.gradient(step.weights, dummies, given, step.fixed), step))
    wanted = torch.cat([value.flatten() for value in step.gradient.values()]).double().cpu()
    from scipy.optimize import nnls  # type: ignore[import-untyped]  # takes a quarter of a second to import

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
    """Return ``count`` labels in numbers next to ``shares``, which sum to it: the largest remainders are rounded up."""
    counts = shares.floor().long()
    rest = count - int(counts.sum())
    counts[(shares - counts).argsort(descending=True, stable=True)[:rest]] += 1
    return torch.repeat_interleave(torch.arange(len(counts)), counts)
