"""FedRep: average the extractors, keep the heads.

Source: Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning,
ICML 2021, algorithm 1. A client receives the global extractor, trains its head alone for ``head_epochs`` passes, then
the extractor (with the representation mapping) alone for the run's local epochs, and uploads the extractor. The paper's
ten head epochs and one for the extractor are one and one in PFLlib, which is the default here. In the first phase
batch-norm layers go on updating their running statistics, as in PFLlib. A limit on the number of steps holds for each
phase.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from fedpriv.federation.local_training import train
from fedpriv.federation.method import ClientSetup, LocalTraining
from fedpriv.federation.states import Outcome, State, put, take
from fedpriv.methods import fedavg, weights
from fedpriv.uploads.payloads import Extractor, Message


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedRep: ``head_epochs``, passes over the local data that train the head, before the extractor's."""

    head_epochs: Annotated[int, Ge(1)] = 1


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train the head, then the extractor; upload the extractor with the number of samples."""
    put(setup.model, weights.receive(Extractor, setup, state, broadcast), "model")
    train_head(setup, weights.side_generator(rng))
    train_base(setup, rng)
    return take(setup.model, "model"), weights.weighed(Extractor, setup)


def local_phases(options: Options, training: LocalTraining) -> tuple[LocalTraining, ...]:
    """Return the training of the head, for its own number of epochs, and of the extractor."""
    return replace(training, epochs=options.head_epochs), training


def train_head(setup: ClientSetup, rng: torch.Generator) -> None:
    """Train the head of ``setup.model`` alone, in place."""
    model = setup.model

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            features = model.represent(images)
        return cross_entropy(model.head(features), labels)

    training = local_phases(setup.options, setup.training)[0]
    train(model, setup.train, training, rng, loss, setup.trace, trained=model.head.parameters())


def train_base(setup: ClientSetup, rng: torch.Generator) -> None:
    """Train everything of ``setup.model`` but the head, in place."""
    model = setup.model
    weight, bias = model.head.weight.detach(), model.head.bias.detach()

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(linear(model.represent(images), weight, bias), labels)

    moved = [value for name, value in model.named_parameters() if not name.startswith("head.")]
    train(model, setup.train, setup.training, rng, loss, setup.trace, trained=moved)


METHOD = fedavg.averaging(
    Extractor,
    name="fedrep",
    source="Collins et al., ICML 2021",
    options=Options,
    client_step=client_step,
    homogeneous=True,
    local_phases=local_phases,
)
