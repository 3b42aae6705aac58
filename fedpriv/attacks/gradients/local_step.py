"""The gradient that a client's SGD steps give away, and the function that a candidate must match it with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, replace_all_batch_norm_modules_
from torch.nn import functional

from fedpriv.attacks.inputs.updates import HEAD, Weights, read_update, require_facts
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation
from fedpriv.models.bottleneck import VariationalBottleneck
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError

RANDOM = (nn.modules.dropout._DropoutNd, VariationalBottleneck)
"""Layers that draw numbers in training, which nobody but the client knows."""


@dataclass(frozen=True)
class LocalStep:
    """One client's step, or the sum of several, as the server sees it.

    Attributes:
        weights: the broadcast parameters by name.
        gradient: ``(broadcast - upload) / learning rate`` by the same names: the gradient of the mean cross-entropy,
            of several steps the sum of their gradients. Already projected where the upload is truncated.
        fixed: parameters that the loss takes but that the client neither trained in this step nor sent: the private head
            behind an uploaded extractor. Empty for all other uploads.
        project: what to do to a candidate's gradient before it is compared; None for nothing. Of several steps that
            are stacked: :func:`fedpriv.attacks.inputs.updates.stacked_projection`.
        readout: layer whose output the loss is known to be linear in, with a derivative that was read off its bias; empty
            where the loss is the cross-entropy of the network's logits.
        sizes: images of the batch of each SGD step that it sums up, in order; empty where they follow from the number of
            images.
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
    """Return the step between a broadcast and an upload of weights of an architecture.

    An uploaded extractor needs the client's private head: weight ``(C, d)`` and bias ``(C,)``.

    Raises:
        UserError: when either message does not fit the model, or the upload is an extractor and no head was handed over.
    """
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    update = read_update(seen, shapes, device)
    fixed: Weights = {}
    if update.before.keys() != shapes.keys():
        if head is None:
            raise UserError(
                f"client {seen.client} in round {seen.round}: an extractor is trained through a private head; matching "
                f"its gradient needs that head; pass {argument('knowledge', {'extractor': 'white_box'})}"
            )
        fixed = private_head(head, update.before)
    return LocalStep(update.before, update.gradient(learning_rate), fixed, update.project)


def private_head(head: tuple[Tensor, Tensor], beside: Weights) -> Weights:
    """Return a head's weight and bias by their parameter names, on the device of the weights ``beside``."""
    device = next(iter(beside.values())).device
    return {HEAD + name: value.to(device) for name, value in zip(("weight", "bias"), head, strict=True)}


class StepModel:
    """The client's loss as a function of weights, ready for ``torch.func``.

    The gradient is evaluated as the client computed it, in training mode: batch norm takes the statistics of the batch
    (its running statistics have no part in a training step, so they are left out). What nobody but the client knows is
    switched off: dropout's masks, and the code that a variational bottleneck draws, for which its mean stands.
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
        """Return the gradient of the mean cross-entropy over a batch, or of a loss linear in the output of ``readout``.

        Args:
            weights: parameters by name, in which to differentiate.
            images: ``(n, c, h, w)``.
            labels: probabilities ``(n, C)``; with ``readout`` the derivatives ``(n, O)``. Further columns have no part.
            fixed: parameters that the loss takes beside them.
            readout: a layer, or nothing.
        """

        def loss(values: Weights) -> Tensor:
            return self._loss(values | (fixed or {}), images, labels, readout)

        found: Weights = grad(loss)(weights)
        return found

    def _loss(self, values: Weights, images: Tensor, labels: Tensor, readout: str) -> Tensor:
        if not readout:
            return mean_loss(functional_call(self._model, values, (images,)), labels, "")
        read: list[Tensor] = []

        def note(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
            read.append(output)
            return output.clone()  # what follows may overwrite it

        hook = self._model.get_submodule(readout).register_forward_hook(note)
        try:
            functional_call(self._model, values, (images,))
        finally:
            hook.remove()
        return mean_loss(read[0], labels, readout)


def mean_loss(output: Tensor, labels: Tensor, readout: str) -> Tensor:
    """Return the mean cross-entropy of logits ``(n, O)``, or with ``readout`` the mean loss linear in a layer's output.

    Labels are probabilities, or derivatives, ``(n, K)``, K >= O; further columns have no part.
    """
    own = labels[:, : output.shape[1]]
    return (own * output if readout else -(own * functional.log_softmax(output, 1))).sum(1).mean()


def same_weights(steps: Sequence[LocalStep], *, fixed: bool = True) -> list[list[int]]:
    """Return the positions of the steps, those together that began from equal weights, and equal fixed ones if asked."""
    groups: list[list[int]] = []
    for place, step in enumerate(steps):
        for group in groups:
            first = steps[group[0]]
            alike = equal_weights(first.fixed, step.fixed) if fixed else same_shapes(first.fixed, step.fixed)
            if alike and equal_weights(first.weights, step.weights):
                group.append(place)
                break
        else:
            groups.append([place])
    return groups


def equal_weights(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """True for equal parameters of the same names."""
    return first is second or all(torch.equal(first[name], second[name]) for name in first)


def same_shapes(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """True for parameters of the same names and shapes."""
    return {name: value.shape for name, value in first.items()} == {name: value.shape for name, value in second.items()}


def stacked(steps: Sequence[LocalStep]) -> Weights:
    """Return the gradients of N steps by name, each ``(N, ...)``."""
    return {name: torch.stack([step.gradient[name] for step in steps]) for name in steps[0].gradient}


def square_norms(steps: Sequence[LocalStep]) -> Tensor:
    """Return the squared norms ``(N,)`` of N steps' gradients."""
    return torch.stack(
        [torch.stack([value.square().sum() for value in step.gradient.values()]).sum() for step in steps]
    )
