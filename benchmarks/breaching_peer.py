"""The same uploads attacked by ``breaching`` (https://github.com/JonasGeiping/breaching), unmodified."""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from one_step import Problem
from torch import Tensor, nn

STATISTICS = {3: ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)), 1: ((0.2860,), (0.3530,))}
"""By channels: mean and deviation in which it normalises CIFAR-10, and those of Fashion-MNIST."""

_INSTALL = "pip install git+https://github.com/JonasGeiping/breaching, or name a checkout in PYTHONPATH"


class Passes:
    """Number of evaluations of a model and its copies."""

    def __init__(self) -> None:
        self.number = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Passes:
        return self


class _Normalised(nn.Module):
    """A model of images in [0, 1] as a model of normalised images, which is what it attacks."""

    def __init__(self, model: nn.Module, channels: int, passes: Passes) -> None:
        super().__init__()
        self.model, self.passes = model, passes
        self.mean, self.std = (torch.tensor(one).view(channels, 1, 1) for one in STATISTICS[channels])

    def forward(self, images: Tensor) -> Tensor:
        self.passes.number += 1
        logits: Tensor = self.model(images * self.std.to(images) + self.mean.to(images))
        return logits


def imported() -> Any:
    """Return the package.

    Raises:
        SystemExit: where it is not importable.
    """
    try:
        return importlib.import_module("breaching")
    except ImportError as error:
        raise SystemExit(f"breaching: not importable ({error}); {_INSTALL}") from error


def attack_by_peer(
    peer: Any,
    problem: Problem,
    name: str,
    overrides: Sequence[str],
    seed: int,
    device: str = "cpu",
    passes: Passes | None = None,
) -> Tensor:
    """Return its images ``(n, c, h, w)``, clamped to [0, 1], one client's after the other's.

    Args:
        peer: the package.
        problem: uploads of one step, of equally many images each.
        name: of its configuration of an attack.
        overrides: of that configuration.
        seed: of its starts.
        device: ``cpu`` or ``cuda``.
        passes: counts the evaluations of the model, those of all clients together.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        config = peer.get_attack_config(attack=name, overrides=list(overrides))
    place = torch.device(device)
    channels = int(problem.images.shape[1])
    model = _Normalised(copy.deepcopy(problem.model), channels, passes or Passes()).to(place)
    attacker = peer.attacks.prepare_attack(
        model, nn.CrossEntropyLoss(), config, {"device": place, "dtype": torch.float}
    )
    mean, deviation = STATISTICS[channels]
    about = SimpleNamespace(
        shape=problem.images.shape[1:], mean=mean, std=deviation, classes=problem.n_classes, modality="vision"
    )
    found, count = [], len(problem.images) // len(problem.observations)
    for number, gradients in enumerate(problem.gradients()):
        torch.manual_seed(seed + number)
        sent = [{"parameters": list(problem.model.parameters()), "buffers": None, "metadata": about}]
        labels = problem.labels[number * count : (number + 1) * count].to(place)
        facts = {"num_data_points": count, "labels": labels, "local_hyperparams": None}
        shared = [{"gradients": [one.to(place) for one in gradients], "buffers": None, "metadata": facts}]
        images, _ = attacker.reconstruct(sent, shared, {})
        found.append(images["data"].cpu() * model.std + model.mean)
    return torch.cat(found).detach().clamp(0, 1)
