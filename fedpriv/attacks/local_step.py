"""What a client's single SGD step gives away: its gradient, and the function that a candidate must match it with."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, replace_all_batch_norm_modules_
from torch.nn import functional

from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation
from fedpriv.errors import UserError
from fedpriv.uploads import Model, optional_part

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class LocalStep:
    """One client's step as the server sees it.

    Attributes:
        weights: the broadcast parameters by name.
        gradient: ``(broadcast - upload) / learning rate`` by the same names: the gradient of the mean cross-entropy.
    """

    weights: Weights
    gradient: Weights


def batch_facts(attack: str, knowledge: Knowledge) -> tuple[nn.Module, BatchFacts]:
    """Return the model and the facts of the step that gradient matching needs.

    Raises:
        UserError: when one is missing or the upload sums up several steps.
    """
    if knowledge.model is None:
        raise UserError(f"attack {attack!r} needs the shared architecture, but the clients have private ones")
    facts = knowledge.batch
    if facts is None:
        raise UserError(
            f"attack {attack!r} needs the batch facts (size, learning rate, steps), but none were handed over"
        )
    if facts.steps != 1:
        raise UserError(
            f"attack {attack!r} needs uploads of one local step, but these sum up {facts.steps}; unrolled matching is "
            f"needed for that and {attack!r} does not offer it (train with max_steps=1)"
        )
    return knowledge.model, facts


def local_step(seen: Observation, model: nn.Module, learning_rate: float, device: torch.device) -> LocalStep:
    """Return the step between a broadcast and an upload.

    Raises:
        UserError: when either holds no model, or a parameter is missing or shaped otherwise.
    """
    where = f"client {seen.client} in round {seen.round}"
    sent, received = optional_part(seen.broadcast, Model), optional_part(seen.upload, Model)
    if sent is None or received is None:
        raise UserError(f"{where}: expected a whole model in the {'broadcast' if sent is None else 'upload'}")
    weights: Weights = {}
    gradient: Weights = {}
    for name, parameter in model.named_parameters():
        for side, state in (("broadcast", sent.state), ("upload", received.state)):
            if name not in state or state[name].shape != parameter.shape:
                got = tuple(state[name].shape) if name in state else "nothing"
                raise UserError(f"{where}: {side} parameter {name!r} should be {tuple(parameter.shape)}, got {got}")
        weights[name] = sent.state[name].to(device)
        gradient[name] = (weights[name] - received.state[name].to(device)) / learning_rate
    return LocalStep(weights, gradient)


class StepModel:
    """The client's loss as a function of weights, ready for ``torch.func``.

    The gradient is evaluated as the client computed it, in training mode: batch norm takes the statistics of the batch
    (its running statistics have no part in a training step, so they are left out), and dropout, whose masks nobody but
    the client knows, is switched off.

    Args:
        model: architecture; its weights do not matter. It is copied.
        device: where to compute.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = copy.deepcopy(model).to(device).train()
        replace_all_batch_norm_modules_(self._model)
        for module in self._model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.eval()

    def gradient(self, weights: Weights, images: Tensor, labels: Tensor) -> Weights:
        """Return the gradient of the mean cross-entropy over a batch.

        Args:
            weights: parameters by name.
            images: ``(n, c, h, w)``.
            labels: probabilities ``(n, C)``.
        """

        def loss(values: Weights) -> Tensor:
            logits = functional_call(self._model, values, (images,))
            return -(labels * functional.log_softmax(logits, 1)).sum(1).mean()

        found: Weights = grad(loss)(weights)
        return found


def same_weights(steps: Sequence[LocalStep]) -> list[list[int]]:
    """Return the positions of the steps, those that began from equal weights together."""
    groups: list[list[int]] = []
    for place, step in enumerate(steps):
        for group in groups:
            if _equal(steps[group[0]].weights, step.weights):
                group.append(place)
                break
        else:
            groups.append([place])
    return groups


def _equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first is second or all(torch.equal(first[name], second[name]) for name in first)


def stacked(steps: Sequence[LocalStep]) -> Weights:
    """Return the gradients of N steps by name, each ``(N, ...)``."""
    return {name: torch.stack([step.gradient[name] for step in steps]) for name in steps[0].gradient}
