"""FedProx: FedAvg whose clients stay near the newest broadcast.

Adds mu/2 |w - w_global|^2 to the loss, ``w_global`` the newest broadcast. Li, Sahu, Zaheer, Sanjabi, Talwalkar,
Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020, algorithm 2. PFLlib's mu defaults to 0, which is
FedAvg; here it is 0.01, of the values that the paper tries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import train
from fedpriv.federation.method import ClientSetup
from fedpriv.federation.states import State, parameters, put, take
from fedpriv.methods.fedavg import METHOD as FEDAVG
from fedpriv.methods.weights import receive, weighed
from fedpriv.uploads.payloads import Message, Model, PublicLoss


@dataclass(frozen=True)
class FedProxOptions:
    """Hyperparameters of FedProx.

    Attributes:
        mu: weight of the proximal term; 0 is FedAvg.
    """

    mu: Annotated[float, Ge(0)] = 0.01


def proximal_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train the global model by cross-entropy and proximal term; upload it with the number of samples."""
    model, mu = setup.model, float(setup.options.mu)
    put(model, receive(Model, setup, state, broadcast), "model")
    anchors = list(parameters(model).values())

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        pairs = zip(model.parameters(), anchors, strict=True)
        distance = torch.stack([(weight - anchor).square().sum() for weight, anchor in pairs]).sum()
        return cross_entropy(model(images), labels) + mu / 2 * distance

    train(model, setup.train, setup.training, rng, loss, setup.trace)
    return take(model, "model"), weighed(Model, setup)


METHOD = replace(
    FEDAVG,
    name="fedprox",
    about="FedProx: FedAvg whose clients are held back by their distance to the global model.",
    source="Li et al., MLSys 2020",
    options=FedProxOptions,
    client_step=proximal_step,
    public_loss=lambda options, round_: PublicLoss(proximal=options.mu),
)
