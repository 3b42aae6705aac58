"""Labels of a batch, read off the gradient of the last layer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedpriv.util.errors import UserError


def last_layer(gradient: Mapping[str, Tensor], n_classes: int) -> tuple[Tensor, Tensor | None]:
    """Return the gradient of the last linear layer: weight ``(C, d)`` and bias ``(C,)`` or None.

    Args:
        gradient: by parameter name, in the order of the layers.
        n_classes: C.

    Raises:
        UserError: when no parameter has the shape of such a weight.
    """
    names = [name for name, value in gradient.items() if value.dim() == 2 and len(value) == n_classes]
    if not names:
        raise UserError(f"the model has no linear layer with {n_classes} outputs; labels cannot be inferred from it")
    bias = gradient.get(names[-1].removesuffix("weight") + "bias")
    return gradient[names[-1]], bias


def infer_labels(weight: Tensor, bias: Tensor | None, batch_size: int) -> Tensor:
    """Return the labels of a batch ``(n,)``, as a multiset: a gradient says nothing of the order.

    With the cross-entropy, the bias gradient of a class is its mean predicted probability minus its share of the batch,
    so it is negative only for classes that are there. For one image that is the label (iDLG, Zhao et al. 2020). For
    more, every such class is taken once and the rest by repeatedly taking the most negative entry, where each image
    taken raises its class's entry by what one image is worth (the sum of the negative entries over n). Without bias the
    sum of the weight's row stands in for it: it has the same sign wherever the layer's inputs are not negative.

    Args:
        weight: ``(C, d)`` gradient of the last layer's weight.
        bias: ``(C,)`` gradient of its bias, or None.
        batch_size: n.
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
