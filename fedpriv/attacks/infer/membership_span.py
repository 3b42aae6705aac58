"""Membership from what goes into a fully connected layer: an update is made of nothing but the members' inputs.

Whatever loss trains a layer z = W a + b, whatever stands behind it and however private that is, a step on images i changes
W by -lr sum_i d_i a_i^T and b by -lr sum_i d_i, with d_i the loss's derivative at z_i. So the change M of (W, b), of m
rows, has its row space within the span of the (a_i, 1), and of at most m images that d tells apart it is that span: after
one step on a batch a member's input lies in it, and one that no member has does not. Layers before it move, so after many
steps inputs have drifted, and more images than m leave a space of m dimensions; members then lie nearer to it than others.

How far an input x = (a, 1) lies outside, when M is known up to errors of standard deviation e, is

    r(x) = min over u of (||x - M^T u||^2 + s ||u||^2) / ||x||^2 = s x^T (M^T M + s)^-1 x / ||x||^2,

with s = e^2 (sqrt(m) + sqrt(d))^2, about the square of the largest singular value of a matrix of such errors. The errors
that are always there are those of rounding weights to single precision. The signal is -log r. Larger s, as noise
or quantisation would suggest, never told more: what they hide is found no better by trusting less.

That gradients of a fully connected layer lie in the span of its inputs is what closed-form inversion rests on (Dimitrov et
al., "SPEAR", NeurIPS 2024, for batches); here it is asked of a candidate. The distance and its use are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpriv.algebra.low_rank import leading
from fedpriv.attacks.inputs.updates import HEAD, Tangent, Update, Weights

BATCH = 256
"""Images in a pass."""

LEAST = 1e-10
"""Share of an input outside of the row space that counts as none."""

_ROUNDING = 2.0**-24
"""Standard deviation of what single precision leaves out, over the size of what is rounded, at most."""

_STEADY = 1e-14
"""Least s over the trace of M M^T: below, double precision solves nothing."""


@dataclass(frozen=True)
class Layer:
    """The change of a fully connected layer by training, and what goes into it.

    Attributes:
        change: weights after training -> ``(m, d)`` float64, of a layer with a bias that of the bias as its last column.
        error: standard deviation of the error of an entry.
        inputs: candidates -> ``(n, d)`` float64, a one for the bias.
    """

    change: Callable[[Weights], Tensor]
    error: float
    inputs: Callable[[], Tensor]


def chosen_layer(model: nn.Module, names: Collection[str]) -> tuple[str | None, bool]:
    """Return the layer that candidates are held against, and whether it stands before the head.

    The first fully connected one whose weight is among ``names``, or the head (the last, where none is called so) where no
    other is.
    """
    layers = [str(name) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    head = next((name for name in layers if f"{name}.".startswith(HEAD)), layers[-1] if layers else "")
    there = [name for name in layers if f"{name}.weight" in names]
    hidden = next((name for name in there if name != head), None)
    return (hidden, True) if hidden is not None else (next(iter(there), None), False)


def layer_of(model: nn.Module, name: str, update: Update, images: Tensor) -> Layer:
    """Return a layer of a network and its inputs, of images ``(n, c, h, w)``.

    Of a matrix of which only leading singular triples arrived, U^T (W - W') is known exactly, and of the rest too little.
    """
    weight, bias = f"{name}.weight", f"{name}.bias"
    truncated = update.project.left.get(weight) if isinstance(update.project, Tangent) else None
    rank = None if truncated is None else truncated.shape[-1]
    biased = bias in update.before and rank is None

    def change(after: Weights) -> Tensor:
        found = (update.before[weight] - after[weight]).double()
        if rank is not None:
            return leading(after[weight], rank)[0].double().mT @ found
        return torch.cat([found, (update.before[bias] - after[bias]).double()[:, None]], 1) if biased else found

    def inputs() -> Tensor:
        found = _inputs(model, update.before, name, images)
        return with_ones(found) if biased else found

    return Layer(change, rounding(update.before[weight]), inputs)


def with_ones(rows: Tensor) -> Tensor:
    """Return rows ``(n, d)`` with a one behind each ``(n, d + 1)``, which a bias is multiplied with."""
    return torch.cat([rows, rows.new_ones(len(rows), 1)], 1)


def rounding(weight: Tensor) -> float:
    """Return the size of errors of the change of a weight that travels in single precision."""
    return _ROUNDING * float(weight.double().square().mean().sqrt())


def _inputs(model: nn.Module, weights: Weights, name: str, images: Tensor) -> Tensor:
    seen: list[Tensor] = []
    hook = model.get_submodule(name).register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    try:
        with torch.no_grad():
            for some in images.split(BATCH):
                functional_call(model, weights, (some,))
    finally:
        hook.remove()
    return torch.cat(seen).double().reshape(len(images), -1)


def outside(change: Tensor, error: float, inputs: Tensor) -> Tensor:
    """Return the share of inputs ``(n, d)`` that lies outside of the row space of a layer's change: ``(n,)`` in [0, 1].

    Args:
        change: ``(m, d)``.
        error: standard deviation of the error of an entry.
        inputs: to the layer.
    """
    m, d = change.shape
    whole = inputs.square().sum(1)
    length = whole.clamp_min(torch.finfo(inputs.dtype).tiny)
    total = float(change.square().sum())
    if total == 0:
        return torch.ones_like(length)
    allowed = max(error**2 * (m**0.5 + d**0.5) ** 2, _STEADY * total)
    parts, gram = (inputs @ change.T, change @ change.T) if m <= d else (inputs, change.T @ change)
    factor = torch.linalg.cholesky(gram + allowed * torch.eye(len(gram)).to(gram))
    inner = (parts * torch.cholesky_solve(parts.T, factor).T).sum(1)
    left = ((length - inner if m <= d else allowed * inner) / length).clamp(0, 1)
    return torch.where(whole > 0, left, 1.0)  # an input of zeros says nothing of anybody


def nearness(layers: Sequence[Layer], after: Weights, inputs: Sequence[Tensor]) -> Tensor:
    """Return -log of the share of inputs outside of the row space, summed over layers ``(n,)``, float64 on the CPU.

    Of training that led to the weights ``after``; zero where nothing changed, or nothing of an input lies inside.
    """
    pairs = zip(layers, inputs, strict=True)
    found = [outside(layer.change(after), layer.error, rows).clamp_min(LEAST).log() for layer, rows in pairs]
    return -torch.stack(found).sum(0).cpu()
