"""FedAvg: average whole models, or in methods near it a part of them, weighted by numbers of training samples.

- ``fedavg``, whole models: McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep
  Networks from Decentralized Data, AISTATS 2017, algorithm 1.
- ``fedprox``, mu/2 |w - w_global|^2 added to the loss, ``w_global`` the newest broadcast: Li, Sahu, Zaheer, Sanjabi,
  Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020, algorithm 2. PFLlib's mu defaults to 0,
  which is FedAvg; here it is 0.01, of the values that the paper tries.
- ``lg-fedavg``, heads, while extractors stay with the clients: Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov,
  Morency: Think Locally, Act Globally, NeurIPS 2019 workshop on federated learning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedpriv.federation.method import ClientSetup, Method
from fedpriv.federation.states import Outcome, State
from fedpriv.methods import weights
from fedpriv.methods.weights import Kind
from fedpriv.uploads.payloads import Classifier, Message, Model, PublicLoss


@dataclass(frozen=True)
class FedProxOptions:
    """Hyperparameters of FedProx: ``mu``, the weight of the proximal term; 0 is FedAvg."""

    mu: Annotated[float, Ge(0)] = 0.01


def proximal_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train the global model by cross-entropy and proximal term; upload it with the number of samples."""
    model, mu = setup.model, float(setup.options.mu)
    state = weights.receive(Model, setup, state, broadcast)
    anchors = [state[f"model.{name}"] for name, _ in model.named_parameters()]

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        pairs = zip(model.parameters(), anchors, strict=True)
        distance = torch.stack([(weight - anchor).square().sum() for weight, anchor in pairs]).sum()
        return cross_entropy(model(images), labels) + mu / 2 * distance

    return weights.trained_model(setup, state, loss, rng), weights.weighed(Model, setup)


def averaging(kind: Kind, **changes: Any) -> Method:
    """Return the method that averages a part of the clients' weights by numbers of samples."""
    same: dict[str, Any] = {
        "uploads": (kind.kind, "sample-count"),
        "broadcasts": (kind.kind,),
        "start": partial(weights.start, kind),
        "apply_broadcast": partial(weights.receive, kind),
        "client_step": partial(weights.client_step, kind),
        "server_step": partial(weights.average, kind),
        "linear_aggregation": True,
    }
    return replace(weights.LOCAL, **same | changes)


METHOD = averaging(
    Model,
    name="fedavg",
    source="McMahan et al., AISTATS 2017",
    homogeneous=True,
)
FEDPROX = replace(
    METHOD,
    name="fedprox",
    about="FedProx: FedAvg whose clients are held back by their distance to the global model.",
    source="Li et al., MLSys 2020",
    options=FedProxOptions,
    client_step=proximal_step,
    public_loss=lambda options, round_: PublicLoss(proximal=options.mu),
)
LG_FEDAVG = averaging(
    Classifier,
    name="lg-fedavg",
    about="LG-FedAvg: average the heads by numbers of samples, keep the extractors; clients train their whole model.",
    source="Liang et al., NeurIPS 2019 workshop",
)
