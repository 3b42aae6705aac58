"""The change of weights that a client uploads, the gradient behind it, the function of images that it is, and labels.

Labels are read off the gradient of the last layer, or guessed through a private head: the cross-entropy's gradient is linear
in the labels, so an extractor's is about a mixture, by class, of those that images of no content would have with each label;
least squares over weights that are not negative give the classes' shares. Derived here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, replace_all_batch_norm_modules_
from torch.nn import functional

from fedpriv.algebra.low_rank import LEFT, RIGHT, recover
from fedpriv.attacks.inputs.targets import kinds_in
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation
from fedpriv.models import ImageShape
from fedpriv.models.split import VariationalBottleneck
from fedpriv.uploads.kinds import NETWORKS
from fedpriv.util.errors import UserError, shown
from fedpriv.util.seeds import generator

Weights = dict[str, Tensor]

HEAD = "head."
"""Prefix of the names of a model's head; an extractor travels without it."""

GradientMatch = Literal["all", "sent", "signs", "censored", "relative"]
"""The compared part of an update; see :class:`SentEntries`."""

_SMOOTH, _TINY = 0.03, 1e-30  # width of the smooth sign, in root mean squares of the candidate's gradient; least square
_TRUNCATED = 1 - 1e-3  # share of the largest magnitude from which an entry counts as truncated: weights are rounded


@dataclass(frozen=True)
class Tangent:
    """The part of a gradient that the truncated matrix it led to gives away.

    A client takes a step from W to W' = W - lr G and uploads the leading singular triples of W', W'_t = U S V. As U^T W' =
    S V and W' V^T = U S, the server knows U^T G and G V^T exactly, but nothing of what is orthogonal to both:

        G - (I - U U^T) G (I - V^T V)

    is the orthogonal projection onto the tangent space of the matrices of rank t at W'_t. Candidates that are projected
    likewise are compared without error; the same holds of a sum of steps. Convolution kernels are projected slice by slice.

    Parameters that are not named pass unchanged.
    """

    left: Mapping[str, Tensor] = field(default_factory=dict)  # name -> U (..., a, t), columns orthonormal or zero
    right: Mapping[str, Tensor] = field(default_factory=dict)  # name -> V (..., t, b), rows orthonormal or zero

    def __call__(self, gradient: Mapping[str, Tensor]) -> Weights:
        """Return the projection of ``gradient``; leading axes of a stack are kept."""
        projected = dict(gradient)
        for name in projected.keys() & self.left.keys():
            left, right, value = self.left[name], self.right[name], gradient[name]
            beside = value - left @ (left.mT @ value)
            projected[name] = value - (beside - (beside @ right.mT) @ right)
        return projected


@dataclass(frozen=True)
class Update:
    """Broadcast and uploaded weights by the same names, of a low-rank model recovered ones."""

    before: Weights
    after: Weights
    project: Callable[[Mapping[str, Tensor]], Weights] | None = None  # to what can be compared; None for everything
    whole: bool = True  # whether these are all parameters of the network

    def gradient(self, learning_rate: float) -> Weights:
        """Return ``(before - after) / learning rate``, projected where the upload is truncated: the sum of the steps'."""
        change = {name: (value - self.after[name]) / learning_rate for name, value in self.before.items()}
        return change if self.project is None else self.project(change)


