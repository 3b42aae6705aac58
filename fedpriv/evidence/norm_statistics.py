"""Statistics of a client's batch norms: the running ones after a round, or those of the very batch of its one step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedpriv.attacks.inputs.updates import read_update
from fedpriv.attacks.observation import Observation, Statistics
from fedpriv.federation.method import ClientSetup, GuardedTraining
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import payload_kind


def batch_norms(model: nn.Module) -> dict[str, nn.BatchNorm2d]:
    """Return the batch norms of a network by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.BatchNorm2d)}


def running_statistics(run: RunDirectory, model: nn.Module, kind: str, client: int, round_: int) -> Statistics:
    """Return the running statistics of the client's copy of an uploaded network at the end of a round."""
    if round_ not in run.checkpointed_rounds():
        raise UserError(
            f"{run.path}: {argument('knowledge', {'batch_norm': 'running'})}: the client's running statistics of round "
            f"{round_} are in a checkpoint that was not kept; pass {argument('knowledge', {'batch_norm': 'none'})}, or "
            f"train with {argument('keep', [round_])}"
        )
    state = run.client_state(round_, client)
    prefix = "small" if payload_kind(kind).network == "small" else "model"
    return {
        name: (state[f"{prefix}.{name}.running_mean"].cpu(), state[f"{prefix}.{name}.running_var"].cpu())
        for name in batch_norms(model)
    }


def exact_statistics(setup: ClientSetup, steps: Sequence[Tensor], model: nn.Module, seen: Observation) -> Statistics:
    """Return mean and biased variance of what went into each batch norm of ``model`` in the one step behind an upload."""
    where = argument("knowledge", {"batch_norm": "exact"})
    if len(steps) != 1:
        raise UserError(
            f"{where}: client {seen.client} took {len(steps)} steps in round {seen.round}; statistics of the very batch are "
            f"those of one step (train with {argument('local_steps', 1)}), else use running or none"
        )
    if isinstance(setup.training, GuardedTraining) and setup.training.guards:
        raise UserError(f"{where}: a defense of local training may change the batch; use running or none")
    copied = copy.deepcopy(model).train()
    device = next(copied.parameters()).device
    weights = read_update(seen, {name: value.shape for name, value in copied.named_parameters()}, device).before
    copied.load_state_dict(weights, strict=False)
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for name, layer in batch_norms(copied).items():
        layer.register_forward_pre_hook(_noting(name, found))
    with torch.no_grad():
        images, _ = setup.train.batch(steps[0].to(setup.train.labels.device))
        copied(images.to(device))
    return found


def _noting(name: str, found: dict[str, tuple[Tensor, Tensor]]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def note(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        variance, mean = torch.var_mean(given[0], (0, 2, 3), correction=0)
        found[name] = (mean.cpu(), variance.cpu())

    return note
