"""FedProx: FedAvg whose clients are held back by their distance to the global model.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020,
algorithm 2. A client minimises CE(w) + mu/2 * |w - w_global|^2, where ``w_global`` is the newest broadcast. PFLlib's mu
defaults to 0, which is FedAvg; here it is 0.01, of the values that the paper tries (1, 0.1, 0.01, 0.001).
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
from fedpriv.methods import fedavg
from fedpriv.methods.shared import weights
from fedpriv.wire.payloads import Message, Model, PublicLoss


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedProx.

    Attributes:
        mu: weight of the proximal term; 0 is FedAvg.
    """

    mu: Annotated[float, Ge(0)] = 0.01


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train the global model by cross-entropy and proximal term; upload it with the number of samples."""
    options: Options = setup.options
    model = setup.model
    put(model, weights.receive(Model, setup, state, broadcast), "model")
    anchors = list(parameters(model).values())

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        pairs = zip(model.parameters(), anchors, strict=True)
        distance = torch.stack([(weight - anchor).square().sum() for weight, anchor in pairs]).sum()
        return cross_entropy(model(images), labels) + options.mu / 2 * distance

    train(model, setup.train, setup.training, rng, loss, setup.trace)
    return take(model, "model"), weights.weighed(Model, setup)


METHOD = replace(
    fedavg.METHOD,
    name="fedprox",
    source="Li et al., MLSys 2020",
    options=Options,
    client_step=client_step,
    public_loss=lambda options, round_: PublicLoss(proximal=options.mu),
)