def read_update(seen: Observation, model: nn.Module, device: torch.device) -> Update:
    """Return the change of the uploaded weights (of an extractor without the head); refuse parameters of other shapes."""
    where = f"client {seen.client} in round {seen.round}"
    shapes = every = {name: parameter.shape for name, parameter in model.named_parameters()}
    states: list[Weights] = []
    tangent: Tangent | None = None
    for side, message in (("broadcast", seen.broadcast), ("upload", seen.upload)):
        payload = NETWORKS.first(message)
        if payload is None:
            wanted = f"the weights of a network ({', '.join(NETWORKS)}) in the {side}"
            raise UserError(f"{where}: expected {wanted}, got {kinds_in(message)}")
        state = payload.parameters()
        if payload.space == "factors":
            factors = {name: value.to(device) for name, value in state.items()}
            state = recover(factors)
            if side == "upload":
                left = {name: factors[name + LEFT] for name in state if name + LEFT in factors}
                tangent = Tangent(left, {name: factors[name + RIGHT] for name in left})
        if payload.network == "extractor":
            shapes = {name: shape for name, shape in shapes.items() if not name.startswith(HEAD)}
        for name, shape in shapes.items():
            if name not in state or state[name].shape != shape:
                got = tuple(state[name].shape) if name in state else "nothing"
                raise UserError(f"{where}: {side} parameter {name!r} should be {tuple(shape)}, got {got}")
        states.append({name: state[name].to(device) for name in shapes})
    before, after = states
    return Update(before, after, tangent, whole=shapes.keys() == every.keys())


def require_facts(attack: str, knowledge: Knowledge, client: int) -> BatchFacts:
    """Return the facts of a client's local steps, or refuse where they were not handed over."""
    facts = knowledge.facts_of(client)
    if facts is None:
        raise UserError(f"attack {attack!r} needs the batch facts (size, learning rate, steps); none were handed over")
    return facts


def stacked_projection(
    projections: Sequence[Callable[[Mapping[str, Tensor]], Weights] | None],
) -> Tangent | SentEntries | None:
    """Return the projections of N updates as one, for gradients ``(N, ...)``; None where nothing is projected."""
    if all(projection is None for projection in projections):
        return None
    entries = [projection for projection in projections if isinstance(projection, SentEntries)]
    if len(entries) == len(projections):
        return _stacked_entries(entries)
    tangents = [projection for projection in projections if isinstance(projection, Tangent)]
    if len(tangents) < len(projections):
        raise TypeError("some updates are projected and some are not; they cannot be stacked")
    lefts, rights = {}, {}
    for name in dict.fromkeys(name for tangent in tangents for name in tangent.left):
        left, right = next((each.left[name], each.right[name]) for each in tangents if name in each.left)
        identity = torch.eye(left.shape[-2], dtype=left.dtype, device=left.device)
        whole = identity.expand(*left.shape[:-1], left.shape[-2])
        nothing = right.new_zeros(*right.shape[:-2], left.shape[-2], right.shape[-1])
        pairs = [(each.left.get(name, whole), each.right.get(name, nothing)) for each in tangents]
        rank = max(first.shape[-1] for first, _ in pairs)
        lefts[name] = torch.stack([functional.pad(first, (0, rank - first.shape[-1])) for first, _ in pairs])
        rights[name] = torch.stack([functional.pad(second, (0, 0, 0, rank - second.shape[-2])) for _, second in pairs])
    return Tangent(lefts, rights)


