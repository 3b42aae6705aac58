"""Clients that took their local steps from one broadcast, and what an attacker of their uploads is granted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.attacks.contract import Attack
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation, Reconstruction, ThreatModel
from fedpriv.models import default_width
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
from fedpriv.uploads.payloads import Model

LEARNING_RATE = 0.1
"""The clients' step size."""


@dataclass(frozen=True)
class Problem:
    """Uploads of clients that took their local steps from the same broadcast, and the truth beside them.

    Attributes:
        model: with the broadcast weights.
        observations: one a client.
        knowledge: labels given.
        images: ``(n, c, h, w)`` all clients' images, one client's after the other's.
        labels: ``(n,)``.
        n_classes: C.
    """

    model: nn.Module
    observations: tuple[Observation, ...]
    knowledge: Knowledge
    images: Tensor
    labels: Tensor
    n_classes: int

    def gradients(self) -> list[list[Tensor]]:
        """Return each client's gradient, in the order of the model's parameters."""
        found = []
        for seen in self.observations:
            before, after = seen.broadcast[0], seen.upload[0]
            assert isinstance(before, Model)
            assert isinstance(after, Model)
            names = [name for name, _ in self.model.named_parameters()]
            found.append([(before.state[name] - after.state[name]) / LEARNING_RATE for name in names])
        return found


def one_step_problem(net: str, images: Tensor, labels: Tensor, n_classes: int, seed: int) -> Problem:
    """Return clients of one image and one step each."""
    return problem_of(net, images, labels, n_classes, seed, batch_size=1, steps=1)


def problem_of(
    net: str, images: Tensor, labels: Tensor, n_classes: int, seed: int, *, batch_size: int, steps: int
) -> Problem:
    """Return clients that take ``steps`` steps on ``batch_size`` images each, every image once."""
    shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
    model = build_model(Blueprint(net, shape, n_classes, default_width(net, shape)), seed)
    return with_model(model, images, labels, n_classes, batch_size=batch_size, steps=steps)


def with_model(
    model: nn.Module, images: Tensor, labels: Tensor, n_classes: int, *, batch_size: int, steps: int
) -> Problem:
    """As :func:`problem_of`, from a model as it is."""
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    observations, known = [], {}
    held = batch_size * steps
    for client, (own, own_labels) in enumerate(zip(images.split(held), labels.split(held), strict=True)):
        model.load_state_dict(before, strict=False)
        optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        for batch, target in zip(own.split(batch_size), own_labels.split(batch_size), strict=True):
            optimiser.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimiser.step()
        after = {name: value.detach().clone() for name, value in model.named_parameters()}
        observations.append(Observation(0, client, (Model(after),), (Model(before),)))
        known[0, client] = own_labels
    model.load_state_dict(before, strict=False)
    shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
    facts = BatchFacts(batch_size, LEARNING_RATE, steps)
    knowledge = Knowledge(ThreatModel(), shape, n_classes, model=model, batch=facts, labels=known)
    return Problem(model, tuple(observations), knowledge, images, labels, n_classes)


def run_attack(attack: Attack, problem: Problem, seed: int, device: str = "cpu") -> Reconstruction:
    """Attack every client."""
    targets = list_targets(problem.observations, "model")
    return attack(problem.observations, problem.knowledge, targets, seed=seed, device=torch.device(device))