@dataclass(frozen=True)
class SentEntries:
    """The projection of candidate gradients onto what N clients sent.

    Entries of a pruned update that are zero are left out. A *censored* update, without its smallest entries and with its
    large ones truncated, bounds those. Where noise is in proportion to each tensor, tensors are taken *relative* to their
    root mean square in the update. Of signs times one magnitude a tensor, candidates' entries g become ``magnitude * g /
    sqrt(g^2 + (0.03 rms(g))^2)``, with rms(g) over the entries that were sent.
    """

    wanted: Mapping[str, Tensor]  # name -> observed gradient (N, ...); zero where nothing was sent
    signs: bool = False
    limits: Tensor | None = None  # (N, 2) least and largest magnitude sent, over all tensors, of censored updates
    relative: Mapping[str, Tensor] | None = None  # name -> what a tensor is divided by (N, 1, ...)

    def __call__(self, gradient: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the projection of gradients ``(N, ...)`` by name."""
        if self.limits is not None:
            return {name: censored(value, self.wanted[name], self.limits) for name, value in gradient.items()}
        if self.relative is not None:
            return {name: value / self.relative[name] for name, value in gradient.items()}
        results = {}
        for name, value in gradient.items():
            sent = self.wanted[name] != 0
            kept = value * sent
            if self.signs:
                rows = tuple(range(1, value.dim()))
                number = sent.sum(rows, keepdim=True).clamp_min(1)
                square = kept.square().sum(rows, keepdim=True) / number
                magnitude = self.wanted[name].abs().amax(rows, keepdim=True)
                kept = magnitude * kept / (kept.square() + _SMOOTH**2 * square + _TINY).sqrt()
            results[name] = kept
        return results


def sent_entries(gradient: Mapping[str, Tensor], match: GradientMatch) -> SentEntries | None:
    """Return the projection for one observed gradient, by name and without leading axis; None for ``all``."""
    if match == "all":
        return None
    wanted = {name: value.unsqueeze(0) for name, value in gradient.items()}
    if match == "relative":
        sizes = {name: value.square().mean().sqrt().expand(1, *[1] * value.dim()) for name, value in gradient.items()}
        return SentEntries(wanted, relative={name: torch.where(size > 0, size, 1.0) for name, size in sizes.items()})
    if match != "censored":
        return SentEntries(wanted, match == "signs")
    magnitudes = torch.cat([value.detach().abs().flatten() for value in gradient.values()])
    sent = magnitudes[magnitudes > 0]
    limits = torch.stack([sent.min(), sent.max()]) if len(sent) else magnitudes.new_zeros(2)
    return SentEntries(wanted, limits=limits[None])


def censored(gradient: Tensor, wanted: Tensor, limits: Tensor) -> Tensor:
    """Return candidates' gradients ``(N, ...)`` less all that a censored update leaves open, of magnitudes in the limits.

    Where nothing was sent, what exceeds the smallest magnitude sent; where the largest was, no more than that.
    """
    least, most = (limits[:, position].view(-1, *[1] * (wanted.dim() - 1)) for position in (0, 1))
    sign = wanted.sign()
    beyond = gradient.sign() * (gradient.abs() - least).clamp_min(0)
    shortened = sign * torch.minimum(sign * gradient, most)
    truncated = wanted.abs() >= _TRUNCATED * most
    return torch.where(wanted == 0, beyond, torch.where(truncated, shortened, gradient))


def _stacked_entries(projections: Sequence[SentEntries]) -> SentEntries:
    """Return the projections of several updates of the same parameters as one."""

    def stacked(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    wanted, signs = stacked([entry.wanted for entry in projections]), projections[0].signs
    limits = [entry.limits for entry in projections if entry.limits is not None]
    sizes = [entry.relative for entry in projections if entry.relative is not None]
    return SentEntries(wanted, signs, torch.cat(limits) if limits else None, stacked(sizes) if sizes else None)


RANDOM = (nn.modules.dropout._DropoutNd, VariationalBottleneck)
"""Layers that draw numbers in training, which nobody but the client knows."""


@dataclass(frozen=True)
class LocalStep:
    """One client's step, or the sum of several, as the server sees it.

    Attributes:
        gradient: ``(broadcast - upload) / learning rate`` by the same names: the gradient of the mean cross-entropy,
            of several steps their sum. Already projected where the upload is truncated.
        fixed: parameters that the loss takes but that were not sent: the private head behind an uploaded extractor.
        project: what to do to a candidate's gradient before it is compared; None for nothing.
        readout: layer whose output the loss is known to be linear in; empty where it is the cross-entropy of the logits.
        sizes: images of the batch of each SGD step, in order; empty where they follow from the number of images.
    """

    weights: Weights
    gradient: Weights
    fixed: Weights = field(default_factory=dict)
    project: Callable[[Mapping[str, Tensor]], Weights] | None = None
    readout: str = ""
    sizes: tuple[int, ...] = ()


def batch_facts(attack: str, knowledge: Knowledge, client: int) -> tuple[nn.Module, BatchFacts]:
    """Return the model and the facts of a client's local steps that gradient matching needs, or refuse."""
    if knowledge.model is None:
        raise UserError(f"attack {attack!r} needs the shared architecture, but the clients have private ones")
    return knowledge.model, require_facts(attack, knowledge, client)


def local_step(
    seen: Observation,
    model: nn.Module,
    learning_rate: float,
    device: torch.device,
    head: tuple[Tensor, Tensor] | None = None,
) -> LocalStep:
    """Return the step between a broadcast and an upload; an uploaded extractor needs the head ``(C, d)`` and ``(C,)``."""
    update = read_update(seen, model, device)
    fixed: Weights = {}
    if not update.whole:
        if head is None:
            granted = f"needs that head; pass knowledge={shown({'extractor': 'white_box'})}"
            where = f"client {seen.client} in round {seen.round}"
            raise UserError(f"{where}: an extractor is trained through a private head; matching its gradient {granted}")
        fixed = private_head(head, update.before)
    return LocalStep(update.before, update.gradient(learning_rate), fixed, update.project)


def private_head(head: tuple[Tensor, Tensor], beside: Weights) -> Weights:
    """Return a head's weight and bias by their parameter names, on the device of the weights ``beside``."""
    device = next(iter(beside.values())).device
    return {HEAD + name: value.to(device) for name, value in zip(("weight", "bias"), head, strict=True)}


class StepModel:
    """The client's loss as a function of weights, ready for ``torch.func``, in training mode.

    Batch norm takes the statistics of the batch. What nobody but the client knows is switched off: dropout's masks, and the
    code that a variational bottleneck draws, for which its mean stands.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = copy.deepcopy(model).to(device).train()
        replace_all_batch_norm_modules_(self._model)
        for module in self._model.modules():
            if isinstance(module, RANDOM):
                module.eval()

    def gradient(
        self, weights: Weights, images: Tensor, labels: Tensor, fixed: Weights | None = None, readout: str = ""
    ) -> Weights:
        """Return the gradient in weights of the mean cross-entropy, or of a loss linear in the output of ``readout``.

        Labels are probabilities ``(n, C)``; with ``readout`` the derivatives ``(n, O)``. Further columns have no part.
        """
        read: list[Tensor] = []

        def note(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
            read.append(output)
            return output.clone()  # what follows may overwrite it

        def loss(values: Weights) -> Tensor:
            output = functional_call(self._model, values | (fixed or {}), (images,))
            return mean_loss(read.pop() if readout else output, labels, readout)

        hook = self._model.get_submodule(readout).register_forward_hook(note) if readout else None
        try:
            result: Weights = grad(loss)(weights)
        finally:
            if hook is not None:
                hook.remove()
        return result


def mean_loss(output: Tensor, labels: Tensor, readout: str) -> Tensor:
    """Return the mean cross-entropy of logits ``(n, O)``, or with ``readout`` the mean loss linear in a layer's output.

    Labels are probabilities, or derivatives, ``(n, K)``, K >= O; further columns have no part.
    """
    label = labels[:, : output.shape[1]]
    return (label * output if readout else -(label * functional.log_softmax(output, 1))).sum(1).mean()


def equal_weights(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """True for equal parameters of the same names."""
    return first is second or all(torch.equal(first[name], second[name]) for name in first)


def square_norms(steps: Sequence[LocalStep]) -> Tensor:
    """Return the squared norms ``(N,)`` of N steps' gradients."""
    each = [torch.stack([value.square().sum() for value in step.gradient.values()]).sum() for step in steps]
    return torch.stack(each)


def batch_sizes(count: int, facts: BatchFacts) -> list[int]:
    """Return the sizes of the batches that a round of ``count`` images was split into, in order, as far as known.

    Else batches hold ``facts.batch_size``, the last one the rest, which was joined to the one before if steps were fewer.
    """
    if sum(facts.sizes) == count:
        return list(facts.sizes)
    sizes = [len(part) for part in torch.arange(count).split(facts.batch_size)]
    while len(sizes) > max(facts.steps, 1):
        tail = sizes.pop()
        sizes[-1] += tail
    return sizes


def one_hot(labels: Tensor, n_classes: int, smoothing: float = 0.0) -> Tensor:
    """Return labels ``(..., M)`` as probabilities ``(..., M, C)``, a share of each spread evenly; a label of -1 has none."""
    sharp = functional.one_hot(labels.clamp_min(0), n_classes).float()
    return ((1 - smoothing) * sharp + smoothing / n_classes) * (labels >= 0).unsqueeze(-1)


def last_layer(gradient: Mapping[str, Tensor], n_classes: int) -> tuple[Tensor, Tensor | None]:
    """Return the last linear layer's weight ``(C, d)`` and bias ``(C,)`` or None of a gradient in the order of layers."""
    names = [name for name, value in gradient.items() if value.dim() == 2 and len(value) == n_classes]
    if not names:
        raise UserError(f"the model has no linear layer with {n_classes} outputs; labels cannot be inferred from it")
    bias = gradient.get(names[-1].removesuffix("weight") + "bias")
    return gradient[names[-1]], bias


def infer_labels(step: LocalStep, model: nn.Module, count: int, n_classes: int, image_shape: ImageShape) -> Tensor:
    """Return the labels of a step's images ``(n,)``, as a multiset, by the head's gradient where that was sent."""
    if step.fixed:
        return labels_through_head(step, model, count, n_classes, image_shape)
    return labels_of_head(*last_layer(step.gradient, n_classes), count)


def labels_of_head(weight: Tensor, bias: Tensor | None, batch_size: int) -> Tensor:
    """Return the labels of a batch ``(n,)`` from the last layer's gradient ``(C, d)`` and ``(C,)``, as a multiset.

    The bias gradient of a class is its mean predicted probability minus its share of the batch, so it is negative only for
    classes that are there. For one image that is the label (iDLG, Zhao et al. 2020). For more, every such class is taken
    once and then repeatedly the most negative entry, raised by the sum of the negative entries over n for each image taken.
    Without bias the sum of the weight's row stands in for it.
    """
    signal = (weight.sum(1) if bias is None else bias).double().clone()
    if batch_size == 1:
        return signal.argmin().view(1)
    share = signal.clamp_max(0).sum() / batch_size
    numbers = [label for label in signal.argsort().tolist() if signal[label] < 0][:batch_size]
    signal[numbers] -= share
    while len(numbers) < batch_size:
        label = int(signal.argmin())
        signal[label] -= share
        numbers.append(label)
    return torch.tensor(sorted(numbers), device=weight.device)


def labels_through_head(
    step: LocalStep, model: nn.Module, count: int, n_classes: int, image_shape: ImageShape
) -> Tensor:
    """Return the labels of an extractor's batch ``(n,)``, as a multiset, ascending; ``step.fixed`` holds its head."""
    device = next(iter(step.gradient.values())).device
    channels, height, width = image_shape
    draw = generator(0, "images of no content")  # fine and coarse noise
    fine, coarse = torch.rand(8, *image_shape, generator=draw), (8, channels, -(-height // 4), -(-width // 4))
    wide = functional.interpolate(torch.rand(coarse, generator=draw), size=(height, width), mode="bilinear")
    client, dummies = StepModel(model, device), torch.cat([fine, wide]).to(device)
    columns = []
    for label in range(n_classes):
        given = functional.one_hot(torch.full((len(dummies),), label, device=device), n_classes).float()
        gradient = client.gradient(step.weights, dummies, given, step.fixed)
        columns.append(torch.cat([gradient[name].detach().flatten() for name in step.gradient]).double().cpu())
    wanted = torch.cat([value.flatten() for value in step.gradient.values()]).double().cpu()
    from scipy.optimize import nnls  # type: ignore[import-untyped]  # takes a quarter of a second to import

    shares = torch.tensor(nnls(torch.stack(columns, 1).numpy(), wanted.numpy())[0])
    if not float(shares.sum()):  # no label explains anything: take the least bad one
        shares = functional.one_hot((torch.stack(columns) @ wanted).argmax(), n_classes).double()
    shares = shares / shares.sum() * count
    counts = shares.floor().long()
    # The largest remainders are rounded up.
    counts[(shares - counts).argsort(descending=True, stable=True)[: count - int(counts.sum())]] += 1
    return torch.repeat_interleave(torch.arange(len(counts)), counts).to(device)
